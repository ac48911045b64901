"""`tubemq-spark broker`: an embedded TubeMQ until it is stopped."""

from __future__ import annotations

import argparse
import json
import os
import signal
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from tubemq_spark.cli import Commands
from tubemq_spark.cli.requirements import INSTALL_SPARK
from tubemq_spark.cli.snippet import code, shell
from tubemq_spark.errors import TransportError
from tubemq_spark.testing import EmbeddedTubeMQ, Release

_READY = """\
A TubeMQ with the behaviour of {release} runs in this process, in memory alone.
  master   {master}
  brokers  {brokers}
  topics   {topics}
Ctrl-C ends it. In another terminal PySpark ({install}),
{pyspark}
and to paste there, to read, to write and to end the query:
{code}
"""


def add_to(commands: Commands) -> None:
    parser = commands.add_parser(
        "broker",
        help="serve an embedded TubeMQ until it is stopped",
        description="Serves an embedded TubeMQ on 127.0.0.1 until Ctrl-C or SIGTERM. Messages are kept in memory only.",
    )
    parser.add_argument("--port", type=_port, default=0, help="of the master; by default a free one")
    parser.add_argument(
        "--topic",
        type=_topic,
        action="append",
        metavar="TOPIC",
        help="NAME:PARTITIONS, with so many partitions on each broker; :PARTITIONS is optional (3); "
        "may be repeated (demo:3)",
    )
    parser.add_argument("--brokers", type=_count, default=1, metavar="N", help="how many (1)")
    parser.add_argument(
        "--release",
        choices=[release.value for release in Release],
        default=Release.V2_5.value,
        help=f"the TubeMQ to behave like ({Release.V2_5.value}); 1.2 speaks that release's own framing",
    )
    parser.add_argument("--json", action="store_true", help="say where it is in one line of JSON")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    stopped: SimpleQueue[None] = SimpleQueue()  # whose "put", unlike an event's "set", may interrupt the waiting
    _on_signals(lambda *_: stopped.put(None))
    topics = dict(given.topic or [("demo", 3)])
    with _start(given, topics) as tubemq:
        print(_as_json(tubemq, topics) if given.json else _as_text(tubemq, topics), end="", flush=True)
        stopped.get()
        _on_signals(signal.SIG_IGN)  # a second one comes too late to matter
    return 0


def _on_signals(handler: Callable[..., object] | signal.Handlers) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def _start(given: argparse.Namespace, topics: dict[str, int]) -> EmbeddedTubeMQ:
    try:
        return EmbeddedTubeMQ(topics, given.brokers, port=given.port, release=given.release)
    except OSError as cause:
        raise TransportError(
            f"cannot listen on port {given.port} of 127.0.0.1 ({os.strerror(cause.errno or 0)}): choose another one "
            "with --port, or leave it out"
        ) from cause


def _as_text(tubemq: EmbeddedTubeMQ, topics: dict[str, int]) -> str:
    topic = next(iter(topics))
    return _READY.format(
        release=tubemq.release.value,
        master=tubemq.master,
        brokers=", ".join(map(str, tubemq.broker_ids)),
        topics=", ".join(f"{name} ({partitions} partitions a broker)" for name, partitions in topics.items()),
        install=INSTALL_SPARK,
        pyspark=shell("pyspark"),
        code=code(tubemq.master, topic),
    )


def _as_json(tubemq: EmbeddedTubeMQ, topics: dict[str, int]) -> str:
    facts: dict[str, Any] = {
        "master": tubemq.master,
        "brokers": tubemq.broker_ids,
        "topics": topics,
        "release": tubemq.release.value,
    }
    return json.dumps(facts) + "\n"


def _port(text: str) -> int:
    return _within(text, 0, 65_535)


def _count(text: str) -> int:
    return _within(text, 1, 100)


def _topic(text: str) -> tuple[str, int]:
    name, _, partitions = text.partition(":")
    if not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME or NAME:PARTITIONS")
    return name, _within(partitions or "3", 1, 1000)


def _within(text: str, least: int, most: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number within {least} and {most}")
    return number
