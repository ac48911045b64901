# SPDX-License-Identifier: Apache-2.0
"""`tubemq-spark broker`: run an embedded TubeMQ until it is stopped."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tubemq_spark.cli.local_checks import INSTALL_SPARK
from tubemq_spark.cli.output import console, is_wide_terminal, print_json
from tubemq_spark.cli.tables import Rows, fitted, whole
from tubemq_spark.errors import ConfigError, TransportError

if TYPE_CHECKING:
    from tubemq_spark.testing import EmbeddedTubeMQ

_MAX_PARTITIONS = 1000
_TOPIC = re.compile(r"([^:]+)(?::(\d{1,4}))?")
_PERIOD = 0.5  # seconds between two updates of what a terminal shows

_READY = """\
An embedded TubeMQ that behaves like release {release} is running; it keeps messages in memory only.
  master   {master}
  HTTP     {web} (token {token})
  brokers  {brokers}
  topics   {topics}
Ctrl-C stops it. For the other commands, in another terminal:
export TUBEMQ_MASTER={master} TUBEMQ_ADMIN={web} TUBEMQ_ADMIN_TOKEN={token}
To read and write with Spark, start PySpark there{install}:
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


def broker(
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", min=0, max=65_535,
        help="Port of the master.", show_default="a free port")
    ] = 0,
    web_port: Annotated[
        int,
        typer.Option(
            "--web-port", metavar="PORT", min=0, max=65_535,
            help="Port of the master's HTTP API, for commands with --admin.",
            show_default="a free port",
        ),
    ] = 0,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", metavar="NAME[:PARTITIONS]", show_default="demo:3",
            help="A topic, with that many partitions (3 by default) on each broker; may be repeated.",
        ),
    ] = None,
    brokers: Annotated[int, typer.Option("--brokers", metavar="NUMBER", min=1, max=100, help="Number of brokers.")] = 1,
    release: Annotated[
        str,
        typer.Option(
            "--release", metavar="RELEASE",
            help="TubeMQ release to behave like: 2.5, as 2.1 to 2.4 do, or 1.2, which has its own framing."
        ),
    ] = "2.5",
    as_json: Annotated[bool, typer.Option("--json", help="Print the addresses as one line of JSON.")] = False,
) -> None:  # fmt: skip
    """Run an embedded TubeMQ on 127.0.0.1 until Ctrl-C or SIGTERM. It keeps messages in memory only.

    A terminal shows what it does: connections, calls and messages.
    """
    from tubemq_spark.testing import EmbeddedTubeMQ

    stopped: SimpleQueue[None] = SimpleQueue()  # a signal handler may call its `put`, unlike an event's `set`
    _on_signals(lambda *_: stopped.put(None))
    topics = dict(named := [_topic(one) for one in topic or ["demo:3"]])
    if len(topics) < len(named):
        raise ConfigError("--topic names a topic twice")
    try:
        started = EmbeddedTubeMQ(topics, brokers, port=port, web_port=web_port, release=release)
    except OSError as cause:
        raise TransportError(
            f"{cause.strerror or cause}. Choose another port with --port or --web-port, or leave it out for a free one"
        ) from cause
    with started as tubemq:
        where = {"master": tubemq.master, "web": tubemq.web_master, "brokers": tubemq.broker_ids}
        out = console()
        if as_json:
            print_json({**where, "topics": topics, "release": tubemq.release.value})
        else:
            print(_as_text(tubemq, topics), end="", flush=True)
        if is_wide_terminal(out) and not as_json:
            _show_activity(tubemq, stopped, out)
        else:
            stopped.get()
        _on_signals(signal.SIG_IGN)  # a second signal must not disturb the stop


def _show_activity(tubemq: EmbeddedTubeMQ, stopped: SimpleQueue[None], out: Console) -> None:
    """Show clients, calls and messages below what was printed, until `stopped` has an item."""

    def rates(old: Mapping[str, int], new: Mapping[str, int]) -> list[tuple[str, int, int]]:
        return [(name, count, round((count - old.get(name, 0)) / _PERIOD)) for name, count in new.items()]

    def table(columns: tuple[str, ...], rows: Rows) -> Table:
        made = fitted(columns, rows, out.width, columns[:0:-1])
        return whole(columns, rows) if made is None else made.table

    before = tubemq.activity()
    with Live(console=out, auto_refresh=False, transient=True) as live:
        while True:
            now = tubemq.activity()
            shown = Group(
                Text(f"\nconnections: {now.clients}  clients that hold partitions: {now.readers}\n"),
                table(("topic", "messages", "per second"), rates(before.messages, now.messages)),
                Text(),
                table(("call", "count", "per second"), rates(before.calls, dict(sorted(now.calls.items())))),
            )
            live.update(shown, refresh=True)
            before = now
            with suppress(Empty):
                stopped.get(timeout=_PERIOD)
                return


def _on_signals(handler: Callable[..., object] | signal.Handlers) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def _as_text(tubemq: EmbeddedTubeMQ, topics: dict[str, int]) -> str:
    topic = next(iter(topics))
    return _READY.format(
        release=tubemq.release.value,
        master=tubemq.master,
        web=tubemq.web_master,
        brokers=", ".join(map(str, tubemq.broker_ids)),
        topics=", ".join(f"{name} (partitions on each broker: {count})" for name, count in topics.items()),
        token=tubemq.admin_token,
        install="" if find_spec("pyspark") else f" ({INSTALL_SPARK})",
        pyspark=in_new_terminal("pyspark"),
        code=pyspark_code(tubemq.master, topic),
    )


def _topic(text: str) -> tuple[str, int]:
    found = _TOPIC.fullmatch(text)
    if found is None or not 1 <= int(found[2] or 3) <= _MAX_PARTITIONS:
        raise ConfigError(f"--topic {text!r} is not NAME or NAME:PARTITIONS, with 1 to {_MAX_PARTITIONS} partitions")
    return found[1], int(found[2] or 3)


def in_new_terminal(command: str) -> str:
    """Return `command`, after a line that activates the virtual environment if a new terminal needs it."""
    script = Path(sys.executable).parent / "activate"
    activate = f". {os.path.relpath(script)}\n" if script.exists() and shutil.which("tubemq-spark") is None else ""
    return activate + command


def pyspark_code(master: str, topic: str) -> str:
    """Return code for a PySpark shell: start a query that shows the topic, send ten rows, and stop the query."""
    return _CODE.format(master=master, topic=topic)
