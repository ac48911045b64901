"""`tubemq-spark broker`: run an embedded TubeMQ until it is stopped."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from tubemq_spark.cli import Commands
from tubemq_spark.cli.requirements import INSTALL_SPARK
from tubemq_spark.errors import TransportError
from tubemq_spark.testing import EmbeddedTubeMQ, Release

_READY = """\
An embedded TubeMQ that behaves like release {release} is running; it keeps messages in memory only.
  master   {master}
  brokers  {brokers}
  topics   {topics}
Ctrl-C stops it. In another terminal, start PySpark ({install}):
{pyspark}
Then paste this to read and write the topic, and to stop the query:
{code}
"""
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


def add_to(commands: Commands) -> None:
    parser = commands.add_parser(
        "broker",
        help="run an embedded TubeMQ until it is stopped",
        description="Run an embedded TubeMQ on 127.0.0.1 until Ctrl-C or SIGTERM. It keeps messages in memory only.",
    )
    parser.add_argument("--port", type=_port, default=0, help="port of the master (default: a free port)")
    parser.add_argument(
        "--topic",
        type=_topic,
        action="append",
        metavar="TOPIC",
        help="topic as NAME or NAME:PARTITIONS, with that many partitions on each broker (default: 3); "
        "may be repeated (default: demo:3)",
    )
    parser.add_argument("--brokers", type=_count, default=1, metavar="N", help="number of brokers (default: 1)")
    parser.add_argument(
        "--release",
        choices=[release.value for release in Release],
        default=Release.V2_5.value,
        help=f"TubeMQ release to behave like (default: {Release.V2_5.value}); 1.2 uses its own framing",
    )
    parser.add_argument("--json", action="store_true", help="print the address as one line of JSON")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    stopped: SimpleQueue[None] = SimpleQueue()  # a signal handler may call its `put`, unlike an event's `set`
    _on_signals(lambda *_: stopped.put(None))
    topics = dict(given.topic or [("demo", 3)])
    with _start(given, topics) as tubemq:
        print(_as_json(tubemq, topics) if given.json else _as_text(tubemq, topics), end="", flush=True)
        stopped.get()
        _on_signals(signal.SIG_IGN)  # a second signal must not disturb the stop
    return 0


def _on_signals(handler: Callable[..., object] | signal.Handlers) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def _start(given: argparse.Namespace, topics: dict[str, int]) -> EmbeddedTubeMQ:
    try:
        return EmbeddedTubeMQ(topics, given.brokers, port=given.port, release=given.release)
    except OSError as cause:
        raise TransportError(
            f"cannot listen on 127.0.0.1:{given.port}: {os.strerror(cause.errno or 0)}. Choose another port with "
            "--port, or leave it out for a free one"
        ) from cause


def _as_text(tubemq: EmbeddedTubeMQ, topics: dict[str, int]) -> str:
    topic = next(iter(topics))
    return _READY.format(
        release=tubemq.release.value,
        master=tubemq.master,
        brokers=", ".join(map(str, tubemq.broker_ids)),
        topics=", ".join(f"{name} ({partitions} partitions on each broker)" for name, partitions in topics.items()),
        install=INSTALL_SPARK,
        pyspark=in_new_terminal("pyspark"),
        code=pyspark_code(tubemq.master, topic),
    )


def _as_json(tubemq: EmbeddedTubeMQ, topics: dict[str, int]) -> str:
    where = {"master": tubemq.master, "brokers": tubemq.broker_ids}
    return json.dumps({**where, "topics": topics, "release": tubemq.release.value}) + "\n"


def _topic(text: str) -> tuple[str, int]:
    name, _, partitions = text.partition(":")
    if not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME or NAME:PARTITIONS")
    return name, _number(1, 1000, partitions or "3")


def _number(least: int, most: int, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least} to {most}")
    return number


_port, _count = partial(_number, 0, 65_535), partial(_number, 1, 100)


def in_new_terminal(command: str) -> str:
    """Return `command`, after a line that activates the virtual environment if a new terminal needs it."""
    script = Path(sys.executable).parent / "activate"
    activate = f". {os.path.relpath(script)}\n" if script.exists() and shutil.which("tubemq-spark") is None else ""
    return activate + command


def pyspark_code(master: str, topic: str) -> str:
    """Return code for a PySpark shell: start a query that shows the topic, send ten rows, and stop the query."""
    return _CODE.format(master=master, topic=topic)
