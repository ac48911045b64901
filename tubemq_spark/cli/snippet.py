"""Code for users to paste: PySpark code that reads and writes a topic, and commands for a new terminal."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

# Not indented, because Python would refuse that. In parentheses, because a shell executes pasted lines one by one.
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


def in_new_terminal(command: str) -> str:
    """Return `command`, after a line that activates the virtual environment if a new terminal needs it."""
    script = Path(sys.executable).parent / "activate"
    activate = f". {os.path.relpath(script)}\n" if script.exists() and shutil.which("tubemq-spark") is None else ""
    return activate + command


def pyspark_code(master: str, topic: str) -> str:
    """Return code for a PySpark shell: start a query that shows the topic, send ten rows, and stop the query."""
    return _CODE.format(master=master, topic=topic)
