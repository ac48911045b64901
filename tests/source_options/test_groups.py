# SPDX-License-Identifier: Apache-2.0
"""`commitOffsets`, `tubemq.claim.timeoutMs`, and other members of the group."""

from __future__ import annotations

import pytest

from tests.clocks import SkippingClock
from tests.clusters.embedded import EmbeddedCluster
from tests.source_options.conftest import Start
from tests.spark.rivals import foreign_claim
from tests.without_spark.source import GROUP, UNIT, Stream, bodies, fill, read_batch, stored
from tubemq_spark.errors import ConfigError, PartitionOccupiedError
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.testing import EmbeddedTubeMQ, ServerConfig

pytestmark = pytest.mark.timeout(40)  # seconds: by default, the client waits longer than that for a partition


def stands(tubemq: EmbeddedTubeMQ, topic: str = "t") -> int | None:
    return tubemq.group_offset(GROUP, topic, 1, 0)


def clusters_door(tubemq: EmbeddedTubeMQ) -> EmbeddedCluster:
    return EmbeddedCluster(tubemq, ServerConfig())


# Positions


@pytest.mark.option("commitOffsets")
@pytest.mark.option("tubemq.group")
@pytest.mark.parametrize("given", [None, "true"])
def test_group_follows_commits_and_is_never_ahead(start: Start, given: str | None) -> None:
    tubemq = start({"t": 1})
    fill(tubemq, "t", 50)
    stream = Stream(tubemq, "t", commitOffsets=given, maxOffsetsPerTrigger=20)
    seen: list[tuple[int, int | None]] = []
    with stream.running() as run:
        while run.next() is not None:
            run.latest()
            seen.append((sum(stream.end.values()), stands(tubemq)))
    assert seen == [(20 * UNIT, 20 * UNIT), (40 * UNIT, 40 * UNIT), (50 * UNIT, 50 * UNIT)]
    assert stands(tubemq) == 50 * UNIT


@pytest.mark.parametrize(("starts", "skips"), [("latest", True), ("group", False), ("earliest", False)])
def test_a_new_query_that_begins_ahead_of_its_group_says_so(
    start: Start, starts: str, skips: bool, caplog: pytest.LogCaptureFixture
) -> None:
    tubemq = start({"t": 1})
    fill(tubemq, "t", 50)
    with Stream(tubemq, "t").running() as run:
        run.next(), run.latest()
    fill(tubemq, "t", 3)
    Stream(tubemq, "t", startingOffsets=starts).run()
    text = "[group-skipped] reading begins at the end"
    assert (text in caplog.text) is skips
    assert ("up to 3 index entries of 1:t:0 are not read" in caplog.text) is skips


def test_a_new_group_skips_nothing(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    tubemq = start({"t": 3})
    fill(tubemq, "t", 50)
    Stream(tubemq, "t", startingOffsets="latest").run()
    assert "[group-skipped]" not in caplog.text


@pytest.mark.option("commitOffsets")
@pytest.mark.parametrize("begin", [0, 7])
def test_group_stays_with_commit_offsets_false(start: Start, begin: int) -> None:
    tubemq = start({"t": 1})
    fill(tubemq, "t", 50)
    if begin:
        Stream(tubemq, "t").run()
        tubemq.move_group(GROUP, "t", 1, 0, begin * UNIT)
    stream = Stream(tubemq, "t", commitOffsets="false", maxOffsetsPerTrigger=20)
    stream.run()
    fill(tubemq, "t", 5)
    stream.run()
    with stream.running() as run:
        fill(tubemq, "t", 5)
        run.next()
        run.latest()
        assert stands(tubemq) == begin * UNIT
        tubemq.move_group(GROUP, "t", 1, 0, 3 * UNIT)
        fill(tubemq, "t", 5)
        run.next()
        run.latest()
    assert bodies(stream.rows) == stored(tubemq, "t")
    assert stands(tubemq) == 3 * UNIT  # where another client put it


# Others in the group


@pytest.mark.option("tubemq.claim.timeoutMs")
@pytest.mark.parametrize("streaming", [True, False])
def test_waiting_for_a_held_partition_ends_at_the_claim_timeout(
    start: Start, monkeypatch: pytest.MonkeyPatch, streaming: bool
) -> None:
    """The clock jumps after the second attempt. A batch read needs the group only for its position."""
    tubemq = start({"t": 2})
    fill(tubemq, "t", 4)
    given = {"tubemq_claim_timeoutMs": 300, "startingOffsets": "group"}
    with foreign_claim(clusters_door(tubemq), GROUP, Partition(1, "t", 1)) as holder:
        with (
            tubemq.on("partition_register", partition=1).count() as tries,
            monkeypatch.context() as patched,
        ):
            clock = SkippingClock()
            clock.monotonic = lambda: 10.0 * (tries.fired > 1)  # type: ignore[method-assign]
            patched.setattr("tubemq_spark.client.settings.SYSTEM_CLOCK", clock)
            with pytest.raises(PartitionOccupiedError) as caught:
                Stream(tubemq, "t", **given).run() if streaming else read_batch(tubemq, "t", **given)
        assert tries.fired == 2
        assert caught.value.holder == holder
        text = f"1:t:1 at broker 1 at .*: another consumer of group {GROUP} holds .* for more than 0.3 s: {holder}"
        assert caught.match(text)
        assert len(read_batch(tubemq, "t")) == 4
    assert len(read_batch(tubemq, "t", **given)) == 4


@pytest.mark.option("tubemq.group")
def test_an_administrator_who_moves_the_group_disturbs_no_batch(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    tubemq = start({"t": 1})
    fill(tubemq, "t", 50)
    stream = Stream(tubemq, "t", maxOffsetsPerTrigger=20)
    with stream.running() as run:
        run._point = lambda point: tubemq.move_group(GROUP, "t", 1, 0, 7 * UNIT)
        while run.next() is not None:
            pass
        tubemq.move_group(GROUP, "t", 1, 0, 7 * UNIT)
        run.latest()
        assert "[group-moved]" in caplog.text
    assert bodies(stream.rows) == stored(tubemq, "t")
    assert stands(tubemq) == 50 * UNIT


@pytest.mark.option("filters")
@pytest.mark.parametrize("other", [{"filters": "y"}, {}], ids=["others", "none"])
def test_second_query_with_other_filters_is_refused(start: Start, other: dict[str, str]) -> None:
    tubemq = start({"t": 1})
    with Stream(tubemq, "t", filters="x").running() as run:
        run.next()
        hasty = {**other, "tubemq_claim_timeoutMs": 100}
        for read in (Stream(tubemq, "t", **hasty).run, lambda: read_batch(tubemq, "t", **hasty)):
            with pytest.raises(ConfigError, match=f"group {GROUP}.*426.*stop those consumers, or use another"):
                read()
    Stream(tubemq, "t", **other).run()
