# SPDX-License-Identifier: Apache-2.0
"""Reads from the checkpoint of a streaming query what the query has committed.

Spark writes a file `commits/N` when batch N is committed. Its file `offsets/N` says where the batch ends: the line
`v1`, a line of settings, then one line for each source of the query. In `v2` each begins with the source's name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.sink.output_dir import OutputDir
from tubemq_spark.source.offset import Positions, StreamOffset

_OPTION = "--checkpoint"
_LARGEST = 64 << 20  # bytes of an offset file: those of a million partitions
_VERSIONS = "v1", "v2"
_KEYS = {"v", "query", "offsets"}  # that distinguish this source's offsets from those of other sources


def committed_positions(location: str, topic: str | None) -> Mapping[Partition, int]:
    """Return where the last committed batch ends, in `topic` or in all topics of its source.

    Raise `ConfigError` if `location` is not such a checkpoint, or if its sources do not leave one to choose.
    """
    if not location.strip():
        raise ConfigError(f"{_OPTION} is blank; expected the folder that the query has as 'checkpointLocation'")
    folder = OutputDir(location, _OPTION)
    batches = [int(name) for name in folder.names("commits") if name.isdecimal()]
    if not batches:
        raise ConfigError(
            f"{_OPTION}: {folder.shown('commits')} has no committed batch. Name the folder that the query has as "
            "'checkpointLocation'"
        )
    name = f"offsets/{max(batches)}"
    content = folder.read(name, _LARGEST)
    lines = [] if content is None else content.to_pybytes().decode("utf-8", "replace").splitlines()
    if not lines or lines[0] not in _VERSIONS:
        raise ConfigError(
            f"{_OPTION}: {folder.shown(name)} is missing or no offsets of version {' or '.join(_VERSIONS)}. Give the "
            "positions instead: BROKER:PARTITION=PLACE"
        )
    has_names = lines[0] == "v2"
    sources = list(_sources([line.partition(":")[2] for line in lines[2:]] if has_names else lines[2:]))
    chosen = [one for one in sources if topic is None or topic in _topics(one)]
    if len(chosen) != 1:
        raise ConfigError(f"{_OPTION}: {_problem(sources, chosen, topic)}")
    return {partition: position for partition, position in chosen[0].items() if topic in (None, partition.topic)}


def _sources(lines: Sequence[str]) -> Iterator[Positions]:
    """Yield the positions of each source of TubeMQ."""
    for line in lines:
        try:
            data = json.loads(line)
        except (ValueError, RecursionError):  # `-` stands for a source that has read nothing
            continue
        if isinstance(data, dict) and data.keys() >= _KEYS and (positions := StreamOffset.from_json(data).positions):
            yield positions


def _topics(positions: Positions) -> list[str]:
    return sorted({partition.topic for partition in positions})


def _problem(sources: Sequence[Positions], chosen: Sequence[Positions], topic: str | None) -> str:
    if not sources:
        return "the offsets of the last committed batch have no position of TubeMQ"
    reads = "; ".join(f"{number}: {', '.join(_topics(one))}" for number, one in enumerate(sources, 1))
    if not chosen:
        return f"the query does not read topic {topic}. Topics of its sources: {reads}"
    advice = "Name a topic that only one of them reads" if topic is None else "Give the positions instead"
    return f"the query has {len(chosen)} sources of TubeMQ, and each has a group of its own. {advice}. Topics: {reads}"
