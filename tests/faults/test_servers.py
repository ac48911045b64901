# SPDX-License-Identifier: Apache-2.0
"""Servers that stop, crash, restart and fail over under a query or a sink, and the messages that they lose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.clocks import SkippingClock
from tests.clusters.embedded import EmbeddedCluster
from tests.faults.engine import (
    GROUP,
    PATIENT,
    SMALL_FETCHES,
    TOPICS,
    Query,
    bodies,
    counts,
    fill,
    stored,
    write,
)
from tests.faults.kinds import UNHURRIED
from tests.sending import connect
from tubemq_spark.client import forget_servers
from tubemq_spark.errors import (
    AuthError,
    DataLossError,
    FencedError,
    PartitionOccupiedError,
    PositionMovedError,
    ServerError,
    TransportError,
)
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.source import input_partition as partition_module
from tubemq_spark.testing import EmbeddedTubeMQ, ServerConfig

Event = Callable[[EmbeddedTubeMQ], None]
LIMIT = '[{"type":0,"rule":[{"start":"00:00","end":"24:00","dltInM":21,"limitInM":1,"freqInMs":200}]}]'
ROWS = bodies(300)
SOME_TRIES = 3.0  # seconds to retry for, lest a slow machine leaves time for the first try alone
CALM: dict[str, Any] = {"retry_for": PATIENT, "rpc_timeout": UNHURRIED}  # what goes away is noticed at once


@pytest.fixture
def tubemq() -> Iterator[EmbeddedTubeMQ]:
    """Two masters and one broker."""
    with EmbeddedTubeMQ(topics=TOPICS, masters=2, config=SMALL_FETCHES) as cluster:
        yield cluster
        cluster.clear_faults()
        forget_servers()


def crash(tubemq: EmbeddedTubeMQ) -> None:
    tubemq.crash_broker(1)
    tubemq.start_broker(1)


def stop(tubemq: EmbeddedTubeMQ) -> None:
    tubemq.stop_broker(1)
    tubemq.start_broker(1)


def flush_and_crash(tubemq: EmbeddedTubeMQ) -> None:
    for topic in TOPICS:
        tubemq.flush(topic)
    crash(tubemq)


def restart_master(tubemq: EmbeddedTubeMQ) -> None:
    tubemq.stop_master(1)
    tubemq.start_master(1)


def switch_master(tubemq: EmbeddedTubeMQ) -> None:
    tubemq.switch_master()


def switch_to_a_new_master(tubemq: EmbeddedTubeMQ) -> None:
    """One whose lists are empty for the rest of the test."""
    tubemq.switch_master(lists_fill_after=60.0)


EVENTS = [crash, stop, restart_master, switch_master]
EARLY_AND_LATE = [
    ("consumer_register_v2", 1),
    ("get_partition_meta", 1),
    ("get_partition_meta", 2),
    ("partition_register", 1),
    ("partition_register", 5),
    ("partition_unregister", 1),
    ("partition_unregister", 3),
    ("get_message", 1),
    ("get_message", 3),
    ("commit_offset", 1),
    ("commit_offset", 3),
]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
@pytest.mark.parametrize(("method", "nth"), EARLY_AND_LATE)
def test_a_query_continues_when_servers_restart(
    tubemq: EmbeddedTubeMQ, method: str, nth: int, event: Event, after: bool
) -> None:
    fill(tubemq)
    query = Query(tubemq, **CALM)
    with tubemq.on(method, nth=nth, times=1).run(lambda: event(tubemq), after=after) as fault:
        query.run()
    assert fault.fired == 1
    assert query.rows == stored(tubemq)
    for partition, end in query.ends.items():
        assert tubemq.group_offset(GROUP, partition.topic, partition.broker_id, partition.partition_id) == end


def test_short_lists_of_a_new_master_remove_no_partition(tubemq: EmbeddedTubeMQ) -> None:
    fill(tubemq)
    query = Query(tubemq, **CALM)
    query.planned = lambda: switch_to_a_new_master(tubemq)
    query.run()
    assert query.rows == stored(tubemq)


def test_a_read_task_fails_if_its_broker_does_not_come_back(tubemq: EmbeddedTubeMQ) -> None:
    fill(tubemq)
    query = Query(tubemq, retry_for=SOME_TRIES)
    with (
        tubemq.on("get_message", client="_p", nth=3, times=1).run(lambda: tubemq.crash_broker(1)) as fault,
        pytest.raises(TransportError, match=r"^1:one:0 at broker 1 at .* cannot connect to .* Connection refused"),
    ):
        query.run()
    assert fault.fired == 1
    tubemq.start_broker(1)
    query.be_patient()
    query.run()
    assert query.rows == stored(tubemq)


def test_a_query_does_not_start_without_a_master(tubemq: EmbeddedTubeMQ) -> None:
    fill(tubemq)
    query = Query(tubemq)
    for number in (1, 2):
        tubemq.stop_master(number)
    with pytest.raises(
        TransportError, match=r"^no master answered: .*refused.*; .*refused.* Check option 'tubemq.master'"
    ):
        query.run()
    for number in (1, 2):
        tubemq.start_master(number)
    query.be_patient()
    query.run()
    assert query.rows == stored(tubemq)


# Messages that are gone


@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize("refilled", [False, True], ids=["shorter", "other messages there"])
def test_a_crash_that_loses_messages_of_a_planned_batch_fails_the_query(
    tubemq: EmbeddedTubeMQ, nth: int, refilled: bool
) -> None:
    """The run fails because of the loss, and so does each later run."""
    fill(tubemq, 90)
    fill(tubemq, 90, flush=False)
    query = Query(tubemq, "one", **CALM)

    def lose() -> None:
        crash(tubemq)
        if refilled:
            fill(tubemq, 60, flush=False)

    with (
        tubemq.on("get_message", client="_p", nth=nth, times=1).run(lose) as fault,
        pytest.raises(
            DataLossError,
            match=r"^1:one:0: messages of the range \[0, 1680\) are lost: the store lost its tail, ",
        ) as lost,
    ):
        query.run()
    assert fault.fired == 1
    offered = (30 + (20 if refilled else 0)) * UNIT
    assert (lost.value.topic, lost.value.broker_id, lost.value.partition) == ("one", 1, 0)
    assert (lost.value.asked, lost.value.offered) == (60 * UNIT, offered)
    assert not query.rows
    with pytest.raises(DataLossError) as again:
        query.run()
    assert str(again.value) == str(lost.value)


@pytest.mark.thorough  # tests/source/test_truncation_check.py proves it, too
def test_a_crash_that_loses_messages_already_read_fails_the_query(tubemq: EmbeddedTubeMQ) -> None:
    fill(tubemq, 90)
    query = Query(tubemq, "one", **CALM)
    query.run()
    fill(tubemq, 30, flush=False)
    query.run()
    before = {partition: list(rows) for partition, rows in query.rows.items()}
    crash(tubemq)
    for _ in range(2):
        with pytest.raises(
            DataLossError, match=r"^1:one:0: the store ends at 840, but the query has read up to 1120: "
        ) as lost:
            query.run()
        assert (lost.value.asked, lost.value.offered) == (40 * UNIT, 30 * UNIT)
    assert query.rows == before


def test_reused_positions_are_detected_after_a_crash(tubemq: EmbeddedTubeMQ, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker crashes when half of the range is delivered. Others fill the store before the reader returns."""
    monkeypatch.setattr(partition_module, "ROWS", 20)
    fill(tubemq, 90)
    fill(tubemq, 180, flush=False)
    query = Query(tubemq, "one", **CALM)
    given: list[object] = []

    def lose() -> None:
        given.append(None)
        if len(given) == 2:
            crash(tubemq)
            fill(tubemq, 210, flush=False)

    query.given = lose
    with pytest.raises(
        DataLossError, match=r"the store lost what was read in .* and uses the positions for other"
    ) as lost:
        query.run()
    assert lost.value.asked > lost.value.offered >= 30 * UNIT
    assert not query.rows


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("nth", [1, 3, 5])
@pytest.mark.parametrize("topic", ["one", "pair"])
def test_retention_in_the_middle_of_a_range(tubemq: EmbeddedTubeMQ, topic: str, nth: int, after: bool) -> None:
    fill(tubemq)
    query = Query(tubemq, topic, **CALM)
    with (
        tubemq.on("get_message", client="_p", nth=nth, times=1).run(
            lambda: tubemq.expire(topic, keep=10), after=after
        ) as fault,
        pytest.raises(
            DataLossError,
            match=rf"^1:{topic}:0: messages of the range .* are lost: retention removed \[0, ",
        ) as lost,
    ):
        query.run()
    assert fault.fired == 1
    entries = 80 if topic == "one" else 160
    assert (lost.value.asked, lost.value.offered) == (0, (entries - 10) * UNIT)
    assert not query.rows
    with pytest.raises(DataLossError) as again:
        query.run()
    assert (again.value.asked, again.value.offered) == (0, (entries - 10) * UNIT)


def test_retention_of_messages_already_read_does_no_harm(tubemq: EmbeddedTubeMQ) -> None:
    fill(tubemq)
    query = Query(tubemq, **CALM)
    query.run()
    whole = stored(tubemq)
    for topic in TOPICS:
        tubemq.expire(topic)
    query.run()
    assert query.rows == whole
    fill(tubemq, 30)
    query.run()
    assert query.rows == {partition: rows + stored(tubemq)[partition] for partition, rows in whole.items()}


# Groups and claims


def test_a_reader_fails_if_its_claim_expired(tubemq: EmbeddedTubeMQ) -> None:
    fill(tubemq)
    query = Query(tubemq, **CALM)
    with (
        tubemq.on("get_message", client="_p", nth=3, times=1).run(lambda: tubemq.clock.advance(40)) as fault,
        pytest.raises(FencedError, match=r"^1:one:0 at .* does not hold the partition any more .411: UnRegistered"),
    ):
        query.run()
    assert fault.fired == 1
    query.run()
    assert query.rows == stored(tubemq)


def test_a_driver_acquires_expired_claims_again(tubemq: EmbeddedTubeMQ) -> None:
    """It also joins the group again, because the master has forgotten it, too."""
    fill(tubemq)
    query = Query(tubemq, **CALM)
    query.planned = lambda: tubemq.clock.advance(40)
    with tubemq.on("consumer_register_v2").count() as registers:
        query.run()
    assert registers.fired == 2
    assert query.rows == stored(tubemq)


def test_a_reader_detects_that_its_group_was_removed(tubemq: EmbeddedTubeMQ) -> None:
    fill(tubemq)
    query = Query(tubemq, **CALM)
    with (
        tubemq.on("get_message", client="_p", nth=3, times=1).run(lambda: tubemq.remove_group(GROUP)) as fault,
        pytest.raises(PositionMovedError, match=r"^1:one:0: the group's position was moved while \[0, 2240\) was read"),
    ):
        query.run()
    assert fault.fired == 1
    query.run()
    assert query.rows == stored(tubemq)


def test_a_second_query_of_the_group_learns_who_holds_the_partitions(tubemq: EmbeddedTubeMQ) -> None:
    fill(tubemq)
    query, rival = Query(tubemq), Query(tubemq)
    told: list[str] = []

    def compete() -> None:
        if told:
            return
        with pytest.raises(
            PartitionOccupiedError, match=r"another consumer of group readers holds the partition"
        ) as caught:
            rival.run()
        told.append(caught.value.holder)

    query.given = compete
    query.run()
    assert told[0].startswith("spark_")
    assert query.rows == stored(tubemq)
    rival.be_patient()
    rival.run()
    assert rival.rows == stored(tubemq)


def test_a_query_fails_if_its_group_may_not_read(tubemq: EmbeddedTubeMQ) -> None:
    fill(tubemq)
    tubemq.authorize("one", "others")
    query = Query(tubemq)
    with pytest.raises(AuthError, match=r"450 CONSUME_GROUP_FORBIDDEN: .*; authorise the group for the topic on the"):
        query.run()
    tubemq.authorize("one", GROUP)
    query.run()
    assert query.rows == stored(tubemq)


def test_a_query_fails_if_its_group_is_blacklisted_later(tubemq: EmbeddedTubeMQ) -> None:
    """If the topic requires authorization, the group's members may not return."""
    fill(tubemq)
    tubemq.authorize("one", GROUP)
    query = Query(tubemq, **CALM)
    query.run()
    tubemq.revoke("one", GROUP)
    with pytest.raises(AuthError, match=r"450 CONSUME_GROUP_FORBIDDEN: "):
        query.run()
    assert query.rows == stored(tubemq)


def test_a_reader_waits_when_the_broker_limits_its_rate() -> None:
    """The broker replies 452 and names the wait; the reader delivers every message."""
    calls = []
    for rules in ([], [LIMIT]):
        with EmbeddedTubeMQ(topics=TOPICS) as tubemq:
            for number in range(1500):
                tubemq.send("one", b"%d " % number + bytes(1000))
            tubemq.flush("one")
            for rule in rules:
                tubemq.set_flow_rule(rule)
            query = Query(tubemq, "one", clock=SkippingClock(tubemq.clock.advance), **CALM)
            with tubemq.on("get_message").count() as fetches:
                query.run()
            assert query.rows == stored(tubemq, "one")
            calls.append(fetches.fired)
            forget_servers()
    assert calls[1] > calls[0], "nothing was limited"


def test_a_query_fails_if_its_topic_is_deleted(tubemq: EmbeddedTubeMQ) -> None:
    fill(tubemq)
    query = Query(tubemq, "one")
    with (
        tubemq.on("get_message", client="_p", nth=3, times=1).run(lambda: tubemq.delete_topic("one")) as fault,
        pytest.raises(
            ServerError, match=r"^1:one:0 at .*: nothing came for .* 403 FORBIDDEN: topicName one not existed"
        ),
    ):
        query.run()
    assert fault.fired == 1
    assert not query.rows


# Writing


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("event", [flush_and_crash, stop], ids=lambda event: event.__name__)
@pytest.mark.parametrize("nth", [1, 150, 300])
def test_a_broker_restarts_under_a_sink(tubemq: EmbeddedTubeMQ, nth: int, event: Event, after: bool) -> None:
    """Only the row that was stored and not acknowledged is stored twice."""
    with tubemq.on("send_message", nth=nth, times=1).run(lambda: event(tubemq), after=after) as fault:
        assert write(tubemq, ROWS, max_in_flight=1, **CALM) == len(ROWS)
    assert fault.fired == 1
    assert counts(tubemq) == Counter(ROWS) + Counter([ROWS[nth - 1]] if after else [])


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("event", [flush_and_crash, stop], ids=lambda event: event.__name__)
def test_a_broker_restarts_under_a_sink_with_many_sends_in_flight(
    tubemq: EmbeddedTubeMQ, event: Event, after: bool
) -> None:
    """Rows that the broker stored without an acknowledgement are stored twice; later rows are not."""
    with tubemq.on("send_message", nth=100, times=1).run(lambda: event(tubemq), after=after) as fault:
        assert write(tubemq, ROWS, **CALM) == len(ROWS)
    assert fault.fired == 1
    twice = [row for row, times in counts(tubemq).items() if times > 1]
    assert set(twice) <= set(ROWS[: 100 if after else 99])
    assert not after or ROWS[99] in twice
    assert counts(tubemq) == Counter(ROWS) + Counter(twice)


def test_a_crash_loses_rows_that_only_the_brokers_memory_had(tubemq: EmbeddedTubeMQ) -> None:
    """TubeMQ acknowledges a message before it is in a file, and no producer can detect that."""
    with tubemq.on("send_message", nth=150, times=1).run(lambda: crash(tubemq)) as fault:
        assert write(tubemq, ROWS, max_in_flight=1, **CALM) == len(ROWS)
    assert fault.fired == 1
    assert counts(tubemq) == Counter(ROWS[149:])


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("event", [restart_master, switch_master], ids=lambda event: event.__name__)
@pytest.mark.parametrize("method", ["producer_register", "producer_heartbeat", "send_message"])
def test_a_sink_continues_when_the_masters_change_over(
    tubemq: EmbeddedTubeMQ, method: str, event: Event, after: bool
) -> None:
    with tubemq.on(method, times=1).run(lambda: event(tubemq), after=after) as fault:
        assert write(tubemq, ROWS, **CALM) == len(ROWS)
    assert fault.fired == 1
    assert counts(tubemq) == Counter(ROWS)


@pytest.mark.parametrize("end", [EmbeddedTubeMQ.crash_broker, EmbeddedTubeMQ.stop_broker])
def test_rows_go_to_the_other_broker_while_one_is_down(end: Callable[[EmbeddedTubeMQ, int], None]) -> None:
    with EmbeddedTubeMQ(topics=TOPICS, brokers=2) as tubemq:
        connect(EmbeddedCluster(tubemq, ServerConfig()))  # else all rows may go to the other one from the beginning

        def go() -> None:
            tubemq.flush("pair")
            end(tubemq, 1)

        with tubemq.on("send_message", broker=1, nth=20, times=1).run(go) as fault:
            assert write(tubemq, ROWS, max_in_flight=1, **CALM) == len(ROWS)
        assert fault.fired == 1
        assert counts(tubemq) == Counter(ROWS)
        assert Counter(message.broker_id for message in tubemq.messages("pair"))[1] == 19
        forget_servers()


def test_a_write_task_fails_if_its_broker_does_not_come_back(tubemq: EmbeddedTubeMQ) -> None:
    with (
        tubemq.on("send_message", nth=150, times=1).run(lambda: tubemq.stop_broker(1)) as fault,
        pytest.raises(TransportError, match=r"row 149 of the task .* cannot connect to .*Connection refused") as caught,
    ):
        write(tubemq, ROWS, max_in_flight=1, retry_for=SOME_TRIES)
    assert fault.fired == 1
    assert "for topic pair was not acknowledged within" in str(caught.value)
    tubemq.start_broker(1)
    assert counts(tubemq) == Counter(ROWS[:149])
    assert write(tubemq, ROWS, **CALM) == len(ROWS)
    assert counts(tubemq) == Counter(ROWS) + Counter(ROWS[:149])


def test_a_task_fails_if_its_topic_is_closed_for_writing(tubemq: EmbeddedTubeMQ) -> None:
    tubemq.close_topic("pair", subscribe=False)
    with pytest.raises(
        TransportError, match=r"^row 0 of the task cannot be sent, .* topic pair .*, which runs\. .*open"
    ):
        write(tubemq, ROWS, retry_for=SOME_TRIES, clock=SkippingClock())
    tubemq.open_topic("pair")
    assert write(tubemq, ROWS) == len(ROWS)
    assert counts(tubemq) == Counter(ROWS)


def test_a_task_fails_if_its_topic_is_deleted(tubemq: EmbeddedTubeMQ) -> None:
    with (
        tubemq.on("send_message", nth=50, times=1).run(lambda: tubemq.delete_topic("pair")) as fault,
        pytest.raises(
            ServerError, match=r"^row 49 of the task for topic pair was not acknowledged .*403 FORBIDDEN"
        ) as e,
    ):
        write(tubemq, ROWS, max_in_flight=1)
    assert fault.fired == 1
    assert e.value.code == 403
