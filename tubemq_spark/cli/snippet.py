"""What to paste into another terminal: PySpark that reads and writes a topic."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

# Not indented, for Python would refuse it; in parentheses, for a long statement is read and pasted line by line.
_CODE = """\
query = (
    spark.readStream.format("tubemq")
    .option("tubemq.master", "{master}")
    .option("tubemq.group", "my_group")
    .option("subscribe", "{topic}")
    .option("startingOffsets", "earliest")
    .load()
    .selectExpr("CAST(value AS STRING) AS value", "partition", "message_id")
    .writeStream.format("console")
    .start()
)
(
    spark.range(10).selectExpr("CAST(id AS STRING) AS value")
    .write.format("tubemq").mode("append")
    .option("tubemq.master", "{master}")
    .option("topic", "{topic}")
    .save()
)
query.processAllAvailable()
query.stop()"""


def shell(command: str) -> str:
    """`command` for a new terminal, behind what activates the virtual environment where there is one to activate."""
    script = Path(sys.executable).parent / "activate"
    activate = f". {os.path.relpath(script)}\n" if script.exists() and shutil.which("tubemq-spark") is None else ""
    return activate + command


def code(master: str, topic: str) -> str:
    """For a PySpark shell: a query that shows the topic, ten rows for it, and the query's end when they were shown."""
    return _CODE.format(master=master, topic=topic)
