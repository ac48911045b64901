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
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from tubemq_spark.cli.broker import in_new_terminal, pyspark_code
from tubemq_spark.cli.local_checks import require_spark
from tubemq_spark.cli.output import console
from tubemq_spark.cli.tables import Rows, fitted
from tubemq_spark.errors import TubeMQError
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE, MASTER_PORT
from tubemq_spark.protocol.message import format_msg_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tubemq_spark.testing import EmbeddedTubeMQ

TOPIC, GROUP = "sensors", "demo_group"
_FIRST_ROWS_TIMEOUT = 120.0  # seconds
_BURST_INTERVAL = 0.1  # seconds between two bursts of readings
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
_COLUMNS = {
    "partition": "CONCAT(broker_id, ':', partition)",
    "offset": "offset",
    "msg_type": "msg_type",
    "msg_time": "DATE_FORMAT(msg_time, 'yyyy-MM-dd HH:mm')",
    "attributes": "ARRAY_JOIN(TRANSFORM(MAP_ENTRIES(attributes), pair -> CONCAT(pair.key, '=', pair.value)), ', ')",
    "value": "CAST(value AS STRING)",
}
_PLAIN = "  {:<9}  {:>6}  {:<11}  {:<16}  {:<12}  {}"
_PLAIN_ROWS = 3  # printed of each batch, usually one of each partition
_LIVE_ROWS, _LIVE_BATCHES = 10, 6
_BAR = 24  # characters
_SPARE_OF_ROWS = ("msg_time", "attributes", "msg_type", "value", "offset")
_SPARE_OF_BATCHES = ("", "rows/s", "seconds", "lag", "rows")
_FRAME = 4  # characters around the content of a panel


class DemoError(TubeMQError):
    """The demo failed: rows are missing, duplicated or late."""

    cause = "The demo did not get the rows that it sent: some are missing, duplicated or late."
    remedy = "Look at the last lines of Spark's log, which the demo prints. On a busy machine run it again."


def demo(
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds", metavar="SECONDS", min=0, max=86_400, help="How long to stream after the first rows."
        ),
    ] = 8.0,
) -> None:
    """Stream rows from an embedded TubeMQ through a local Spark, show them and the lag, and exit.

    Starts an embedded TubeMQ, sends sensor readings to it, and checks that each row came out once.
    """
    require_spark()
    from tubemq_spark.cli.stream import TOO_LATE
    from tubemq_spark.testing import EmbeddedTubeMQ

    display = Display(console())
    stop = threading.Event()
    with (
        tempfile.TemporaryDirectory(prefix="tubemq-demo-", ignore_cleanup_errors=True) as folder,
        EmbeddedTubeMQ() as tubemq,
    ):
        try:
            # Ctrl-C arrives in the main thread. Within a call of Spark it would break the connection to the JVM.
            with display.live, ThreadPoolExecutor(1) as pool:
                streaming = pool.submit(_stream, tubemq, display, Path(folder), seconds, stop)
                try:
                    rows = streaming.result()
                except KeyboardInterrupt:
                    stop.set()
                    raise
        except TubeMQError as error:
            log = Path(folder) / "spark.log"
            if TOO_LATE not in str(error) and log.exists():
                print("\n".join(log.read_text(errors="replace").splitlines()[-20:]), file=sys.stderr)
            raise
    display.print(f"All {rows} rows came out, each once. Group {GROUP} is at the end of the topic: lag 0.")
    display.print(
        _NEXT_STEPS.format(
            broker=in_new_terminal(f"tubemq-spark broker --port {MASTER_PORT}"),
            pyspark=in_new_terminal("pyspark"),
            code=pyspark_code(f"127.0.0.1:{MASTER_PORT}", "demo"),
        )
    )


def _stream(tubemq: EmbeddedTubeMQ, display: Display, folder: Path, seconds: float, stop: threading.Event) -> int:
    """Run the demo until `seconds` after the first rows, or until `stop`. Return the number of rows."""
    from tubemq_spark.cli.stream import local_session, spark_errors

    tubemq.create_topic(TOPIC, partitions=1, stores=3)  # a partition with its own store knows the offset of each row
    display.print(f"An embedded TubeMQ listens at {tubemq.master}; sensors write to the 3 partitions of topic {TOPIC}.")
    display.status = "starting Spark ..."
    rows: list[Sequence[str]] = []
    chance, sent = random.Random(20), 0
    with local_session(folder) as session, spark_errors("the query failed"):

        def collect(frame: DataFrame, number: int) -> None:
            began = time.monotonic()
            new = [tuple("" if cell is None else str(cell) for cell in row) for row in frame.collect()]
            rows.extend(new)
            display.show(Batch(number, new, sent - len(rows), time.monotonic() - began))

        display.status = _STARTING_WORKERS  # the next line is printed above it
        display.print(
            f"Spark {session.version} reads them in micro-batches. The first one takes longest: it starts Python "
            "workers."
        )
        query = (
            session.readStream.format("tubemq")
            .options(**{"tubemq.master": tubemq.master, "tubemq.group": GROUP})
            .options(subscribe=TOPIC, startingOffsets="earliest")
            .load()
            .selectExpr(*_COLUMNS.values())
            .writeStream.foreachBatch(collect)  # in another thread
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(processingTime="1 second")
            .start()
        )
        try:
            ends, has_rows = time.monotonic() + _FIRST_ROWS_TIMEOUT, False
            while time.monotonic() < ends and not stop.wait(_BURST_INTERVAL):
                if (cause := query.exception()) is not None:
                    raise cause
                for _ in range(chance.choice((4, 8, 12, 40))):
                    sent += 1
                    _send_reading(tubemq, chance)
                if rows and not has_rows:
                    ends, has_rows = time.monotonic() + seconds, True
                display.status = _progress(sent, len(rows))
            if stop.is_set():
                return sent
            if not rows:
                raise DemoError(f"no rows came out of Spark within {_FIRST_ROWS_TIMEOUT:g} s, but {sent} were sent")
            query.processAllAvailable()
            display.status = _progress(sent, len(rows))
        finally:
            query.stop()  # when this returns, the query has committed its offsets to the group
    _check(tubemq, sent, rows)
    return sent


def _send_reading(tubemq: EmbeddedTubeMQ, chance: random.Random) -> None:
    kind = chance.choice(list(_KINDS))
    unit, lowest, highest = _KINDS[kind]
    reading = {"sensor": chance.randrange(1, 100), unit: round(chance.uniform(lowest, highest), 1)}
    tubemq.send(
        TOPIC,
        json.dumps(reading).encode(),
        attributes={"site": chance.choice(_SITES)},
        msg_type=kind,
        msg_time=format_msg_time(datetime.now(timezone.utc)),
    )


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
    """Shows batches as they arrive: the newest in tables on a terminal while `live` is entered, all as lines elsewhere.
    `status` is the current activity, for a terminal only."""

    def __init__(self, console: Console) -> None:
        self.print = console.print  # prints lines that stay
        self.status = ""
        self._rows: deque[Sequence[str]] = deque(maxlen=_LIVE_ROWS)
        self._batches: deque[Batch] = deque(maxlen=_LIVE_BATCHES)
        self._is_terminal = console.is_terminal
        self._console = console
        self._left_out: set[str] = set()  # a column that is left out once does not come back with shorter cells
        live = Live(console=console, get_renderable=self._view)
        self.live: AbstractContextManager[object] = live if console.is_terminal else nullcontext()

    def show(self, batch: Batch) -> None:
        if not self._is_terminal:
            lines = [] if self._batches else [_PLAIN.format(*_COLUMNS)]
            lines += [_PLAIN.format(*row) for row in _sample(batch.rows, _PLAIN_ROWS)]
            lines.append(f"batch {batch.number}: {len(batch.rows)} rows in {batch.seconds:.2f} s, lag {batch.lag}")
            self.print("\n".join(lines))
        self._batches.append(batch)
        self._rows.extend(_sample(batch.rows, _LIVE_ROWS))

    def _view(self) -> Group:
        status = Text(self.status, style="dim")
        newest = list(self._batches)
        if not newest:
            return Group(status)
        most = max(batch.lag for batch in newest) or 1
        batches = []
        for number, rows, lag, seconds in newest:
            rate = round(len(rows) / (seconds or 1))
            batches.append((number, len(rows), f"{seconds:.2f}", rate, lag, "█" * round(_BAR * lag / most)))
        of_batches = ("batch", "rows", "seconds", "rows/s", "lag", "")
        return Group(
            self._panel("rows", list(_COLUMNS), list(self._rows), _SPARE_OF_ROWS),
            self._panel("micro-batches", of_batches, batches, _SPARE_OF_BATCHES),
            status,
        )

    def _panel(self, title: str, columns: Sequence[str], rows: Rows, spare: Sequence[str]) -> Panel:
        places = [place for place, name in enumerate(columns) if name not in self._left_out]
        shown, cells = [columns[place] for place in places], [[row[place] for place in places] for row in rows]
        made = fitted(shown, cells, self._console.width - _FRAME, [name for name in spare if name in shown])
        if made is None:
            return Panel("", title=title, title_align="left")
        self._left_out.update(made.left_out)
        gone = [name for name in columns if name in self._left_out and name]
        if gone:
            title = f"{title}, without {', '.join(gone)}: the terminal is too narrow"
        return Panel(made.table, title=title, title_align="left")


def _sample(rows: Sequence[Sequence[str]], count: int) -> Sequence[Sequence[str]]:
    """Return `count` rows at equal distances, or all if there are fewer."""
    return [rows[number * len(rows) // count] for number in range(count)] if len(rows) > count else rows
