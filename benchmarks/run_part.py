# SPDX-License-Identifier: Apache-2.0
"""Measures one part and writes its file: `python -m benchmarks.run_part PART SCALE FOLDER`, with the scale as JSON.

It needs nothing but what the README's command installs.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from benchmarks import parts, results
from benchmarks.rounds import Recorder
from benchmarks.sizes import RELEASE, Scale
from tests.real import jars


def run_part(name: str, scale: Scale, folder: Path) -> None:
    """Measure a part. Raise `RuntimeError` if it did not measure all its rows."""
    part = parts.part(name)
    print(f"\n{name}: {part.about}", flush=True)
    date, machine, record = results.now(), results.machine(), Recorder(name)
    begin = time.perf_counter()
    part.measure(scale, record)
    seconds = time.perf_counter() - begin
    if missing := set(part.keys) - {row.key for row in record.rows}:
        raise RuntimeError(f"part {name} did not measure {'; '.join(sorted(map(str, missing)))}")
    versions = {**results.versions(), "server": jars.server(RELEASE, "standard")[0]}
    result = results.PartResult(
        name, date, round(seconds, 1), machine, versions, scale.as_settings(), tuple(record.rows)
    )
    print(f"  {seconds:.0f} s, written to {results.write(result, folder)}", flush=True)


if __name__ == "__main__":
    run_part(sys.argv[1], Scale(**json.loads(sys.argv[2])), Path(sys.argv[3]))
