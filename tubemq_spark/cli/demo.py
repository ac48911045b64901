"""`tubemq-spark demo`: readings of sensors through an embedded TubeMQ and Spark, on the screen in seconds."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tubemq_spark.cli import Commands
from tubemq_spark.cli.interrupt import Interrupt
from tubemq_spark.cli.requirements import need_rich, need_spark
from tubemq_spark.cli.sensors import Sensors
from tubemq_spark.cli.snippet import code, shell
from tubemq_spark.errors import TubeMQError
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE, MASTER_PORT
from tubemq_spark.testing import EmbeddedTubeMQ

if TYPE_CHECKING:
    from tubemq_spark.cli.display import View
    from tubemq_spark.cli.stream import Stream

TOPIC, GROUP = "sensors", "demo_group"
_LOOK = 0.1  # seconds between two looks at the query
_PATIENCE = 120.0  # seconds to wait for the first rows
_WORKERS = "the first micro-batch starts Python workers ..."
_NEXT = """\
What to try next: a TubeMQ in one terminal,
{broker}
in another PySpark,
{pyspark}
and to paste there, to read, to write and to end the query:
{code}"""


class DemoError(TubeMQError):
    """The demo did not show what it is there to show."""


def add_to(commands: Commands) -> None:
    parser = commands.add_parser(
        "demo",
        help="stream rows from an embedded TubeMQ through Spark, show them, end by itself",
        description="Starts an embedded TubeMQ, sends sensors' readings to it and streams them through a local Spark.",
    )
    parser.add_argument("--seconds", type=_seconds, default=8.0, help="how long to stream, from the first rows on (8)")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    need_rich()
    need_spark()
    from tubemq_spark.cli.display import View, console

    view = View(console())
    with (
        tempfile.TemporaryDirectory(prefix="tubemq-demo-", ignore_cleanup_errors=True) as folder,
        EmbeddedTubeMQ() as tubemq,
    ):
        log = Path(folder) / "spark.log"
        try:
            with view:
                rows = _stream(tubemq, view, Path(folder), log, given.seconds)
        except TubeMQError:
            print(_tail(log), file=sys.stderr)
            raise
    view.say(f"All {rows} rows came out, each once. Group {GROUP} stands at the end of the topic: lag 0.")
    view.say(_what_next())
    return 0


def _stream(tubemq: EmbeddedTubeMQ, view: View, folder: Path, log: Path, seconds: float) -> int:
    """All there is to see; how many rows were sent, and came out."""
    from tubemq_spark.cli.stream import VERSION, Stream, local_session

    tubemq.create_topic(TOPIC, partitions=1, stores=3)  # with a store of its own each row knows its offset
    view.say(f"An embedded TubeMQ listens at {tubemq.master}; sensors write to the 3 partitions of topic {TOPIC}.")
    with Interrupt() as interrupt, Sensors(tubemq, TOPIC) as sensors:
        view.status(f"starting Spark {VERSION} ...")
        with local_session(folder, log) as session:
            interrupt.check()
            view.status(_WORKERS)  # for what is said stands above it
            view.say(f"Spark {VERSION} reads them in micro-batches.")
            with Stream(session, tubemq.master, GROUP, TOPIC, folder, lambda rows: sensors.sent - rows) as stream:
                _watch(stream, sensors, view, seconds, interrupt)
                _finish(stream, sensors, view)
    _check(tubemq, sensors.sent, stream)
    return sensors.sent


def _watch(stream: Stream, sensors: Sensors, view: View, seconds: float, interrupt: Interrupt) -> None:
    """Shows what comes until `seconds` after the first rows."""
    ends = None
    gives_up = time.monotonic() + _PATIENCE
    while ends is None or time.monotonic() < ends:
        for batch in stream.committed():
            view.show(batch)
            if batch.rows and ends is None:
                ends = time.monotonic() + seconds
        if ends is None and time.monotonic() > gives_up:
            raise DemoError(f"no rows came out of Spark within {_PATIENCE:g} s, though {sensors.sent} were sent")
        view.status(_now(stream, sensors))
        time.sleep(_LOOK)
        interrupt.check()


def _finish(stream: Stream, sensors: Sensors, view: View) -> None:
    sensors.stop()
    stream.drain()
    for batch in stream.committed():
        view.show(batch)
    view.status(_now(stream, sensors))


def _now(stream: Stream, sensors: Sensors) -> str:
    if not stream.rows:
        return _WORKERS
    return f"{sensors.sent} rows sent, {stream.rows} came out of Spark, lag {sensors.sent - stream.rows}"


def _check(tubemq: EmbeddedTubeMQ, sent: int, stream: Stream) -> None:
    """All that was sent came out once, and the group stands behind it; `DemoError` otherwise."""
    if not sent or not sent == stream.rows == len(stream.places):
        raise DemoError(
            f"{sent} rows were sent to topic {TOPIC}, and {stream.rows} came out of Spark, "
            f"{len(stream.places)} of them different"
        )
    ends: dict[tuple[int, int], int] = {}
    for message in tubemq.messages(TOPIC):
        ends[message.broker_id, message.partition] = message.offset + INDEX_MSG_UNIT_SIZE
    stands = {place: tubemq.group_offset(GROUP, TOPIC, *place) for place in ends}
    if stands != ends:
        raise DemoError(f"all rows came out, but group {GROUP} was moved to {stands} and the topic ends at {ends}")


def _what_next() -> str:
    return _NEXT.format(
        broker=shell(f"tubemq-spark broker --port {MASTER_PORT}"),
        pyspark=shell("pyspark"),
        code=code(f"127.0.0.1:{MASTER_PORT}", "demo"),
    )


def _tail(log: Path) -> str:
    """The end of what Spark said, which goes away with its folder."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:]) if log.exists() else ""


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds within 0 and 86400")
    return seconds
