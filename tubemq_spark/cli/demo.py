# SPDX-License-Identifier: Apache-2.0
"""`tubemq-spark demo`: stream sensor readings from an embedded TubeMQ through Spark and show them."""

from __future__ import annotations

import json
import random
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from tubemq_spark.cli.broker import in_new_terminal, pyspark_code
from tubemq_spark.cli.output import table
from tubemq_spark.cli.requirements import require_spark
from tubemq_spark.errors import TubeMQError
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE, MASTER_PORT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tubemq_spark.testing import EmbeddedTubeMQ

TOPIC, GROUP = "sensors", "demo_group"
_POLL_INTERVAL = 0.1  # seconds between two polls of the query
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
_COLUMNS = ("partition", "offset", "msg_type", "msg_time", "attributes", "value")
_PLAIN = "  {:<9}  {:>6}  {:<11}  {:<16}  {:<12}  {}"
_PLAIN_ROWS = 3  # printed of each batch, usually one of each partition
_LIVE_ROWS, _LIVE_BATCHES = 10, 6
_BAR = 24  # characters


class DemoError(TubeMQError):
    """The demo failed: rows are missing, duplicated or late."""

    cause = "The demo did not get the rows that it sent: some are missing, duplicated or late."
    remedy = "Look at the last lines of Spark's log, which the demo prints. On a busy machine run it again."


def demo(
    seconds: Annotated[
        float, typer.Option("--seconds", min=0, max=86_400, help="How long to stream after the first rows.")
    ] = 8.0,
) -> None:
    """Stream rows from an embedded TubeMQ through a local Spark, show them and the lag, and exit.

    Starts an embedded TubeMQ, sends sensor readings to it, and checks that each row came out once.
    """
    require_spark()
    from tubemq_spark.testing import EmbeddedTubeMQ

    display = Display(Console(highlight=False, markup=False, soft_wrap=True))
    stop = threading.Event()
    with (
        tempfile.TemporaryDirectory(prefix="tubemq-demo-", ignore_cleanup_errors=True) as folder,
        EmbeddedTubeMQ() as tubemq,
    ):
        log = Path(folder) / "spark.log"
        try:
            # Ctrl-C arrives in the main thread. Within a call of Spark it would break the connection to the JVM.
            with display, ThreadPoolExecutor(1) as pool:
                streaming = pool.submit(_stream, tubemq, display, Path(folder), log, seconds, stop)
                try:
                    rows = streaming.result()
                except KeyboardInterrupt:
                    stop.set()
                    raise
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


def _stream(
    tubemq: EmbeddedTubeMQ, display: Display, folder: Path, log: Path, seconds: float, stop: threading.Event
) -> int:
    """Run the demo until `seconds` after the first rows, or until `stop`. Return the number of rows."""
    from tubemq_spark.cli.stream import VERSION, local_session, spark_errors, start_query

    tubemq.create_topic(TOPIC, partitions=1, stores=3)  # a partition with its own store knows the offset of each row
    display.print(f"An embedded TubeMQ listens at {tubemq.master}; sensors write to the 3 partitions of topic {TOPIC}.")
    display.status(f"starting Spark {VERSION} ...")
    rows: list[Sequence[str]] = []
    with Sensors(tubemq, TOPIC) as sensors, local_session(folder, log) as session, spark_errors("the query failed"):

        def collect(frame: DataFrame, number: int) -> None:
            began = time.monotonic()
            new = [tuple("" if cell is None else str(cell) for cell in row) for row in frame.collect()]
            rows.extend(new)
            display.show(Batch(number, new, sensors.sent - len(rows), time.monotonic() - began))

        display.status(_STARTING_WORKERS)  # the next line is printed above it
        display.print(
            f"Spark {VERSION} reads them in micro-batches. The first one takes longest: it starts Python workers."
        )
        query = start_query(session, tubemq.master, GROUP, TOPIC, folder, collect)
        try:
            ends, has_rows = time.monotonic() + _FIRST_ROWS_TIMEOUT, False
            while time.monotonic() < ends and not stop.wait(_POLL_INTERVAL):
                if (cause := query.exception()) is not None:
                    raise cause
                if rows and not has_rows:
                    ends, has_rows = time.monotonic() + seconds, True
                display.status(_progress(sensors.sent, len(rows)))
            if not rows and not stop.is_set():
                raise DemoError(
                    f"no rows came out of Spark within {_FIRST_ROWS_TIMEOUT:g} s, but {sensors.sent} were sent"
                )
            sensors.stop()
            if not stop.is_set():
                query.processAllAvailable()
                display.status(_progress(sensors.sent, len(rows)))
        finally:
            query.stop()  # when this returns, the query has committed its offsets to the group
    if not stop.is_set():
        _check(tubemq, sensors.sent, rows)
    return sensors.sent


def _progress(sent: int, rows: int) -> str:
    return f"{sent} rows sent, {rows} came out of Spark, lag {sent - rows}" if rows else _STARTING_WORKERS


def _check(tubemq: EmbeddedTubeMQ, sent: int, rows: Sequence[Sequence[str]]) -> None:
    """Raise `DemoError` unless all rows came out once and the group's offsets are at the ends."""
    different = {(partition, offset) for partition, offset, *_ in rows}
    if not sent or not sent == len(rows) == len(different):
        raise DemoError(
            f"{sent} rows were sent to topic {TOPIC}, and {len(rows)} came out of Spark, "
            f"{len(different)} of them different"
        )
    ends: dict[tuple[int, int], int] = {}
    for message in tubemq.messages(TOPIC):
        ends[message.broker_id, message.partition] = message.offset + INDEX_MSG_UNIT_SIZE
    committed = {place: tubemq.group_offset(GROUP, TOPIC, *place) for place in ends}
    if committed != ends:
        raise DemoError(
            f"all rows came out, but the offsets of group {GROUP} are {committed} and the topic ends at {ends}"
        )


class Batch(NamedTuple):
    """A micro-batch: its rows as texts, and the number of messages behind it in the topic when they came out."""

    number: int
    rows: Sequence[Sequence[str]]
    lag: int
    seconds: float = 0.0


class Display:
    """Shows batches as they arrive: the newest in tables on a terminal, all as lines elsewhere. Thread-safe."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = ""
        self._rows: deque[Sequence[str]] = deque(maxlen=_LIVE_ROWS)
        self._batches: deque[Batch] = deque(maxlen=_LIVE_BATCHES)
        self._lock = threading.Lock()
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def status(self, text: str) -> None:
        """Show the current activity in one line, on a terminal only; the next status replaces it."""
        with self._lock:
            if self._live is not None and text != self._status:
                self._status = text
                self._redraw(self._live)

    def print(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(text)

    def show(self, batch: Batch) -> None:
        with self._lock:
            if self._live is None:
                lines = [] if self._batches else [_PLAIN.format(*_COLUMNS)]
                lines += [_PLAIN.format(*row) for row in _sample(batch.rows, _PLAIN_ROWS)]
                lines.append(f"batch {batch.number}: {len(batch.rows)} rows in {batch.seconds:.2f} s, lag {batch.lag}")
                self.print("\n".join(lines))
            self._batches.append(batch)
            self._rows.extend(_sample(batch.rows, _LIVE_ROWS))
            if self._live is not None:
                self._redraw(self._live)

    def _redraw(self, live: Live) -> None:
        parts: list[Panel | Text] = [Text(self._status, style="dim")]
        if self._batches:
            most = max(batch.lag for batch in self._batches) or 1
            batches = [
                (
                    one.number,
                    len(one.rows),
                    f"{one.seconds:.2f}",
                    round(len(one.rows) / (one.seconds or 1)),
                    one.lag,
                    "█" * round(_BAR * one.lag / most),
                )
                for one in self._batches
            ]
            rows = table(_COLUMNS, list(self._rows), wraps=False)
            progress = table(("batch", "rows", "seconds", "rows/s", "lag", ""), batches, wraps=False)
            parts[:0] = [
                Panel(rows, title="rows", title_align="left"),
                Panel(progress, title="micro-batches", title_align="left"),
            ]
        live.update(Group(*parts), refresh=True)


def _sample(rows: Sequence[Sequence[str]], count: int) -> Sequence[Sequence[str]]:
    """Return `count` rows at equal distances, or all if there are fewer."""
    return [rows[number * len(rows) // count] for number in range(count)] if len(rows) > count else rows


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
