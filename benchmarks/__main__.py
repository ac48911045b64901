# SPDX-License-Identifier: Apache-2.0
"""Measure: `python -m benchmarks [PART ...]`. Without parts all are measured, one after the other.

Each part runs in a process of its own, with the interpreter `--python`, and writes one file. A part that fails does not
stop the others; the status is 1 then. At the end the goals are printed, with what was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks import goals, page, parts, results
from benchmarks.sizes import Scale
from tubemq_spark.protocol import speedups


def main(arguments: list[str] | None = None) -> int:
    given = _arguments(arguments)
    if given.list:
        for name in parts.NAMES:
            one = parts.part(name)
            print(f"{name:10} {one.minutes:4g} min  {one.about}")
        return 0
    failed = []
    if not given.goals:
        scale = Scale(given.rounds, given.scale, given.full)
        for name in given.parts or parts.NAMES:
            settings = json.dumps(scale.as_settings())
            command = [given.python, "-m", "benchmarks.run_part", name, settings, given.output]
            # What the README's command installs has no compiled decoders; one part compares both.
            pure = {} if name == "ceiling" else {speedups.PURE: "1"}
            if subprocess.run(command, env={**os.environ, **pure}).returncode:
                failed.append(name)
        if given.output == results.FOLDER:
            _show()
    print(goals.table(results.read(given.output)))
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _show() -> None:
    """Draw the plot and fill the page of the documentation."""
    from benchmarks import plot  # needs matplotlib, which other runs do without

    if plot.draw(results.read()):
        page.PAGE.write_text(page.document(), encoding="utf-8")


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(parts.NAMES)} (all)")
    parser.add_argument("--list", action="store_true", help="show the parts and end")
    parser.add_argument("--goals", action="store_true", help="show the goals with the stored results and end")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds of each runner (3)")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="multiplies the numbers of messages (1); 0.01 is a try"
    )
    parser.add_argument("--full", action="store_true", help="also the largest sizes, up to 4 GB: another 15 minutes")
    parser.add_argument("--output", type=Path, default=results.FOLDER, help="folder for results (benchmarks/results)")
    parser.add_argument("--python", default=sys.executable, help="interpreter that runs the parts (this one)")
    given = parser.parse_args(arguments)
    if unknown := set(given.parts) - set(parts.NAMES):
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}; known are {', '.join(parts.NAMES)}")
    if given.scale < 1 and given.output == results.FOLDER and not (given.list or given.goals):
        parser.error("a run with --scale below 1 gives no figures for readers: name another folder with --output")
    return given


if __name__ == "__main__":
    sys.exit(main())
