# SPDX-License-Identifier: Apache-2.0
"""A SPARK_HOME with which Spark's Python workers start in a third of the CPU time.

Spark puts `python/lib/pyspark.zip` in front of a worker's path, and Python compiles each module of it anew in every
worker. This folder has no such file, so workers import the same modules, compiled, from the installed package.
`make matrix` without `--quick` tests Spark as it is installed.
"""

from __future__ import annotations

from pathlib import Path

import pyspark

from tests.real.jars import cached


def spark_home() -> Path:
    """Return the folder for the Spark of this environment."""
    installed = Path(pyspark.__file__).parent
    made_from = f"{pyspark.__version__} {installed} {Path(__file__).read_text()}"
    return cached("spark-home", made_from.encode(), lambda folder: link_spark(installed, folder))


def link_spark(installed: Path, folder: Path) -> None:
    """Link the package `pyspark` that is `installed` into `folder`, without its zip file."""
    (folder / "python").mkdir(parents=True, exist_ok=True)
    for name in ("bin", "jars", "sbin", "python/pyspark"):  # the last one has shell.py of the program `pyspark`
        (folder / name).symlink_to(installed / name)
