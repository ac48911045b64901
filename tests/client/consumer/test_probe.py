# SPDX-License-Identifier: Apache-2.0
"""Probes: what they find, and what it takes to find it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing

import pytest

from tests import reading
from tests.clocks import SkippingClock
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tests.sending import counted
from tubemq_spark.client.consumer.first_message import messages_at
from tubemq_spark.client.consumer.probe import PartitionPosition, Prober, ProbeResult
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


FIRST, SECOND = (SOLE, 10 * UNIT), (SOLE, 11 * UNIT)
FOUND = {FIRST: ProbeResult(10 * UNIT, (1, 2)), SECOND: ProbeResult(11 * UNIT, (2,))}
GONE = {FIRST: ProbeResult(11 * UNIT, (2,)), SECOND: ProbeResult(11 * UNIT, (2,))}


@pytest.mark.parametrize(
    ("again", "answer"), [(FOUND, {SOLE: True}), (GONE, {SOLE: False}), ({}, {})], ids=["there", "gone", "unclear"]
)
def test_a_message_that_was_found_is_looked_for_again(
    prober: Prober,
    again: Mapping[PartitionPosition, ProbeResult],
    answer: Mapping[Partition, bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Retention may remove a message between two probes, and then the other one looks like a difference."""

    def answer_from(lines: Iterator[Mapping[PartitionPosition, ProbeResult]]) -> None:
        def probe(_: Prober, places: Iterable[PartitionPosition], *__: object, **___: object) -> object:
            line = next(lines)
            return {place: line[place] for place in places if place in line}

        monkeypatch.setattr(Prober, "probe", probe)

    span = (SOLE, FIRST[1], SECOND[1])
    answer_from(iter([FOUND, again]))
    assert prober.have_messages([span]) == answer
    entries, members = {SOLE.store: FIRST[1]}, {SOLE.store: [SOLE]}
    answer_from(iter([FOUND, again, {}, {}]))  # the last two are for the members behind the first ones: none
    if not answer:  # it is asked for once more
        answer_from(iter([FOUND, again, {}, {}, FOUND, FOUND, {}, {}]))
    assert list(messages_at(prober, entries, members)) == ([] if again is GONE else [SOLE.store])


def test_an_answer_that_stays_unclear_is_an_error(
    skipping_clock: SkippingClock, prober: Prober, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Prober, "probe", lambda *_, **__: {})
    with pytest.raises(TransportError, match=r"do not say for now whether .* have messages"):
        messages_at(prober, {SOLE.store: FIRST[1]}, {SOLE.store: [SOLE]})


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


def test_a_message_that_comes_behind_the_span_meanwhile_is_not_in_it(
    prober: Prober, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The probe of the end was answered before it came, that of the begin had to be repeated and found it."""
    new = ProbeResult(10 * UNIT, (9,))
    told = [{FIRST: new, SECOND: ProbeResult(11 * UNIT, (), is_behind_end=True)}, {FIRST: new, SECOND: new}]
    lines = iter([*told, *told, {}, {}])
    monkeypatch.setattr(Prober, "probe", lambda *_, **__: next(lines))
    assert prober.have_messages([(SOLE, FIRST[1], SECOND[1])]) == {SOLE: False}
    assert messages_at(prober, {SOLE.store: FIRST[1]}, {SOLE.store: [SOLE]}) == {}


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
