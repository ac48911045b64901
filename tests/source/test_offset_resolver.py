# SPDX-License-Identifier: Apache-2.0
"""The options that say where a read begins and ends become positions. Times: tests/source_options/test_bounds.py."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, cast

import pytest

from tubemq_spark.client.consumer.claim_acquirer import GroupPosition
from tubemq_spark.client.consumer.probe import Extent, Prober
from tubemq_spark.errors import ConfigError, DataLossError
from tubemq_spark.protocol.constants import ReadStatus
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.long_messages import LongMessages
from tubemq_spark.source.offset_resolver import OffsetResolver, read_status
from tubemq_spark.source.options import SourceOptions

A, B, C = Partition(1, "t", 0), Partition(1, "t", 1), Partition(2, "u", 0)
# A has [28, 140), and the group is at 84; B is empty, and the group is new there; in C the group is at the end.
AT = {A: GroupPosition(84, 140), B: GroupPosition(0, 0), C: GroupPosition(280, 280)}
EXTENTS = {A: Extent(28, 140), B: Extent(0, 0), C: Extent(56, 280)}
EARLIEST, LATEST = {A: 28, B: 0, C: 56}, {A: 140, B: 0, C: 280}


class Brokers:
    def extents(self, partitions: Iterable[Partition]) -> dict[Partition, Extent]:
        return {partition: EXTENTS[partition] for partition in partitions}


def options(streaming: bool = False, **given: Any) -> SourceOptions:
    texts = {name: json.dumps(value) if isinstance(value, dict) else value for name, value in given.items()}
    raw = {"tubemq.master": "m", "tubemq.group": "g1", "subscribe": "t,u"} | texts
    return SourceOptions.read({name.lower(): value for name, value in raw.items()}, streaming=streaming)


def resolver(streaming: bool = False, **given: Any) -> OffsetResolver:
    return OffsetResolver(options(streaming, **given), cast(Prober, Brokers()), cast(LongMessages, None))


def by_key(a: int, b: int, c: int) -> dict[str, dict[str, int]]:
    return {"t": {"1:0": a, "1:1": b}, "u": {"2:0": c}}


def test_group_beyond_the_end_is_a_loss(caplog: pytest.LogCaptureFixture) -> None:
    """A broker that lost its tail still reports the group's old position. Nobody knows what is new to the group."""
    at = AT | {A: GroupPosition(168, 140)}
    with pytest.raises(DataLossError, match="stands at 168, and the store ends at 140") as caught:
        resolver(True, startingOffsets="group").starting(at)
    assert (caught.value.asked, caught.value.offered) == (168, 140)
    assert resolver(True, startingOffsets="group", failOnDataLoss="false").starting(at)[A] == 28
    assert "[data-loss] 1:t:0: group g1 stands at 168" in caplog.text


MISSING = "must name all partitions of the subscribed topics, "


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, f"{MISSING}1:t:0, 1:t:1, 2:u:0 "),
        ({"t": {"1:0": 28}, "u": {"2:0": 56}}, f"{MISSING}1:t:1 "),
        ({"t": "latest"}, f"{MISSING}2:u:0 "),
        ({**by_key(28, 0, 56), "v": "latest"}, "names v (brokerId:topic:partitionId), which the subscribed"),
        ({**by_key(28, 0, 56), "v": {"9:0": 28}}, "names 9:v:0 (brokerId:topic:partitionId)"),
        (by_key(168, 0, 56), "has 168 for 1:t:0, which lies beyond the end of the store: 140; check"),
        (by_key(28, 28, 56), "has 28 for 1:t:1, which lies beyond the end of the store: 0; check"),
    ],
    ids=str,
)
@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_positions_that_do_not_fit_the_topics_are_refused(option: str, given: Any, problem: str) -> None:
    asked = resolver(option == "startingOffsets", **{option: given})
    with pytest.raises(ConfigError) as caught:
        asked.starting(AT) if option == "startingOffsets" else asked.ending(EARLIEST, AT)
    assert str(caught.value).startswith(f"option '{option}' {problem}")


@pytest.mark.parametrize("option", ["startingOffsetsByTimestamp", "endingOffsetsByTimestamp"])
def test_times_that_leave_out_a_partition_are_refused(option: str) -> None:
    asked = resolver(False, **{option: {"t": {"1:0": 1769857200000}, "u": {"2:0": 1769857200000}}})
    with pytest.raises(ConfigError, match=rf"^option '{option}' {MISSING}1:t:1 "):
        asked.ending(asked.starting(AT), AT)


@pytest.mark.parametrize("starting", ["earliest", "group", by_key(84, 0, 56)], ids=str)
def test_an_end_before_the_start_is_refused(starting: Any) -> None:
    asked = resolver(startingOffsets=starting, endingOffsets=by_key(0, 0, 56))
    starts = asked.starting(AT)
    with pytest.raises(ConfigError, match=rf"'endingOffsets' has 0 for 1:t:0, .* before the start {starts[A]}, .* in "):
        asked.ending(starts, AT)


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({}, ReadStatus.FROM_MAX),
        ({"startingOffsets": {"t": "latest", "u": "latest"}}, ReadStatus.FROM_MAX),
        ({"startingOffsets": {"t": "latest", "u": "earliest"}}, ReadStatus.NORMAL),
        ({"startingOffsets": "latest", "startingTimestamp": "2026-01-31"}, ReadStatus.NORMAL),
    ],
    ids=str,
)
def test_where_a_new_group_begins(given: Any, status: ReadStatus) -> None:
    assert read_status(options(True, **given)) is status
