# SPDX-License-Identifier: Apache-2.0
"""A task whose input Spark ends before its end sends nothing more: no later attempt sends its rows at the same time."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pyarrow as pa
import pytest

from tests.clusters import Cluster
from tests.without_spark.sink import Writing, batches, bodies, schema
from tubemq_spark.client import system
from tubemq_spark.errors import FencedError
from tubemq_spark.sink.commit import Written
from tubemq_spark.sink.task_writer import write_batches

END_OF_STREAM = struct.pack(">i", -4)  # pyspark.serializers.SpecialLengths
ROWS = [{"value": b"%02d" % number} for number in range(12)]


class Connection:
    """The connection between a JVM and a worker, and the worker's stream of it, as pyspark's `main` has it."""

    def __init__(self) -> None:
        self.jvm, self._worker = socket.socketpair()
        self._stream = self._worker.makefile("rb")

    def close(self) -> None:
        for one in (self.jvm, self._stream, self._worker):
            one.close()

    def run(self, writing: Writing, rows: Iterator[pa.RecordBatch]) -> Written:
        infile = self._stream  # noqa: F841 (the task looks for a variable of this name)
        return write_batches(writing.plan, rows)


@pytest.fixture
def connection() -> Iterator[Connection]:
    opened = Connection()
    yield opened
    opened.close()


@pytest.mark.parametrize("most", [1, None], ids=["each row is sent at once", "the rows are sent together"])
@pytest.mark.parametrize("given", range(len(ROWS) + 1))
def test_a_task_that_spark_gives_up_sends_nothing_more(
    cluster: Cluster, connection: Connection, given: int, most: int | None
) -> None:
    topic = cluster.new_topic("one")
    writing = Writing(cluster, schema(ROWS), topic, tubemq_producer_maxInFlightBytes=most)

    def rows() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches(ROWS, schema(ROWS), 1)):
            if number == given:
                connection.jvm.shutdown(socket.SHUT_WR)  # the JVM has sent more rows before that
            yield batch
        if given == len(ROWS):
            connection.jvm.shutdown(socket.SHUT_WR)

    with pytest.raises(FencedError, match="before all its rows came"):
        connection.run(writing, rows())
    stored = bodies(cluster, topic)
    assert stored == [row["value"] for row in ROWS[: len(stored)]]
    assert len(stored) <= (given if most else 0)


@pytest.mark.parametrize("ends_whole", [True, False])
def test_systems_that_show_it_late_show_it_at_the_end(
    cluster: Cluster, connection: Connection, monkeypatch: pytest.MonkeyPatch, ends_whole: bool
) -> None:
    monkeypatch.setattr(system, "is_shut_down", lambda descriptor: None)
    topic = cluster.new_topic("one")
    writing = Writing(cluster, schema(ROWS), topic)
    if ends_whole:
        connection.jvm.sendall(END_OF_STREAM)
        connection.run(writing, batches(ROWS, schema(ROWS), 1))
    else:
        connection.jvm.shutdown(socket.SHUT_WR)
        with pytest.raises(FencedError, match="before all its rows came"):
            connection.run(writing, batches(ROWS, schema(ROWS), 1))
    assert bodies(cluster, topic) == [row["value"] for row in ROWS if ends_whole]


def test_an_input_that_is_complete_is_stored(cluster: Cluster, connection: Connection) -> None:
    topic = cluster.new_topic("one")
    connection.jvm.sendall(END_OF_STREAM)
    connection.run(Writing(cluster, schema(ROWS), topic), batches(ROWS, schema(ROWS), 1))
    assert bodies(cluster, topic) == [row["value"] for row in ROWS]
