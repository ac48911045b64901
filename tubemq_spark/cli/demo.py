# SPDX-License-Identifier: Apache-2.0
"""`tubemq-spark demo`: stream sensor readings from an embedded TubeMQ through Spark and show them."""

from __future__ import annotations

import json
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tubemq_spark.cli.broker import in_new_terminal, pyspark_code
from tubemq_spark.cli.requirements import require_spark
from tubemq_spark.errors import ConfigError, TubeMQError
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE, MASTER_PORT

if TYPE_CHECKING:
    from tubemq_spark.cli.display import Display
    from tubemq_spark.cli.stream import Stream
    from tubemq_spark.testing import EmbeddedTubeMQ

TOPIC, GROUP = "sensors", "demo_group"
_POLL_INTERVAL = 0.1  # seconds between two polls of the query
_MAX_SECONDS = 86_400
_FIRST_ROWS_TIMEOUT = 120.0  # seconds
_BURST_INTERVAL = 0.1  # seconds
# Unit, lowest and highest value
_KINDS = {"temperature": ("celsius", 60, 95), "pressure": ("bar", 2, 5), "vibration": ("mm_s", 0, 9)}
_SITES = ("north", "south", "harbour")
_STARTING_WORKERS = "the first micro-batch starts Python workers ..."
_NEXT_STEPS = """\
To try it yourself, start a TubeMQ in one terminal:
{broker}
Start PySpark in another one:
{pyspark}
Then paste this to read and write the topic, and to stop the query:
{code}"""


class DemoError(TubeMQError):
    """The demo failed: rows are missing, duplicated or late."""

    cause = "The demo did not get the rows that it sent: some are missing, duplicated or late."
    remedy = "Look at the last lines of Spark's log, which the demo prints. On a busy machine run it again."


def demo(
    seconds: Annotated[float, typer.Option("--seconds", help="How long to stream after the first rows.")] = 8.0,
) -> None:
    """Stream rows from an embedded TubeMQ through a local Spark, show them and the lag, and exit.

    Starts an embedded TubeMQ, sends sensor readings to it, and checks that each row came out once.
    """
    if not 0 <= seconds <= _MAX_SECONDS:
        raise ConfigError(f"--seconds is {seconds:g}; expected a number from 0 to {_MAX_SECONDS}")
    require_spark()
    from tubemq_spark.cli.display import Display
    from tubemq_spark.testing import EmbeddedTubeMQ

    display = Display(Console(highlight=False))
    with (
        tempfile.TemporaryDirectory(prefix="tubemq-demo-", ignore_cleanup_errors=True) as folder,
        EmbeddedTubeMQ() as tubemq,
    ):
        log = Path(folder) / "spark.log"
        try:
            with display:
                rows = _stream(tubemq, display, Path(folder), log, seconds)
        except TubeMQError:
            print(_tail(log), file=sys.stderr)
            raise
    display.print(f"All {rows} rows came out, each once. Group {GROUP} is at the end of the topic: lag 0.")
    display.print(
        _NEXT_STEPS.format(
            broker=in_new_terminal(f"tubemq-spark broker --port {MASTER_PORT}"),
            pyspark=in_new_terminal("pyspark"),
            code=pyspark_code(f"127.0.0.1:{MASTER_PORT}", "demo"),
        )
    )


def _stream(tubemq: EmbeddedTubeMQ, display: Display, folder: Path, log: Path, seconds: float) -> int:
    """Run the demo and return the number of rows that were sent and came out."""
    from tubemq_spark.cli.stream import VERSION, Stream, local_session

    tubemq.create_topic(TOPIC, partitions=1, stores=3)  # a partition with its own store knows the offset of each row
    display.print(f"An embedded TubeMQ listens at {tubemq.master}; sensors write to the 3 partitions of topic {TOPIC}.")
    with _postponed_interrupt() as check_interrupt, Sensors(tubemq, TOPIC) as sensors:
        display.status(f"starting Spark {VERSION} ...")
        with local_session(folder, log) as session:
            check_interrupt()
            display.status(_STARTING_WORKERS)  # the next line is printed above it
            display.print(
                f"Spark {VERSION} reads them in micro-batches. The first one takes longest: it starts Python workers."
            )
            with Stream(session, tubemq.master, GROUP, TOPIC, folder, lambda rows: sensors.sent - rows) as stream:
                _watch(stream, sensors, display, seconds, check_interrupt)
                sensors.stop()
                stream.drain()
                for batch in stream.committed():
                    display.show(batch)
                display.status(_progress(stream, sensors))
    _check(tubemq, sensors.sent, stream)
    return sensors.sent


def _watch(
    stream: Stream, sensors: Sensors, display: Display, seconds: float, check_interrupt: Callable[[], None]
) -> None:
    """Show the batches until `seconds` after the first rows."""
    ends = None
    deadline = time.monotonic() + _FIRST_ROWS_TIMEOUT
    while ends is None or time.monotonic() < ends:
        for batch in stream.committed():
            display.show(batch)
            if batch.rows and ends is None:
                ends = time.monotonic() + seconds
        if ends is None and time.monotonic() > deadline:
            raise DemoError(f"no rows came out of Spark within {_FIRST_ROWS_TIMEOUT:g} s, but {sensors.sent} were sent")
        display.status(_progress(stream, sensors))
        time.sleep(_POLL_INTERVAL)
        check_interrupt()


def _progress(stream: Stream, sensors: Sensors) -> str:
    if not stream.rows:
        return _STARTING_WORKERS
    return f"{sensors.sent} rows sent, {stream.rows} came out of Spark, lag {sensors.sent - stream.rows}"


def _check(tubemq: EmbeddedTubeMQ, sent: int, stream: Stream) -> None:
    """Raise `DemoError` unless all rows came out once and the group's offsets are at the ends."""
    if not sent or not sent == stream.rows == len(stream.offsets):
        raise DemoError(
            f"{sent} rows were sent to topic {TOPIC}, and {stream.rows} came out of Spark, "
            f"{len(stream.offsets)} of them different"
        )
    ends: dict[tuple[int, int], int] = {}
    for message in tubemq.messages(TOPIC):
        ends[message.broker_id, message.partition] = message.offset + INDEX_MSG_UNIT_SIZE
    committed = {place: tubemq.group_offset(GROUP, TOPIC, *place) for place in ends}
    if committed != ends:
        raise DemoError(
            f"all rows came out, but the offsets of group {GROUP} are {committed} and the topic ends at {ends}"
        )


@contextmanager
def _postponed_interrupt() -> Iterator[Callable[[], None]]:
    """Postpone the first Ctrl-C in the `with` block until the yielded function is called or the block ends.

    A `KeyboardInterrupt` within a call would break the connection to the JVM. A second Ctrl-C raises it at once.
    """
    is_interrupted = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def check() -> None:
        if is_interrupted:
            raise KeyboardInterrupt

    old_handler = signal.signal(signal.SIGINT, handle)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, old_handler)
        check()


class Sensors:
    """A thread that sends readings in bursts of various sizes while the `with` block runs."""

    def __init__(self, tubemq: EmbeddedTubeMQ, topic: str) -> None:
        self.sent = 0
        self._tubemq = tubemq
        self._topic = topic
        self._random = random.Random(20)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sensors", daemon=True)

    def __enter__(self) -> Sensors:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop sending; may be called again."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(_BURST_INTERVAL):
            for _ in range(self._random.choice((4, 8, 12, 40))):
                self._send()

    def _send(self) -> None:
        kind = self._random.choice(list(_KINDS))
        unit, lowest, highest = _KINDS[kind]
        reading = {"sensor": self._random.randrange(1, 100), unit: round(self._random.uniform(lowest, highest), 1)}
        self._tubemq.send(
            self._topic,
            json.dumps(reading).encode(),
            attributes={"site": self._random.choice(_SITES)},
            msg_type=kind,
            msg_time=f"{datetime.now(timezone.utc):%Y%m%d%H%M}",
        )
        self.sent += 1


def _tail(log: Path) -> str:
    """Return the last lines of Spark's log, whose folder is removed afterwards."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:]) if log.exists() else ""
