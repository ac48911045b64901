# SPDX-License-Identifier: Apache-2.0
"""The code of docs/howto/retry.md tries each row as often as the page says, and loses none."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.documentation.pages import Block, Shell, blocks
from tests.documentation.preparations import ADDRESS
from tests.matrix.queries import wait_for
from tests.spark.queries import came_too_late
from tubemq_spark.client import forget_servers
from tubemq_spark.testing import EmbeddedTubeMQ

PAGE = "docs/howto/retry.md"
DELAYS = [0.3, 0.6, 0.9]  # seconds, instead of the page's
ATTEMPTS = len(DELAYS) + 1
BAD_REQUEST = 400

Process = Callable[[DataFrame, int], None]


class Orders:
    """The service of the page. It refuses a value as often as `refusals` says, and notes when it was asked."""

    def __init__(self, refusals: dict[bytes, int]) -> None:
        self.asked: dict[bytes, list[float]] = defaultdict(list)
        self.accepted: set[bytes] = set()
        self._refusals = refusals
        orders = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                value = self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(200 if orders.ask(value) else 503)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def ask(self, value: bytes) -> bool:
        self.asked[value].append(time.time())
        if len(self.asked[value]) <= self._refusals.get(value, 0):
            return False
        self.accepted.add(value)
        return True

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def orders() -> Iterator[Orders]:
    opened = Orders({b"twice": 2, **{b"poison %d" % number: 1000 for number in range(5)}})
    yield opened
    opened.close()


@pytest.fixture
def tubemq(spark: SparkSession) -> Iterator[EmbeddedTubeMQ]:
    with EmbeddedTubeMQ({"clicks": 2, "clicks_retry": 2, "clicks_dead": 1}) as cluster:
        yield cluster
        for query in spark.streams.active:
            query.stop()
        forget_servers()


def opened_page(spark: SparkSession, tubemq: EmbeddedTubeMQ, orders: Orders, folder: Path) -> tuple[Shell, Block]:
    """Run the page's functions. Return the shell, and the block that starts the queries."""
    replaced = {
        ADDRESS: tubemq.master,
        r"orders\.example": orders.address,
        r"DELAYS = \[.*\]": f"DELAYS = {DELAYS}",
        '"1 minute"': '"0 seconds"',
    }
    shell = Shell(PAGE, spark, folder, replaced)
    functions, start = (block for block in blocks(PAGE) if block.language == "python")
    shell.paste(functions)
    return shell, start


def run_queries(shell: Shell, start: Block, folder: Path, is_done: Callable[[], bool]) -> bool:
    """Run both queries until `is_done`, or one fails. Return `is_done`."""
    shell.paste(start)
    running = [shell.names["first"], shell.names["again"]]
    wait_for(lambda: is_done() or not all(query.isActive for query in running), "the end of the retries")
    for query, name in zip(running, ("clicks_deliver", "clicks_retry"), strict=True):
        stop(query, folder / name)
    return is_done()


def stop(query: StreamingQuery, checkpoint: Path) -> None:
    """Stop a query, but not while it writes its first offset: Spark would refuse to start it again
    (docs/howto/troubleshooting.md)."""
    wait_for(lambda: not query.isActive or (checkpoint / "offsets" / "0").exists(), "the first offset")
    query.stop()


def dead(tubemq: EmbeddedTubeMQ) -> list[bytes]:
    return [message.body for message in tubemq.messages("clicks_dead")]


@pytest.mark.thorough
def test_a_row_is_tried_n_times_and_never_early(
    spark: SparkSession, tubemq: EmbeddedTubeMQ, orders: Orders, tmp_path: Path
) -> None:
    for body in (b"good", b"twice", b"poison 0"):
        tubemq.send("clicks", body, attributes={"customer": "c"}, msg_type="order")
    shell, start = opened_page(spark, tubemq, orders, tmp_path)
    while not run_queries(shell, start, tmp_path, lambda: bool(dead(tubemq))):
        assert any(came_too_late(shell.names[name]) for name in ("first", "again"))
    assert {body: len(times) for body, times in orders.asked.items()} == {
        b"good": 1,
        b"twice": 3,
        b"poison 0": ATTEMPTS,
    }
    for times in orders.asked.values():
        assert all(later - earlier >= delay for (earlier, later), delay in zip(pairwise(times), DELAYS, strict=False))
    (found,) = tubemq.messages("clicks_dead")
    assert (found.body, found.msg_type) == (b"poison 0", "order")
    attributes = found.attributes or {}
    assert (attributes["customer"], attributes["retry_attempts"]) == ("c", str(ATTEMPTS))
    assert attributes["retry_id"].startswith("clicks/1/")
    assert "503" in attributes["retry_error"]


class KilledError(Exception):
    """Ends a query as a kill does: its micro-batch is not committed."""


def fail_in(tubemq: EmbeddedTubeMQ, steps: list[str], process: Process) -> Process:
    """Return `process`, which ends its first calls with rows at these steps."""

    def run(batch: DataFrame, batch_id: int) -> None:
        step = steps.pop(0) if steps else ""
        if step == "before":
            raise KilledError(step)
        if step == "half":  # some rows are stored, and a refusal ends the task
            with tubemq.on("send_message", nth=2, times=1).fail(BAD_REQUEST):
                process(batch, batch_id)
            steps.insert(0, step)  # there was only one row
            return
        process(batch, batch_id)
        if step == "after":
            raise KilledError(step)

    return run


@pytest.mark.thorough
def test_no_row_is_lost_wherever_the_queries_fail(
    spark: SparkSession, tubemq: EmbeddedTubeMQ, orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = {name: ["before", "half", "after"] for name in ("process", "process_again")}
    kills = sum(map(len, steps.values()))
    original: Any = DataStreamWriter.foreachBatch
    monkeypatch.setattr(
        DataStreamWriter,
        "foreachBatch",
        lambda writer, function: original(writer, fail_in(tubemq, steps[function.__name__], function)),
    )
    poison = {b"poison %d" % number for number in range(5)}
    for body in (b"good", b"twice", *poison):
        tubemq.send("clicks", body)
    shell, start = opened_page(spark, tubemq, orders, tmp_path)

    def is_done() -> bool:
        return set(dead(tubemq)) == poison and orders.accepted == {b"good", b"twice"}

    while not run_queries(shell, start, tmp_path, is_done):
        pass
    assert steps == {"process": [], "process_again": []}
    for body in poison:
        assert ATTEMPTS <= len(orders.asked[body]) <= ATTEMPTS + kills
