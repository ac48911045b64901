# SPDX-License-Identifier: Apache-2.0
"""`failOnDataLoss`: an error or a warning names the exact range of a loss, and only with false the query goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import Any

import pytest

from tests.clocks import SkippingClock
from tests.source_options.conftest import Start
from tests.waiting import wait_until
from tests.without_spark.source import UNIT, Stream, bodies, fill, read_batch, stored, where
from tubemq_spark.errors import ConfigError, DataLossError, PositionMovedError, TransportError
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.testing import EmbeddedTubeMQ
from tubemq_spark.testing.master.metadata_lists import MetadataLists

pytestmark = pytest.mark.option("failOnDataLoss")

FIRST = Partition(1, "t", 0)
SHORT = {"tubemq_retry_maxElapsedMs": 200}
UNTIL_UNLISTED = {"tubemq_retry_maxElapsedMs": 1000}  # the master lists a removed broker a little longer


def loss_of(stream: Stream, **changed: Any) -> DataLossError:
    """Return the error that a run raises. Its text must name the option to go on."""
    with pytest.raises(DataLossError) as caught:
        stream.run(**changed)
    assert "failOnDataLoss" in str(caught.value)
    return caught.value


def warnings_of(caplog: pytest.LogCaptureFixture, about: str) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING and about in r.getMessage()]


# Retention


@pytest.fixture
def behind(start: Start) -> tuple[EmbeddedTubeMQ, Stream]:
    """A query that has read 10 messages, and a store of 50 whose first 25 have expired."""
    tubemq = start({"t": 1})
    fill(tubemq, "t", 10)
    stream = Stream(tubemq, "t")
    stream.run()
    fill(tubemq, "t", 40)
    tubemq.expire("t", keep=25)
    return tubemq, stream


def test_retention_fails_a_query_that_fell_behind(behind: tuple[EmbeddedTubeMQ, Stream]) -> None:
    _, stream = behind
    loss = loss_of(stream)
    assert (loss.topic, loss.broker_id, loss.partition) == ("t", 1, 0)
    assert (loss.asked, loss.offered) == (10 * UNIT, 25 * UNIT)
    assert "[280, 700)" in str(loss)
    loss_of(stream, failOnDataLoss="true")


def test_a_query_may_skip_expired_messages(
    behind: tuple[EmbeddedTubeMQ, Stream], caplog: pytest.LogCaptureFixture
) -> None:
    """It logs their range once."""
    tubemq, stream = behind
    before = list(stream.rows)
    stream.run(failOnDataLoss="false")
    assert bodies(stream.rows[len(before) :]) == stored(tubemq, "t")
    assert len(warnings_of(caplog, "[280, 700)")) == 1
    fill(tubemq, "t", 5)
    stream.run(failOnDataLoss="false")
    assert bodies(stream.rows[len(before) :]) == stored(tubemq, "t")
    assert len(warnings_of(caplog, "1:t:0")) == 1


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("fail", [True, False])
def test_a_given_start_may_have_expired(behind: tuple[EmbeddedTubeMQ, Stream], streaming: bool, fail: bool) -> None:
    tubemq, _ = behind
    given = {"startingOffsets": {"t": {"1:0": 0}}, "failOnDataLoss": str(fail).lower()}
    with pytest.raises(DataLossError, match=r"\[0, 700\).*failOnDataLoss") if fail else nullcontext():
        rows = Stream(tubemq, "t", **given).run()[0] if streaming else read_batch(tubemq, "t", **given)
        assert bodies(rows) == stored(tubemq, "t")


# A tail that a crash lost


@pytest.fixture
def truncated(start: Start) -> tuple[EmbeddedTubeMQ, Stream]:
    """A query that has read 30 messages; a crash lost the last 20 of them."""
    tubemq = start({"t": 1})
    fill(tubemq, "t", 10)
    tubemq.flush("t")
    stream = Stream(tubemq, "t")
    fill(tubemq, "t", 20)
    stream.run()
    tubemq.crash_broker(1)
    tubemq.start_broker(1)
    return tubemq, stream


def test_a_tail_that_was_read_and_lost_fails_the_query(truncated: tuple[EmbeddedTubeMQ, Stream]) -> None:
    _, stream = truncated
    loss = loss_of(stream)
    assert (loss.asked, loss.offered) == (30 * UNIT, 10 * UNIT)
    assert "lost [280, 840)" in str(loss)


def test_a_query_may_skip_a_lost_tail(
    truncated: tuple[EmbeddedTubeMQ, Stream], caplog: pytest.LogCaptureFixture
) -> None:
    """No message comes twice, and the new messages at the lost positions come."""
    tubemq, stream = truncated
    before = bodies(stream.rows)
    with stream.running(failOnDataLoss="false") as run:
        run.next()
        new = [tubemq.send("t", b"new %d" % number).body for number in range(30)]
        while run.next() is not None:
            pass
        assert run.next() is None
    assert bodies(stream.rows) == before + new
    assert len(warnings_of(caplog, "lost [280, 840)")) == 1
    assert tubemq.group_offset("readers", "t", 1, 0) == 40 * UNIT


# Topics


def test_a_topic_that_is_deleted_is_a_loss(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """The master still lists it to the group, but its broker does not know it any more."""
    tubemq = start({"t": 1, "other": 1})
    fill(tubemq, "t", 10), fill(tubemq, "other", 10)
    stream = Stream(tubemq, "t", "other", **SHORT)
    with stream.running() as run:
        assert len(run.next() or ()) == 20
        tubemq.delete_topic("t")
        fill(tubemq, "other", 5)
        with pytest.raises(DataLossError, match=r"^1:t:0: the cluster does not have the partition any more"):
            run.next()
    with pytest.raises(ConfigError, match=r"^the cluster has no topic t\."):
        stream.run()
    stream.run(subscribe="other", failOnDataLoss="false")
    assert where(stream.rows[20:]) == {Partition(1, "other", 0)}
    assert len(stream.rows) == 25


@pytest.mark.parametrize("topics", [("t", "other"), ("t",)])
def test_a_query_does_without_a_deleted_topic_until_it_is_created_again(
    start: Start, caplog: pytest.LogCaptureFixture, topics: tuple[str, ...]
) -> None:
    """Also after a failover of the master, which refuses a registration that names the topic, and in the next run."""
    tubemq = start({"t": 1, "other": 1}, masters=2)
    others = len(topics) - 1
    fill(tubemq, "t", 10), fill(tubemq, "other", 10)
    stream = Stream(tubemq, *topics, failOnDataLoss="false", metadataIntervalMs=100, **SHORT)
    with stream.running() as run:
        assert len(run.next() or ()) == 10 + 10 * others
        tubemq.delete_topic("t")
        fill(tubemq, "other", 5)
        assert len(run.next() or ()) == 5 * others
        tubemq.switch_master()
        fill(tubemq, "other", 5)
        wait_until(lambda: run.next() is None and run.reported.get("missing") == ["t"])
    with stream.running() as run:
        run.next()
        assert run.reported["missing"] == ["t"]
        assert len(warnings_of(caplog, "[topics-missing]")) == 2
        tubemq.create_topic("t", partitions=1)
        new = fill(tubemq, "t", 3)
        wait_until(lambda: (run.next(), bodies(stream.rows)[-3:] == new)[1])
        assert "missing" not in run.reported
    assert len(stream.rows) == 13 + 20 * others


@pytest.mark.parametrize("release", ["1.2", "2.5"])
@pytest.mark.parametrize("change", ["restart", "failover"])
def test_a_query_does_without_a_deleted_topic_while_a_master_forgets_it(
    start: Start, caplog: pytest.LogCaptureFixture, change: str, release: str
) -> None:
    """The driver asks whether the topic is gone before a heartbeat could register it again."""
    tubemq = start({"t": 1, "other": 1}, masters=2, release=release)
    fill(tubemq, "t", 10), fill(tubemq, "other", 10)
    stream = Stream(tubemq, "t", "other", failOnDataLoss="false", **SHORT)
    with stream.running() as run:
        assert len(run.next() or ()) == 20
        tubemq.delete_topic("t")
        fill(tubemq, "other", 5)
        if change == "failover":
            tubemq.switch_master()
        else:
            tubemq.stop_master(1)
            tubemq.start_master(1)
        assert len(run.next() or ()) == 5
        assert len(warnings_of(caplog, "1:t:0: the cluster does not have the partition any more")) == 1


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("method", ["partition_register", "get_partition_meta", "consumer_register_v2"])
def test_a_single_master_restarts_at_each_moment_of_a_deletion(
    start: Start, caplog: pytest.LogCaptureFixture, method: str, after: bool
) -> None:
    """Before or after each request that the driver makes while it finds out that the topic is gone."""
    tubemq = start({"t": 1, "other": 1})

    def restart() -> None:
        tubemq.stop_master()
        tubemq.start_master()

    def restarts_at(number: int) -> bool:
        tubemq.create_topic("t", partitions=1)
        caplog.clear()
        stream = Stream(tubemq, "t", "other", tubemq_group=f"readers{number}", failOnDataLoss="false", **SHORT)
        with stream.running() as run:
            before = len(run.next() or ())
            tubemq.delete_topic("t")
            if method == "consumer_register_v2":
                restart()
            new = fill(tubemq, "other", 5)
            moment = tubemq.on(method, nth=number, times=1).run(restart, after=after)
            assert bodies(run.next() or ()) == new
            moment.remove()
            while run.next() is not None:
                pass
        assert len(stream.rows) == before + 5
        assert len(warnings_of(caplog, "1:t:0: the cluster does not have the partition any more")) == 1
        return bool(moment.fired)

    assert restarts_at(1)
    number = 2
    while restarts_at(number):
        number += 1


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("method", ["partition_register", "get_message"])
def test_a_topic_is_deleted_at_each_moment_of_a_batch(
    start: Start, caplog: pytest.LogCaptureFixture, method: str, after: bool
) -> None:
    """Before or after each request to the broker. The driver finds out in each case; a task fails, and the next run
    repeats its batch."""
    tubemq = start({"t": 1, "other": 1})

    def deletes_at(number: int) -> bool:
        tubemq.create_topic("t", partitions=1)
        fill(tubemq, "t", 10)
        caplog.clear()
        stream = Stream(tubemq, "t", "other", tubemq_group=f"readers{number}", failOnDataLoss="false", **SHORT)
        stream.run()
        new = fill(tubemq, "other", 5)
        fill(tubemq, "t", 5)
        moment = tubemq.on(method, nth=number, times=1).run(lambda: tubemq.delete_topic("t"), after=after)
        failed = "1:t:0 at broker 1"  # as a task's error begins
        try:
            stream.run()
        except TransportError as error:
            failed = str(error)
        assert failed.startswith("1:t:0 at broker 1")
        moment.remove()
        if not moment.fired:
            tubemq.delete_topic("t")
        stream.run()
        assert [body for body in bodies(stream.rows) if body in new] == new
        assert warnings_of(caplog, "1:t:0: the cluster does not have the partition any more")
        return bool(moment.fired)

    number = 1
    while deletes_at(number):
        number += 1
    assert number > 2


@pytest.mark.parametrize("release", ["1.2", "2.5"])
def test_short_lists_of_a_new_master_are_no_loss(
    start: Start, skipping_clock: SkippingClock, monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    """A broker is away for longer than requests are repeated. Then a master takes over twice, the second time just
    before the driver would have believed its lists."""
    tubemq = start({"t": 1, "other": 1}, masters=2, release=release)
    fill(tubemq, "t", 10)
    stream = Stream(tubemq, "t", failOnDataLoss="false")
    lists_from = float("inf")
    made = MetadataLists.consumer_topics

    def short_at_first(lists: MetadataLists, topics: Iterable[str], group: str) -> dict[str, str]:
        return made(lists, topics, group) if skipping_clock.monotonic() >= lists_from else {}

    with stream.running() as run:
        assert len(run.next() or ()) == 10
        monkeypatch.setattr(MetadataLists, "consumer_topics", short_at_first)
        tubemq.stop_broker(1)
        tubemq.switch_master()
        asked = tubemq.on("get_partition_meta", nth=35, times=1).run(tubemq.switch_master)
        lists_from = skipping_clock.monotonic() + 60 + 30
        with pytest.raises(TransportError, match=r"gave up after 60 s"):
            run.next()
        assert asked.fired
        tubemq.start_broker(1)
        fill(tubemq, "t", 5)
        wait_until(lambda: run.next() is not None)
    assert bodies(stream.rows) == stored(tubemq, "t")


def test_a_topic_that_is_deleted_before_a_task_reads_ends_the_run(start: Start) -> None:
    """The next run does without it."""
    tubemq = start({"t": 1, "other": 1})
    fill(tubemq, "t", 10), fill(tubemq, "other", 10)
    stream = Stream(tubemq, "t", "other", failOnDataLoss="false", **SHORT)
    with stream.running() as run:
        run.find_next()
        [tasks] = run.plan()
        tubemq.delete_topic("t")
        with pytest.raises(TransportError, match=r"1:t:0 at broker 1 .* topicName t not existed"):
            list(run.read(tasks))
    stream.run()
    assert bodies(stream.rows) == stored(tubemq, "other")


@pytest.mark.parametrize("planned", [False, True], ids=["between batches", "before a task reads"])
@pytest.mark.parametrize("count", [3, 11, 40])
def test_a_topic_that_is_created_anew_is_read_from_its_first_message(start: Start, count: int, planned: bool) -> None:
    """None of its messages comes twice, and none is left out."""
    tubemq = start({"t": 1})
    fill(tubemq, "t", 10)
    stream = Stream(tubemq, "t", failOnDataLoss="false", **SHORT)
    with stream.running() as run:
        run.find_next() if planned else run.next()
        [tasks] = run.plan() if planned else [[]]
        tubemq.delete_topic("t")
        tubemq.clock.advance(2)  # a broker removes a topic in more than a second
        tubemq.create_topic("t", partitions=1)
        new = [tubemq.send("t", b"new %d" % number).body for number in range(count)]
        if planned:
            with pytest.raises(PositionMovedError, match="Start the query again"):
                list(run.read(tasks))
        else:
            wait_until(lambda: (run.next(), len(stream.rows) == 10 + count)[1])
    stream.run()
    assert bodies(stream.rows)[0 if planned else 10 :] == new


@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize(("first", "last"), [("1:0", "1:0"), ("1:0", "1:1"), ("1:1", "1:1")])
def test_a_topic_is_created_anew_without_the_partition_of_the_last_message(
    start: Start, first: str, last: str, fail: bool
) -> None:
    """The query does not read it. Perhaps the first message was of it, too."""
    tubemq = start({"t": 2})
    stream = Stream(tubemq, assign={"t": ["1:0"]}, failOnDataLoss=str(fail).lower(), **SHORT)
    with stream.running() as run:
        for _ in range(2):
            for partition in (first, "1:0", last):
                fill(tubemq, "t", 1 if partition == last else 5, partition=partition)
            run.next()
        tubemq.delete_topic("t")
        tubemq.clock.advance(2)
        tubemq.create_topic("t", partitions=1)
        new = fill(tubemq, "t", 20)
        tubemq.clock.advance(60)  # until then the master lists what was there before
        with pytest.raises(DataLossError) if fail else nullcontext():
            run.next()
    if not fail:
        stream.run()
        assert bodies(stream.rows)[-20:] == new


@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize("left", [0, 4])
def test_a_topic_is_created_anew_before_the_query_has_read_of_it(start: Start, fail: bool, left: int) -> None:
    """The query began where retention had moved the store's begin to, and new messages reach behind it."""
    tubemq = start({"t": 1})
    fill(tubemq, "t", 10)
    tubemq.expire("t", keep=left)
    stream = Stream(tubemq, "t", failOnDataLoss=str(fail).lower(), **SHORT)
    with stream.running() as run:
        run.find_next()
    tubemq.delete_topic("t")
    tubemq.clock.advance(2)
    tubemq.create_topic("t", partitions=1)
    new = fill(tubemq, "t", 15)
    if fail:
        with pytest.raises((DataLossError, PositionMovedError)):
            stream.run()
    else:
        stream.run()
        assert bodies(stream.rows) == new


def test_a_topic_that_the_query_never_had_is_an_error(start: Start) -> None:
    tubemq = start({"t": 1})
    stream = Stream(tubemq, "t", failOnDataLoss="false")
    with pytest.raises(ConfigError, match="no topic u"):
        stream.run(subscribe="t,u")
    stream.run()
    with pytest.raises(ConfigError, match="no topic u"):
        stream.run(subscribe="t,u")


@pytest.mark.parametrize("fail", [True, False])
def test_a_topic_that_the_options_no_longer_name_is_a_loss(
    start: Start, fail: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The checkpoint has its positions, and nobody would read its messages. If they name it again, the query goes on
    where it was."""
    tubemq = start({"t": 1, "other": 1})
    fill(tubemq, "t", 10), fill(tubemq, "other", 10)
    stream = Stream(tubemq, "t", "other")
    stream.run()
    fill(tubemq, "other", 5)
    given = {"subscribe": "other", "failOnDataLoss": str(fail).lower()}
    if fail:
        with pytest.raises(
            ConfigError, match=r"the checkpoint has positions of partitions of t that .*'failOnDataLoss'"
        ):
            stream.run(**given)
        return
    stream.run(**given)
    assert len(stream.rows) == 25
    assert len(warnings_of(caplog, "t is not read any more")) == 1
    assert stream.checkpoint.offset().left == {FIRST: 10 * UNIT}
    fill(tubemq, "t", 5)
    stream.run()
    assert sorted(bodies(stream.rows)) == sorted(stored(tubemq, "t", "other"))
    assert stream.checkpoint.offset().left == {}


@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize("first", [True, False], ids=["first batch", "later batch"])
def test_a_repeated_batch_leaves_alone_what_has_left_the_query(
    start: Start, fail: bool, first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker of a topic that an earlier run left out is down, and the topic is removed later."""
    tubemq = start(brokers=2)
    for name in ("t", "other"):
        tubemq.create_topic(name, 1)
    fill(tubemq, "t", 3, "1:0"), fill(tubemq, "other", 5, "2:0")
    both, one = {"t": ["1:0"], "other": ["2:0"]}, {"t": ["1:0"]}
    stream = Stream(tubemq, assign=both, metadataIntervalMs=100, **SHORT)
    if first:
        with stream.running() as run:
            assert run.find_next()
    else:
        stream.run()
        fill(tubemq, "t", 2, "1:0")
    with stream.running(assign=one, failOnDataLoss="false") as run:  # its batch has no other end for the topic
        if first:
            run.next()
            fill(tubemq, "t", 2, "1:0")
        assert run.find_next()
        assert set(stream.checkpoint.positions(stream.checkpoint.committed)) == {FIRST}
    tubemq.stop_broker(2)
    with stream.running(assign=one, failOnDataLoss=str(fail).lower()) as run:
        assert len(run.next() or []) == 2
        tubemq.delete_topic("other")
        fill(tubemq, "t", 1, "1:0")
        wait_until(lambda: bool(run.next()))
        assert {Partition(broker, topic, number) for _, topic, broker, number in tubemq.claims()} == {FIRST}
    assert warnings_of(caplog, "does not have the partition") == []


def test_a_partition_that_only_the_unfinished_batch_has_is_not_reported_when_it_is_left_out(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    tubemq = start({"t": 1, "other": 1})
    fill(tubemq, "t", 3), fill(tubemq, "other", 5)
    tubemq.expire("other", 2)
    stream = Stream(tubemq, "t", failOnDataLoss="false")
    stream.run()
    fill(tubemq, "t", 1)
    with stream.running(subscribe="t,other") as run:
        assert run.find_next()
    with stream.running() as run:
        assert len(run.next() or []) == 1
    assert warnings_of(caplog, "is not read any more")
    assert warnings_of(caplog, "[data-loss]") == []


# Brokers and partitions


def take_out_broker(tubemq: EmbeddedTubeMQ) -> None:
    """An administrator removes broker 2 from the cluster."""

    def remove() -> None:
        for layouts in tubemq._catalog.topics.values():
            del layouts[2]
        del tubemq._catalog.brokers[2]

    tubemq.crash_broker(2)
    tubemq._on_thread(remove)


def take_out_partition(tubemq: EmbeddedTubeMQ) -> None:
    """An administrator gives the topic one partition less on broker 2."""
    layouts = tubemq._catalog.topics["t"]
    tubemq._on_thread(lambda: layouts.update({2: replace(layouts[2], partitions=1)}))


OUTS: dict[str, tuple[Callable[[EmbeddedTubeMQ], None], set[Partition]]] = {
    "broker": (take_out_broker, {Partition(2, "t", 0), Partition(2, "t", 1)}),
    "partition": (take_out_partition, {Partition(2, "t", 1)}),
}


@pytest.mark.parametrize("running", [True, False], ids=["running", "restarted"])
@pytest.mark.parametrize("fail", [True, False], ids=["fail", "go on"])
@pytest.mark.parametrize(("take_out", "gone"), OUTS.values(), ids=OUTS)
def test_a_removed_broker_or_partition_is_a_loss(
    start: Start,
    take_out: Callable[[EmbeddedTubeMQ], None],
    gone: set[Partition],
    fail: bool,
    running: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The error names the position reached; or one warning does, and the query goes on with the rest."""
    tubemq = start({"t": 2}, brokers=2)
    fill(tubemq, "t", 40)
    stream = Stream(
        tubemq, "t", failOnDataLoss=str(fail).lower(), metadataIntervalMs=100, **(UNTIL_UNLISTED if running else SHORT)
    )
    with ExitStack() as stack:
        run = stack.enter_context(stream.running())
        run.next()
        if not running:
            stack.close()
        take_out(tubemq)
        fill(tubemq, "t", 6, "1:0")
        run = run if running else stack.enter_context(stream.running())
        if fail:
            with pytest.raises(
                DataLossError, match=r"2:t:[01]: the cluster does not have the partition any more"
            ) as found:
                wait_until(lambda: (run.next(), False)[1])
            assert found.value.asked == 20 * UNIT
            assert Partition(found.value.broker_id, found.value.topic, found.value.partition) in gone
            return
        wait_until(lambda: (run.next(), warnings_of(caplog, "does not have the partition"))[1])
        fill(tubemq, "t", 6, "1:1")
        wait_until(lambda: (run.next(), len(stream.rows) == 52)[1])
    assert where(stream.rows[40:]) == {FIRST, Partition(1, "t", 1)}
    told = warnings_of(caplog, "does not have the partition")
    assert [sum(text.startswith(f"[data-loss] {partition}:") for text in told) for partition in gone] == [1] * len(gone)
    assert len(told) == len(gone)
