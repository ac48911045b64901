# SPDX-License-Identifier: Apache-2.0
"""Probes: what they find, and what it takes to find it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing

import pytest

from tests import reading
from tests.clocks import SkippingClock
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tests.sending import counted
from tubemq_spark.client.consumer import probe
from tubemq_spark.client.consumer.conversations import Conversation
from tubemq_spark.client.consumer.first_message import messages_at
from tubemq_spark.client.consumer.probe import Prober, ProbeResult
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.metadata import Partition

SOLE = Partition(1, "sole", 0)
WIDE = [Partition(1, "wide", number) for number in range(10)]  # of one store


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    topics = {"sole": TopicSpec(partitions=1), "wide": TopicSpec(partitions=len(WIDE))}
    with embedded_cluster(topics=topics, brokers=1) as running:
        for number in range(30):
            running.tubemq.send("sole", b"%d" % number)
        running.tubemq.expire("sole", keep=20)
        yield running


@pytest.fixture
def prober(cluster: EmbeddedCluster) -> Iterator[Prober]:
    with closing(reading.visitor(cluster, "g")) as visitor:
        yield Prober(visitor)


@pytest.mark.parametrize(("entry", "begin", "messages"), [(30, 30, 0), (99, 30, 0), (3, 10, 2)])
def test_a_probe_outside_of_the_store_returns_its_nearest_position(
    cluster: EmbeddedCluster, prober: Prober, entry: int, begin: int, messages: int
) -> None:
    ids = [message.message_id for message in cluster.tubemq.messages("sole")][:messages]
    place = SOLE, entry * UNIT
    assert prober.probe([place]) == {place: ProbeResult(begin * UNIT, tuple(ids), is_behind_end=not ids)}


def test_the_extent_of_a_store_takes_one_request(cluster: EmbeddedCluster, prober: Prober) -> None:
    registers = counted(cluster, "partition_register")
    assert prober.extents([*WIDE, SOLE]) == dict.fromkeys(WIDE, (0, 0)) | {SOLE: (10 * UNIT, 30 * UNIT)}
    assert registers.fired == 2


FIRST, SECOND = 10 * UNIT, 11 * UNIT
FOUND = {FIRST: ProbeResult(FIRST, (1, 2)), SECOND: ProbeResult(SECOND, (2,))}
GONE = {FIRST: ProbeResult(SECOND, (2,)), SECOND: ProbeResult(SECOND, (2,))}
NEW = {FIRST: ProbeResult(FIRST, (9,)), SECOND: ProbeResult(SECOND, (), is_behind_end=True)}
Answer = Callable[..., None]


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Answer:
    """Lets the probes of a partition find something, one after the other, and the last one's from then on."""

    def use(*found: Mapping[int, ProbeResult]) -> None:
        lines = iter(found)

        def probing(*_: object, **__: object) -> Conversation[Mapping[int, ProbeResult]]:
            yield from ()
            return next(lines, found[-1])

        monkeypatch.setattr(probe, "probing", probing)

    return use


@pytest.mark.parametrize(
    ("again", "is_there"),
    [(FOUND, True), (GONE, False), (dict[int, ProbeResult](), None)],
    ids=["yes", "gone", "unclear"],
)
def test_a_message_that_was_found_is_looked_for_again(
    prober: Prober, answer: Answer, again: Mapping[int, ProbeResult], is_there: bool | None
) -> None:
    """Retention may remove a message between two probes, and then the other one looks like a difference."""
    answer(FOUND, again)
    assert prober.have_messages([(SOLE, FIRST, SECOND)]) == ({} if is_there is None else {SOLE: is_there})
    answer(FOUND, again, FOUND, FOUND)  # what is unclear is asked for once more
    assert prober.messages_at({SOLE: FIRST}) == {SOLE: None if is_there is False else 1}


def test_an_answer_that_stays_unclear_is_an_error(
    skipping_clock: SkippingClock, prober: Prober, answer: Answer
) -> None:
    answer({})
    with pytest.raises(TransportError, match=r"do not say for now whether .* has a message at 280"):
        prober.messages_at({SOLE: FIRST})
    assert prober.messages_at({SOLE: FIRST}, optional=[SOLE]) == {SOLE: None}


def test_a_message_that_comes_behind_the_span_meanwhile_is_not_in_it(prober: Prober, answer: Answer) -> None:
    """The probe of the end was answered before it came, that of the begin had to be repeated and found it."""
    later = NEW | {SECOND: NEW[FIRST]}
    answer(NEW, later)
    assert prober.have_messages([(SOLE, FIRST, SECOND)]) == {SOLE: False}
    answer(NEW, later)
    assert prober.messages_at({SOLE: FIRST}) == {SOLE: None}


def test_a_message_is_proven_behind_which_many_of_other_partitions_come_meanwhile(
    cluster: EmbeddedCluster, prober: Prober
) -> None:
    """Between the two answers. More than the fetches of a probe pass."""
    one, other = WIDE[:2]
    message = cluster.tubemq.send("wide", b"the only one", partition=one.partition_id)
    cluster.tubemq.on("partition_register", nth=3, times=1).run(
        lambda: [cluster.tubemq.send("wide", b"x" * 10, partition=other.partition_id) for _ in range(3000)]
    )
    (found,) = messages_at(prober, {one.store: 0}, {one.store: WIDE}).values()
    assert (found.position, found.message_id) == (0, message.message_id)


def test_a_message_that_comes_between_two_answers_is_behind_both_positions(
    cluster: EmbeddedCluster, prober: Prober
) -> None:
    """The first answer about the earlier position is unclear. So both are asked for again."""
    other, wanted = WIDE[:2]
    cluster.tubemq.send("wide", b"of another partition", partition=other.partition_id)
    places = [(wanted, 0), (wanted, UNIT)]
    cluster.tubemq.on("get_message", times=1).fail(ErrCode.SERVER_RECEIVE_OVERFLOW)
    cluster.tubemq.on("partition_register", nth=3, times=1).run(
        lambda: cluster.tubemq.send("wide", b"new", partition=wanted.partition_id)
    )
    found = prober.probe(places)
    assert [found[place].first_id for place in places] == [cluster.tubemq.messages("wide")[-1].message_id] * 2


def test_a_message_behind_a_reply_without_one_is_a_later_one(cluster: EmbeddedCluster, prober: Prober) -> None:
    other, wanted = WIDE[:2]
    for _ in range(3000):
        cluster.tubemq.send("wide", bytes(1000), partition=other.partition_id)
    message = cluster.tubemq.send("wide", b"wanted", partition=wanted.partition_id)
    at_begin, at_message = (wanted, 0), (wanted, 3000 * UNIT)
    found = prober.probe([at_begin, at_message])
    assert found[at_begin] == ProbeResult(0, (message.message_id,), is_later=True)
    assert found[at_message] == ProbeResult(3000 * UNIT, (message.message_id,), is_exact=True)
