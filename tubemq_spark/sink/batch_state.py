# SPDX-License-Identifier: Apache-2.0
"""What a query with `effectivelyOnce` knows of its batches, in a small file beside the checkpoint.

The driver alone reads and writes it: before the tasks of a batch begin, and when the batch is committed. All messages
of a batch lie behind its begins, because these are in the file before its tasks send. So the file tells whether the
batch was begun before, and from where tasks have to search then.

    {"v": 1, "id": "…", "query": "…", "committed": 41, "plan": "…", "plans": 43,
     "committed_begins": {"1:orders:0": 280}, "begins": {"1:orders:0": 1400}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from tubemq_spark.client import system
from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.sink.options import EffectivelyOnceOptions
from tubemq_spark.sink.output_dir import OutputDir

FILE = "effectively-once.json"
_VERSION = 1
_METADATA = "metadata"  # Spark writes it when a query starts for the first time

Begins = Mapping[Partition, int]
"""Where partitions ended before a batch sent its first message: bytes of the index."""


class StateFileError(ConfigError):
    """The state file of `effectivelyOnce` is missing, damaged, or that of another query."""

    cause = (
        "The file in which `effectivelyOnce` notes its batches is damaged, was removed, or is that of another query."
    )
    remedy = (
        "Do what the text says. To go on without the file, start the query once with "
        "`effectivelyOnceUncertain=sendAgain`: it may store the rows of one batch twice."
    )


@dataclass(frozen=True)
class BatchState:
    """The content of the file.

    `id` is a part of the names of the query's groups at the brokers. `query` is Spark's id of the query, and
    `committed` its last committed batch, both None until a batch was. `begins` are those of the batch behind it, None
    if no attempt of it was planned, and `committed_begins` those of the committed one. `plan` names the last plan, and
    `plans` counts them.
    """

    id: str
    query: str | None = None
    committed: int | None = None
    plan: str = ""
    plans: int = 0
    begins: Begins | None = None
    committed_begins: Begins = field(default_factory=dict)

    def planned(self, begins: Begins) -> BatchState:
        """Return the state for another attempt of the batch behind `committed`."""
        return replace(self, begins=begins, plan=system.new_uuid().hex, plans=self.plans + 1)

    def with_commit(self, batch: int, query: str | None) -> BatchState:
        """Return the state after the commit of `batch`. It may be the committed one, which Spark repeats: then another
        run may have begun the batch behind it."""
        begins = self.begins if batch == self.committed else None
        return replace(
            self, committed=batch, query=query or self.query, begins=begins, committed_begins=self.begins_of(batch)
        )

    def begins_of(self, batch: int) -> Begins:
        """Return the begins of a batch: the committed one, which Spark may repeat, or the one behind it."""
        begins = self.begins or {}
        # A partition that is new since the commit has no messages of that batch: no attempt could write to it.
        return {**begins, **self.committed_begins} if batch == self.committed else begins


class StateFile:
    """The file of one query."""

    def __init__(self, options: EffectivelyOnceOptions) -> None:
        """Raise `ConfigError` if there is no such file system."""
        self._options = options
        self._folder = OutputDir(options.location, options.option)
        self.shown = self._folder.shown(FILE)

    def read(self) -> BatchState | None:
        """Return the state, None if there is no file. Raise `ConfigError` if it cannot be read."""
        content = self._folder.read(FILE)
        if content is None:
            return None
        try:
            found = json.loads(content.to_pybytes())
            if found["v"] != _VERSION:
                raise StateFileError(
                    f"{self.shown} was written by another release (version {found['v']}, and this one knows "
                    f"{_VERSION}). Start the query with the release that wrote it"
                )
            begins, committed = found["begins"], found["committed"]
            return BatchState(
                str(found["id"]),
                found["query"],
                None if committed is None else int(committed),
                str(found["plan"]),
                int(found["plans"]),
                None if begins is None else _begins_of(begins),
                _begins_of(found["committed_begins"]),
            )
        except (ValueError, TypeError, KeyError, AttributeError) as problem:
            raise StateFileError(
                f"{self.shown} is damaged, so it is unknown what effectivelyOnce has stored ({problem!r}). Restore it "
                "from a backup that is not older than the checkpoint. To go on without it, remove it, and start the "
                "query once with option 'effectivelyOnceUncertain' set to sendAgain: the rows of one batch may be "
                "stored twice then"
            ) from None

    def write(self, state: BatchState) -> None:
        """Replace the file. Raise `ConfigError` if that fails."""
        content = {
            "v": _VERSION,
            "id": state.id,
            "query": state.query,
            "committed": state.committed,
            "plan": state.plan,
            "plans": state.plans,
            "committed_begins": _named(state.committed_begins),
            "begins": None if state.begins is None else _named(state.begins),
        }
        self._folder.write(FILE, pa.py_buffer(json.dumps(content, separators=(",", ":")).encode()))


def check_checkpoint(options: EffectivelyOnceOptions) -> None:
    """Check, before the first file, that Spark's checkpoint is where the driver's Python sees it.

    Spark may take a path without a scheme for one of another file system, such as HDFS. Raise `ConfigError` then.
    """
    if options.checkpoint is None:
        return
    folder = OutputDir(options.checkpoint, options.option)
    if folder.read(_METADATA) is None:
        raise StateFileError(
            f"option 'checkpointLocation': {folder.shown(_METADATA)} is missing, so this folder is not the checkpoint. "
            "If Spark keeps it in another file system than the local one, name it with its scheme, such as "
            "hdfs://host/path. Or set effectivelyOnceLocation to a folder that outlives this machine"
        )


def _named(begins: Begins) -> dict[str, int]:
    return {str(partition): position for partition, position in sorted(begins.items())}


def _begins_of(named: Mapping[str, int]) -> dict[Partition, int]:
    begins: dict[Partition, int] = {}
    for name, position in named.items():
        broker_id, topic, partition_id = name.split(":")
        begins[Partition(int(broker_id), topic, int(partition_id))] = int(position)
    return begins
