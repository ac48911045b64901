# SPDX-License-Identifier: Apache-2.0
"""Results of measurements, and the JSON files that keep them: one file for each part of the benchmark."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from tubemq_spark.protocol import speedups

FOLDER = Path(__file__).with_name("results")

RATE = "messages/s"
CPU = "CPU s per million"
JVM = "CPU s of the JVM per million"
MEMORY = "MB of memory"
MILLISECONDS = "ms"
START = "ms to start and end"
CORE = "% of a core"


class Key(NamedTuple):
    """The name of a row of figures.

    ``layout`` says how partitions lie in stores and ``size`` is the bytes of a body; "" and 0 where that has no
    meaning. ``quantity`` is what is measured, with its unit.
    """

    part: str
    runner: str
    quantity: str = RATE
    layout: str = ""
    size: int = 0

    def __str__(self) -> str:
        where = [self.layout] * bool(self.layout) + [f"{self.size} B"] * bool(self.size)
        return " | ".join([self.part, self.runner, *where, self.quantity])


@dataclass(frozen=True)
class Row:
    """The values of one row, one for each round."""

    key: Key
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)


@dataclass(frozen=True)
class PartResult:
    """What one part measured: when, on which machine, with which versions and settings."""

    part: str
    date: str
    seconds: float
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    settings: Mapping[str, Any]
    rows: tuple[Row, ...] = field(default=())

    def to_json(self) -> str:
        fields = {name: value for name, value in asdict(self).items() if name != "rows"}
        rows = [
            {**row.key._asdict(), "median": significant(row.median), "values": [significant(one) for one in row.values]}
            for row in self.rows
        ]
        head = json.dumps(fields, indent=1)[:-2]
        lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
        return f'{head},\n "rows": [\n{lines}\n ]\n}}\n'

    @classmethod
    def from_json(cls, text: str) -> PartResult:
        found = json.loads(text)
        rows = []
        for row in found.pop("rows"):
            values = tuple(row.pop("values"))
            del row["median"]
            rows.append(Row(Key(**row), values))
        return cls(**found, rows=tuple(rows))


class Results:
    """The rows of several parts."""

    def __init__(self, parts: Iterable[PartResult]) -> None:
        self.parts = {part.part: part for part in parts}
        self._rows = {row.key: row for part in self.parts.values() for row in part.rows}

    def __iter__(self) -> Any:
        return iter(self._rows.values())

    def median(self, key: Key) -> float | None:
        """Return the median of a row, None if it was not measured."""
        row = self._rows.get(key)
        return None if row is None else row.median

    def values(self, key: Key) -> tuple[float, ...]:
        """Return the values of all rounds of a row."""
        return self._rows[key].values


def write(result: PartResult, folder: Path = FOLDER) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{result.part}.json"
    file.write_text(result.to_json(), encoding="utf-8")
    return file


def read(folder: Path = FOLDER) -> Results:
    """Return the results in the folder's files; none if there is no such folder."""
    return Results(PartResult.from_json(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json")))


def significant(value: float) -> float:
    """Return the value with four significant digits."""
    return float(f"{value:.4g}")


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def machine() -> dict[str, str]:
    """Return what determines the speed of this machine, without its name."""
    facts = {"cores": str(os.cpu_count()), "system": f"{platform.system()} {platform.machine()}"}
    processor = _field("/proc/cpuinfo", "model name")
    memory = _field("/proc/meminfo", "MemTotal")
    if processor:
        facts["processor"] = processor
    if memory:
        facts["memory"] = f"{int(memory.split()[0]) / (1 << 20):.0f} GiB"
    facts["load before"] = f"{os.getloadavg()[0]:.1f}"
    return facts


def versions(packages: Sequence[str] = ("tubemq-spark", "pyspark", "pyarrow", "numpy", "protobuf")) -> dict[str, str]:
    found = {name: metadata.version(name) for name in packages}
    return {
        "python": platform.python_version(),
        **found,
        "decoders": "in Python" if speedups.compiled is None else "compiled",
    }


def _field(file: str, name: str) -> str:
    """Return the value of the first line ``name : value``, "" if there is none."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")
