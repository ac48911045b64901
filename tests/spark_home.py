"""A SPARK_HOME with which Spark's Python workers start in a third of the CPU time.

Spark puts `python/lib/pyspark.zip` in front of a worker's path, and Python compiles each module of it anew in every
worker. This folder has no such file, so workers import the same modules, compiled, from the installed package.
`make matrix` tests Spark as it is installed.
"""

from __future__ import annotations

from pathlib import Path

import pyspark

from tests.real.jars import cached


def spark_home() -> Path:
    """Return a folder with links to the installed Spark, without the Python modules of its workers."""
    installed = Path(pyspark.__file__).parent
    made_from = f"{pyspark.__version__} {installed} {Path(__file__).read_text()}"

    def link(folder: Path) -> None:
        for name in ("bin", "jars", "sbin"):
            (folder / name).symlink_to(installed / name)
        (folder / "python").mkdir()
        (folder / "python" / "pyspark").symlink_to(installed / "python" / "pyspark")  # shell.py, of program `pyspark`

    return cached("spark-home", made_from.encode(), link)
