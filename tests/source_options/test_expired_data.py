# SPDX-License-Identifier: Apache-2.0
"""Retention removes data files before their index: no message is missed in silence, wherever a read stands then."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import pytest

from tests import messages
from tests.clocks import UseTimings
from tests.clusters.embedded import EmbeddedCluster
from tests.source_options.conftest import Start
from tests.without_spark.source import UNIT, Row, Stream, bodies, fill, read_batch, stored
from tubemq_spark.errors import DataLossError, PositionMovedError
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.testing import EmbeddedTubeMQ, ServerConfig

pytestmark = pytest.mark.option("failOnDataLoss")

COUNT = 240
CONFIG = ServerConfig(transfer_size=1000)  # about 15 messages with one fetch
Ranges = list[tuple[str, int, int]]
RANGE = re.compile(r"(\d+:\w+:\d+): retention removed the data of \[(\d+), (\d+)\)")


@pytest.fixture(params=[1, 3])
def tubemq(start: Start, request: pytest.FixtureRequest) -> EmbeddedTubeMQ:
    """A topic in one store, with so many partitions."""
    cluster = start({"t": request.param}, config=CONFIG)
    for number in range(COUNT):
        cluster.send("t", b"%d" % number, f"1:{number % request.param}", msg_type="even" if number % 2 else "odd")
    cluster.flush("t")
    return cluster


def keys(rows: list[Row]) -> list[tuple[str, bytes]]:
    return [(f"{row['broker_id']}:{row['topic']}:{row['partition']}", row["value"]) for row in rows]


def reported(caplog: pytest.LogCaptureFixture) -> Ranges:
    return [(one[1], int(one[2]), int(one[3])) for record in caplog.records for one in RANGE.finditer(record.message)]


def unreported(planned: Mapping[tuple[str, bytes], int], rows: list[Row], ranges: Ranges) -> list[tuple[str, bytes]]:
    """The messages of `planned`, by their positions, that are neither rows nor in a range of their partition."""
    missing = planned.keys() - set(keys(rows))
    return [
        one
        for one in missing
        if not any(partition == one[0] and begin <= planned[one] < end for partition, begin, end in ranges)
    ]


def positions(tubemq: EmbeddedTubeMQ) -> dict[tuple[str, bytes], int]:
    return {(str(Partition(1, "t", one.partition)), one.body): one.offset for one in tubemq.messages("t")}


def partitions_of(tubemq: EmbeddedTubeMQ) -> int:
    return len({message.partition for message in tubemq.messages("t")})


MOMENTS = [1, 2, 3, 5, 8]  # the fetch of a task before which the files go: with 1 partition, all of 19 are of one task
KEEPS = [0, 10, 100, 200]


@pytest.mark.parametrize("filters", [None, "even"])
@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("moment", MOMENTS)
def test_files_go_while_a_task_reads(
    tubemq: EmbeddedTubeMQ, moment: int, keep: int, filters: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    planned = positions(tubemq)
    if filters:
        planned = {one: at for one, at in planned.items() if int(one[1]) % 2}
    expire = partial(tubemq.expire, "t", keep=keep, data_only=True)
    with tubemq.on("get_message", client="_p0_", nth=moment, times=1).run(expire) as gone:
        rows = read_batch(tubemq, "t", failOnDataLoss="false", filters=filters)
    assert gone.fired
    assert len(set(keys(rows))) == len(rows)
    assert unreported(planned, rows, reported(caplog)) == []
    if len(rows) == len(planned) and len({partition for partition, _ in planned}) == 1 and not filters:
        assert reported(caplog) == []  # each entry gave its message


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_read_that_misses_messages_fails(tubemq: EmbeddedTubeMQ, moment: int, keep: int) -> None:
    planned = positions(tubemq)
    expire = partial(tubemq.expire, "t", keep=keep, data_only=True)
    rows: list[Row] = []
    with tubemq.on("get_message", client="_p0_", nth=moment, times=1).run(expire), suppress(DataLossError):
        rows = read_batch(tubemq, "t")
    assert len(rows) in (0, len(planned))


@pytest.mark.parametrize("filters", [None, "even"])
@pytest.mark.parametrize("nth", [1, 2])
def test_files_go_while_a_task_looks_for_the_end_of_its_range(
    tubemq: EmbeddedTubeMQ, nth: int, filters: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The message at the end shows which messages of the last fetch belong to the range, and is gone now."""
    end = 40 * UNIT
    planned = {one: at for one, at in positions(tubemq).items() if at < end and (not filters or int(one[1]) % 2)}
    partitions = {partition.removeprefix("1:t:") for partition, _ in planned}
    ends = {"t": {f"1:{number}": end for number in partitions}}
    expire = partial(tubemq.expire, "t", keep=100, data_only=True)
    with tubemq.on("partition_register", client="_p0_", nth=nth, times=1).run(expire) as gone:
        rows = read_batch(tubemq, "t", failOnDataLoss="false", filters=filters, endingOffsets=ends)
    assert gone.fired
    assert set(keys(rows)) <= planned.keys()
    assert len(set(keys(rows))) == len(rows)
    assert unreported(planned, rows, reported(caplog)) == []


@pytest.mark.parametrize("moment", range(1, 20))  # first those of the planner
def test_the_broker_starts_again_while_a_task_looks_for_what_was_removed(
    tubemq: EmbeddedTubeMQ, moment: int, use_timings: UseTimings
) -> None:
    """No broker knows the task's claim any more, and no other attempt has it: the task claims the partition again."""
    use_timings(claim_proof_max_age=0.0)

    def restart() -> None:
        tubemq.crash_broker(1)
        tubemq.start_broker(1)

    with tubemq.on("partition_register", client="_look_", nth=moment, times=1).run(restart):
        rows = read_batch(tubemq, "t", endingOffsets={"t": {f"1:{n}": 40 * UNIT for n in range(partitions_of(tubemq))}})
    assert sorted(bodies(rows)) == sorted(stored(tubemq, "t")[:40])


@pytest.mark.parametrize("fetches", [1, 2])
@pytest.mark.parametrize("late", [1, 2, 3])
@pytest.mark.parametrize("moment", range(2, 9))
def test_files_go_while_a_late_fetch_has_moved_the_cursor(
    tubemq: EmbeddedTubeMQ, moment: int, late: int, fetches: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Two readings differ then for two reasons. A loss that explains one of them must not hide the other."""
    planned = positions(tubemq)
    expire = partial(tubemq.expire, "t", keep=COUNT - 6, data_only=True)
    rows: list[Row] = []
    with (
        tubemq.on("get_message", client="_p0_", nth=late, times=1).end_late(fetches),
        tubemq.on("partition_register", client="_p0_", nth=moment, times=1).run(expire),
        suppress(PositionMovedError),
    ):
        rows = read_batch(tubemq, "t", failOnDataLoss="false")
        assert unreported(planned, rows, reported(caplog)) == []
    assert len(set(keys(rows))) == len(rows)


def test_an_error_names_the_range(tubemq: EmbeddedTubeMQ) -> None:
    expire = partial(tubemq.expire, "t", keep=100, data_only=True)
    with (
        tubemq.on("get_message", client="_p0_", nth=1, times=1).run(expire),
        pytest.raises(
            DataLossError, match=r"^1:t:0: retention removed the data of \[0, 3920\), and not yet their index"
        ),
    ):
        read_batch(tubemq, "t")


@pytest.mark.parametrize("fail", [True, False])
def test_files_go_while_the_first_batch_of_a_stream_is_in_work(
    tubemq: EmbeddedTubeMQ, fail: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """No crash is taken for the cause, and the query goes on with what is left."""
    planned = positions(tubemq)
    stream = Stream(tubemq, "t", maxOffsetsPerTrigger=40, failOnDataLoss=str(fail).lower())
    expire = partial(tubemq.expire, "t", keep=100, data_only=True)
    with tubemq.on("get_message", client="_p0_", nth=2, times=1).run(expire):
        if fail:
            with pytest.raises(DataLossError) as caught:
                stream.run()
            assert caught.value.asked <= 40 * UNIT
            assert caught.value.offered == (COUNT - 100) * UNIT
        else:
            stream.run()
            fill(tubemq, "t", 5, "1:0")
            stream.run()
            assert len(set(keys(stream.rows))) == len(stream.rows)
            assert unreported(planned, stream.rows, reported(caplog)) == []
            assert len(stream.rows) >= 100 + 5


@pytest.mark.parametrize("keep", [100, 0])
@pytest.mark.parametrize("fail", [True, False])
def test_files_go_while_a_stream_stands_between_two_batches(
    tubemq: EmbeddedTubeMQ, fail: bool, keep: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if they are all that the store has."""
    stream = Stream(tubemq, "t", maxOffsetsPerTrigger=30, failOnDataLoss=str(fail).lower())
    with stream.running() as run:
        run.next()
        planned = positions(tubemq)
        tubemq.expire("t", keep=keep, data_only=True)
        if fail:
            with pytest.raises(DataLossError) as caught:
                run.next()
            assert (caught.value.asked, caught.value.offered) == (30 * UNIT, (COUNT - keep) * UNIT)
        else:
            while run.next() is not None:
                pass
            assert unreported(planned, stream.rows, reported(caplog)) == []
            assert min(begin for _, begin, _ in reported(caplog)) == 30 * UNIT
            assert len(stream.rows) == 30 + keep


# Starts


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize("place", [5 * UNIT, "group"])
def test_a_start_whose_data_expired_before_its_index(start: Start, streaming: bool, fail: bool, place: object) -> None:
    tubemq = start({"t": 1})
    fill(tubemq, "t", 50)
    tubemq.expire("t", keep=10, data_only=True)
    tubemq.move_group("reports", "t", 1, 0, 5 * UNIT)
    given: dict[str, Any] = {"tubemq_group": "reports", "failOnDataLoss": str(fail).lower()}
    given["startingOffsets"] = place if place == "group" else {"t": {"1:0": place}}
    with pytest.raises(DataLossError, match=r"\[140, 1120\).*failOnDataLoss") if fail else nullcontext():
        rows = Stream(tubemq, "t", **given).run()[0] if streaming else read_batch(tubemq, "t", **given)
        assert [row["offset"] // UNIT for row in rows] == list(range(40, 50))


@pytest.mark.parametrize(("partitions", "keep"), [(3, 10), (3, 0), (40, 10)])
def test_partitions_of_a_store_lose_their_data_together(start: Start, partitions: int, keep: int) -> None:
    tubemq = start({"t": partitions})
    fill(tubemq, "t", 60)
    first = {f"1:{number}": 52 * UNIT for number in range(partitions)} | {"1:0": 30 * UNIT, "1:1": 45 * UNIT}
    tubemq.expire("t", keep=keep, data_only=True)
    with pytest.raises(DataLossError) as caught:
        read_batch(tubemq, "t", startingOffsets={"t": first})
    assert (caught.value.partition, caught.value.asked, caught.value.offered) == (0, 30 * UNIT, (60 - keep) * UNIT)
    rows = read_batch(tubemq, "t", startingOffsets={"t": first}, failOnDataLoss="false")
    left = [one.body for one in tubemq.messages("t") if one.offset >= first[f"1:{one.partition}"]]
    assert sorted(bodies(rows)) == sorted(left)


@pytest.mark.parametrize("at", [0, 40, 41])
def test_a_start_with_data_or_where_the_index_begins_is_no_loss(start: Start, at: int) -> None:
    tubemq = start({"t": 1})
    fill(tubemq, "t", 50)
    tubemq.expire("t", keep=10, data_only=True)
    rows = read_batch(tubemq, "t", startingOffsets={"t": {"1:0": at * UNIT}})
    assert bodies(rows) == stored(tubemq, "t")[-(50 - max(at, 40)) :]


def test_an_undeliverable_message_at_the_start_is_no_loss(start: Start) -> None:
    tubemq = start({"t": 1})
    fill(tubemq, "t", 5)
    messages.send(
        EmbeddedCluster(tubemq, ServerConfig()), [(Partition(1, "t", 0), b"no attributes, but the flag")], flag=1
    )
    fill(tubemq, "t", 5)
    tubemq.flush("t")
    rows = read_batch(tubemq, "t", startingOffsets={"t": {"1:0": 5 * UNIT}})
    assert [row["offset"] // UNIT for row in rows] == list(range(6, 11))
