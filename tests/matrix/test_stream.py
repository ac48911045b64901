"""Queries from one topic into another: triggers, stops, restarts and limits."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

from tests.matrix.trying import HAS_READ_LIMITS, Tried

ENTRY = 28  # bytes of a message in the index, by which positions count


@pytest.fixture(autouse=True)
def _topics(tried: Tried) -> None:
    tried.tubemq.create_topic("sole", partitions=1)
    tried.tubemq.create_topic("shared", partitions=3)
    tried.tubemq.create_topic("out")


def texts(begin: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(begin, end)]


@pytest.mark.quick
def test_available_now_again_and_again(tried: Tried) -> None:
    sent = tried.send("sole", *texts(0, 40)) + tried.send("shared", *texts(100, 130))
    tried.run_to_the_end(tried.stream("sole,shared"), "out")
    assert tried.bodies("out") == sent

    tried.run_to_the_end(tried.stream("sole,shared"), "out")
    assert tried.bodies("out") == sent

    sent += tried.send("sole", *texts(40, 60)) + tried.send("shared", *texts(130, 150))
    tried.run_to_the_end(tried.stream("sole,shared"), "out")
    assert tried.bodies("out") == sent
    last = tried.numbers("commits")[-1]
    assert tried.end(last) == {"shared": everywhere(50), "sole": {"1:0": 60 * ENTRY}}
    # Before 4.2 Spark tells the end of such a run to the next one.
    assert group(tried) == everywhere(50 if HAS_READ_LIMITS else 30)


@pytest.mark.parametrize("trigger", [{}, {"processingTime": "200 milliseconds"}], ids=["default", "processingTime"])
def test_stopped_and_started(tried: Tried, trigger: dict[str, str]) -> None:
    """Each message comes once, and the group follows the committed micro-batches."""
    sent: Counter[bytes] = Counter()
    for run in (100, 200, 300):
        query = tried.copy(tried.stream("shared"), "out", **trigger)
        for end in (run - 50, run):
            sent += tried.send("shared", *texts(end - 50, end))
            tried.wait_for_copies("out", sent)
        # Its last micro-batch is committed: the group stands there, and no further.
        tried.wait_for(lambda: group(tried) == everywhere(run), f"the group at message {run}")  # noqa: B023
        query.stop()
        assert query.exception() is None
        assert group(tried) == everywhere(run)


def group(tried: Tried) -> dict[str, int | None]:
    """Where it stands in the topic `shared`."""
    return {f"1:{number}": tried.tubemq.group_offset("matrix", "shared", 1, number) for number in range(3)}


def everywhere(count: int) -> dict[str, int]:
    """All partitions of the topic `shared` behind so many messages: they share their store."""
    return dict.fromkeys(("1:0", "1:1", "1:2"), count * ENTRY)


@pytest.mark.parametrize("batch_id", [0, pytest.param(1, marks=pytest.mark.quick)])
def test_a_batch_that_was_logged_but_not_committed_is_read_again(tried: Tried, batch_id: int) -> None:
    """Exactly, although more came meanwhile."""
    once: Counter[bytes] = Counter()
    sent: Counter[bytes] = Counter()
    for run in range(batch_id + 1):
        once = tried.send("shared", *texts(50 * run, 50 * run + 40)) + tried.send("sole", *texts(900 + run, 901 + run))
        sent += once
        tried.run_to_the_end(tried.stream("sole,shared"), "out")
    assert tried.forget_commit() == batch_id
    logged = tried.end(batch_id)
    later = tried.send("shared", *texts(2000, 2030))

    query = tried.copy(tried.stream("sole,shared"), "out")
    tried.wait_for(lambda: tried.bodies("out") == sent + once + later, "the batch once more, and what came later")
    query.stop()
    assert tried.end(batch_id) == logged
    # A copy of the batch, and nothing beyond, was the first that the new run brought.
    assert tried.end(batch_id + 1)["shared"] == {key: at + 30 * ENTRY for key, at in logged["shared"].items()}


@pytest.mark.quick
@pytest.mark.skipif(HAS_READ_LIMITS, reason="this Spark has read limits")
@pytest.mark.parametrize(
    ("option", "value"), [("maxOffsetsPerTrigger", "30"), ("minOffsetsPerTrigger", "30"), ("maxTriggerDelay", "1m")]
)
def test_limits_need_a_later_spark(tried: Tried, option: str, value: str) -> None:
    with pytest.raises(AnalysisException, match=f"option '{option}' needs Spark 4.2 or later"):
        _ = tried.stream("sole", **{option: value}).schema


@pytest.mark.quick
@pytest.mark.skipif(not HAS_READ_LIMITS, reason="this Spark has no read limits")
def test_limits_hold(tried: Tried) -> None:
    """In each micro-batch, and nothing is left out."""
    sent = tried.send("sole", *texts(0, 60)) + tried.send("shared", *texts(100, 140))
    tried.run_to_the_end(tried.stream("sole,shared", maxOffsetsPerTrigger=30), "out")
    assert tried.bodies("out") == sent
    ends = [tried.end(number) for number in tried.numbers("commits")]
    # The three partitions share one store and thus one range.
    places = [(0, 0), *((end["sole"]["1:0"] // ENTRY, end["shared"]["1:0"] // ENTRY) for end in ends)]
    read = [sum(end) - sum(begin) for begin, end in pairwise(places)]
    assert sum(read) == 100
    assert max(read) <= 30
    assert len([count for count in read if count]) == 4


@pytest.mark.skipif(not HAS_READ_LIMITS, reason="this Spark has no read limits")
def test_a_limit_can_be_taken_from_a_running_checkpoint(tried: Tried) -> None:
    """A query with a limit that was stopped half-way goes on without one, in one micro-batch."""
    sent = tried.send("sole", *texts(0, 200))
    query = tried.copy(tried.stream("sole", maxOffsetsPerTrigger=10), "out", processingTime="1 hour")
    tried.wait_for(lambda: tried.numbers("commits"), "the first micro-batch")
    query.stop()
    assert tried.bodies("out") != sent
    batches = len(tried.numbers("offsets"))
    tried.run_to_the_end(tried.stream("sole"), "out")
    assert tried.bodies("out").keys() == sent.keys()
    assert len(tried.numbers("offsets")) <= batches + 1


def test_errors_of_the_driver_and_of_tasks(tried: Tried) -> None:
    with pytest.raises(StreamingQueryException, match=r"ConfigError: .*nowhere"):
        tried.run_to_the_end(tried.stream("nowhere", **{"tubemq.retry.maxElapsedMs": 100}), "out")

    tried.send("sole", b"a")
    frame = tried.stream("sole").selectExpr("CAST(NULL AS BINARY) AS value")
    with pytest.raises(StreamingQueryException, match="column 'value': it is null"):
        tried.run_to_the_end(frame, "out")
