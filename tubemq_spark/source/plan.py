"""What to read: the user's bounds and the stores' ends as positions. Decides, asks nobody.

All positions are bytes of the index, 28 a message; ranges are half-open.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tubemq_spark.client.claims import Standing
from tubemq_spark.errors import ConfigError, DataLossError
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.offset import Positions
from tubemq_spark.source.options import EARLIEST, GROUP, LATEST, Bound


def needs_earliest(starting: Bound) -> bool:
    """Whether `starting_positions` wants to know where the stores begin."""
    return starting == "earliest" or isinstance(starting, dict)


def starting_positions(
    starting: Bound, standings: Mapping[Partition, Standing], earliest: Mapping[Partition, int]
) -> dict[Partition, int]:
    """Where each partition of `standings` is read from.

    `ConfigError` when explicit positions do not name exactly these partitions or lie beyond the end, `DataLossError`
    when one is not kept any more.
    """
    if isinstance(starting, dict):
        _check_partitions("startingOffsets", starting, standings)
        return {
            partition: _explicit_start(partition, starting[partition], standing, earliest[partition])
            for partition, standing in standings.items()
        }
    if starting == "earliest":
        return {partition: earliest[partition] for partition in standings}
    if starting == GROUP:
        # A broker that lost its tail still tells the old position, which is beyond the end then.
        return {partition: min(standing) for partition, standing in standings.items()}
    return {partition: standing.end for partition, standing in standings.items()}


def ending_positions(ending: Bound, starts: Positions, standings: Mapping[Partition, Standing]) -> dict[Partition, int]:
    """Where each partition's range ends. `ConfigError` when explicit positions do not name exactly these partitions,
    lie beyond the end or before the start."""
    if not isinstance(ending, dict):
        return {partition: standing.end for partition, standing in standings.items()}
    _check_partitions("endingOffsets", ending, standings)
    ends: dict[Partition, int] = {}
    for partition, standing in standings.items():
        position = ending[partition]
        ends[partition] = standing.end if position == LATEST else position
        _check_end("endingOffsets", partition, ends[partition], standing)
        if ends[partition] < starts[partition]:
            raise ConfigError(
                f"option 'endingOffsets' has {position} for {partition}, which lies before the start "
                f"{starts[partition]}"
            )
    return ends


def next_end(start: Positions, ends: Positions, added: Positions) -> dict[Partition, int]:
    """Where the next micro-batch ends: at the stores' `ends`. Partitions new since `start` enter with where they begin,
    to be read from the batch after on, so that the checkpoint knows both ends of every range.

    `DataLossError` when a store ends before the position reached so far.
    """
    for partition, position in start.items():
        if ends[partition] < position:
            raise DataLossError(
                f"{partition}: the store ends at {ends[partition]}, but the query has read up to {position}: the "
                f"broker lost its tail and uses [{ends[partition]}, {position}) for other messages. Start anew with "
                "another checkpoint and startingOffsets once you know why",
                topic=partition.topic,
                broker_id=partition.broker_id,
                partition=partition.partition_id,
                asked=position,
                offered=ends[partition],
            )
    return {**{partition: ends[partition] for partition in start}, **added}


def ranges(start: Positions, end: Positions) -> dict[Partition, tuple[int, int]]:
    """What to read of each partition that has something new. `ConfigError` when an end lies before its start."""
    found: dict[Partition, tuple[int, int]] = {}
    for partition, until in end.items():
        begin = start.get(partition, until)
        if until < begin:
            raise ConfigError(
                f"the checkpoint goes backwards for {partition}, from {begin} to {until}: it is not usable"
            )
        if until > begin:
            found[partition] = begin, until
    return found


def _explicit_start(partition: Partition, position: int, standing: Standing, earliest: int) -> int:
    if position == EARLIEST:
        return earliest
    if position == LATEST:
        return standing.end
    _check_end("startingOffsets", partition, position, standing)
    if position < earliest:
        raise DataLossError(
            f"{partition}: option 'startingOffsets' asks for {position}, but the messages before {earliest} are not "
            f"kept any more: start at {earliest}, or at -2 for the earliest",
            topic=partition.topic,
            broker_id=partition.broker_id,
            partition=partition.partition_id,
            asked=position,
            offered=earliest,
        )
    return position


def _check_end(option: str, partition: Partition, position: int, standing: Standing) -> None:
    if position > standing.end:
        raise ConfigError(
            f"option '{option}' has {position} for {partition}, which lies beyond the end of the store: "
            f"{standing.end}; use -1 for the latest"
        )


def _check_partitions(option: str, given: Collection[Partition], expected: Collection[Partition]) -> None:
    if unknown := sorted(set(given) - set(expected)):
        raise ConfigError(
            f"option '{option}' names {', '.join(map(str, unknown))} (brokerId:topic:partitionId), which the "
            f"subscribed topics do not have: they have {', '.join(map(str, sorted(expected)))}"
        )
    if missing := sorted(set(expected) - set(given)):
        raise ConfigError(
            f"option '{option}' must name all partitions of the subscribed topics, {', '.join(map(str, missing))} "
            "(brokerId:topic:partitionId) are missing; use -2 for the earliest, -1 for the latest position"
        )
