# SPDX-License-Identifier: Apache-2.0
"""`make notebooks`: run the notebooks, each in a new kernel and an empty folder. Fail if a cell fails.

    python -m scripts.notebooks                        run all of notebooks/
    python -m scripts.notebooks quickstart             run notebooks/quickstart.ipynb
    python -m scripts.notebooks --write quickstart     run it and keep its outputs in the file
    python -m scripts.notebooks --jobs 1               one at a time

Two run at a time, because notebooks also wait. With `--write` one runs at a time, because some plots show rates.

Kept outputs belong to the code beside them: `--write` stores a digest of the cells in the notebook's metadata, and
tests/test_notebooks.py compares it. It also writes a small version of the first plot to docs/images.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from PIL import Image

# Spark lives for a minute in each notebook: a simple compiler and collector save a third of its CPU time.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
PICTURES = ROOT / "docs" / "images"
WIDTH = 720  # pixels of a picture
LIMIT = 300  # seconds for one cell
JOBS = 2

# Notebooks with parameters run again with these environment variables. The kept outputs are those of the first run.
VARIANTS = {"databricks": ({"NOTEBOOK_REGISTER": "no"},)}


def digest(notebook: nbformat.NotebookNode) -> str:
    """Return a digest of the types and sources of all cells."""
    cells = [f"{cell.cell_type}\n{cell.source}" for cell in notebook.cells]
    return hashlib.sha256("\0".join(cells).encode()).hexdigest()


def execute(notebook: nbformat.NotebookNode, variables: Mapping[str, str]) -> None:
    """Run all cells in order, in a new kernel with these environment variables, and replace their outputs."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        client = NotebookClient(
            notebook,
            timeout=LIMIT,
            kernel_name="python3",
            resources={"metadata": {"path": folder}},
            record_timing=False,
        )
        # Spark's JVM writes its log there.
        with Path(folder, "stderr.log").open("w+", encoding="utf-8", errors="replace") as log:
            try:
                client.execute(env={**_environment(), **variables}, stderr=log)
            except BaseException:
                log.seek(0)
                sys.stderr.write(log.read()[-3000:])
                raise


def _environment() -> dict[str, str]:
    """Return the variables of the kernel: without settings of the caller's Spark, and with one time zone."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    return {**inherited, "PYSPARK_PYTHON": sys.executable, "SPARK_SUBMIT_OPTS": QUICK_JVM, "TZ": "UTC"}


def tidy(notebook: nbformat.NotebookNode) -> None:
    """Keep what readers need of the outputs: no log lines, and nothing of this machine in the metadata."""
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata = nbformat.NotebookNode()
        if cell.cell_type == "code":
            # Standard error has the log lines of Spark's JVM.
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
            "cells_sha256": digest(notebook),
        }
    )


def keep_picture(notebook: nbformat.NotebookNode, file: Path) -> None:
    """Write a small version of the notebook's first plot, for pages that show it."""
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", ()))
    first = next(output.data["image/png"] for output in outputs if "image/png" in output.get("data", {}))
    with Image.open(BytesIO(base64.b64decode(first))) as plot:
        small = plot.convert("RGB").resize((WIDTH, plot.height * WIDTH // plot.width), Image.Resampling.LANCZOS)
    small.quantize(160, dither=Image.Dither.NONE).save(file, optimize=True)


def run(file: Path, write: bool) -> str | None:
    """Run one notebook, and its variants unless its outputs are to be kept. Return what went wrong, or None."""
    for variables in ({}, *(() if write else VARIANTS.get(file.stem, ()))):
        told = " ".join((file.name, *(f"{name}={value}" for name, value in variables.items())))
        notebook = nbformat.read(file, as_version=4)
        begin = time.monotonic()
        try:
            execute(notebook, variables)
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as problem:
            return f"{told}: {problem}"
        print(f"{told}: ran in {time.monotonic() - begin:.0f} s", flush=True)
    if write:
        tidy(notebook)
        nbformat.validate(notebook)
        nbformat.write(notebook, file)
        keep_picture(notebook, PICTURES / f"notebook-{file.stem}.png")
    return None


def run_all(files: Sequence[Path], write: bool, jobs: int) -> list[str | None]:
    """Run the notebooks, `jobs` at a time. Return for each what went wrong, or None."""
    with ThreadPoolExecutor(jobs) as pool:
        running = [pool.submit(run, file, write) for file in files]
        try:
            return [one.result() for one in running]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def main() -> int:
    names = sorted(file.stem for file in NOTEBOOKS.glob("*.ipynb"))
    parser = argparse.ArgumentParser(description="Run the notebooks, each in a new kernel.")
    parser.add_argument("--write", action="store_true", help="keep the outputs in the files")
    parser.add_argument("--jobs", type=int, metavar="N", help=f"notebooks at a time: {JOBS}, or 1 with --write")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of a notebook: {', '.join(names)}")
    given = parser.parse_args()
    if unknown := set(given.names) - set(names):
        parser.error(f"no such notebook: {', '.join(sorted(unknown))}. There are {', '.join(names)}")
    files = [NOTEBOOKS / f"{name}.ipynb" for name in given.names or names]
    problems = run_all(files, given.write, given.jobs or (1 if given.write else JOBS))
    for problem in filter(None, problems):
        print(problem, file=sys.stderr)
    return 1 if any(problems) else 0


if __name__ == "__main__":
    sys.exit(main())
