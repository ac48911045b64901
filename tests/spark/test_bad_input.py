# SPDX-License-Identifier: Apache-2.0
"""Errors about bad input: they are raised at once, on the driver, in one sentence that says what to do.

The tests look at the text of the exception that the user's program gets from Spark.
"""

from __future__ import annotations

import json
import re
import socket
import socketserver
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.clusters import Cluster
from tests.clusters.servers import EMBEDDED
from tests.messages import partitions
from tests.spark.queries import Batches, Queries, Source, run_to_the_end, wait_for, wait_for_progress
from tests.spark.rivals import ServerBalanced, foreign_claim

PASSWORD = "p4ssw0rd-of-nobody"
SECONDS = 120  # a query that has not failed by then hangs; most need 2 s, on a busy machine more

_RAISED = re.compile(r"tubemq_spark\.errors\.(\w+): (.*)")
_CHAINED = re.compile("direct cause of the following|During handling of the above")
_AT_LOAD = "PYTHON_DATA_SOURCE_ERROR"
_ON_DRIVER = (_AT_LOAD, "PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR")


class Complaint(NamedTuple):
    error: str
    sentence: str


class Failing:
    """A read that fails: it loads, counts a batch or runs a stream, and returns the error."""

    def __init__(self, source: Source, queries: Queries, folder: Path, topic: str, kind: str) -> None:
        self.source = source
        self.topic = topic
        self.checkpoint = folder / "checkpoint"
        self._queries = queries
        self._kind = kind

    def __call__(self, **options: object) -> Complaint:
        options = {"subscribe": self.topic, "tubemq.user": "u", "tubemq.password": PASSWORD, **options}
        return complaint(lambda: self._read(options))

    def load(self, **options: object) -> Complaint:
        options = {"subscribe": self.topic, "tubemq.user": "u", "tubemq.password": PASSWORD, **options}
        return complaint(lambda: self._frame(options))

    def _frame(self, options: Mapping[str, object]):  # type: ignore[no-untyped-def]
        return (self.source.stream if self._kind == "stream" else self.source.batch)(**options)

    def _read(self, options: Mapping[str, object]) -> None:
        frame = self._frame(options)
        if self._kind == "stream":
            run_to_the_end(self._queries.start(frame, Batches(), self.checkpoint), SECONDS)
        else:
            frame.count()


def complaint(action: Callable[[], object]) -> Complaint:
    with pytest.raises(PySparkException) as caught:
        action()
    text = str(caught.value)
    assert any(condition in text for condition in _ON_DRIVER), text
    assert PASSWORD not in text
    (raised,) = _RAISED.finditer(text)  # exactly one error, without a cause
    assert not _CHAINED.search(text[: raised.start()]), text  # Spark's own error may follow
    return Complaint(*raised.groups())


@pytest.fixture(scope="module")
def topic(cluster: Cluster) -> str:
    """One topic is enough for all failing reads."""
    return cluster.new_topic("three")


@pytest.fixture(params=["batch", "stream"])
def failing(source: Source, queries: Queries, tmp_path: Path, topic: str, request: pytest.FixtureRequest) -> Failing:
    return Failing(source, queries, tmp_path, topic, request.param)


@pytest.fixture
def failing_stream(source: Source, queries: Queries, tmp_path: Path, topic: str) -> Failing:
    return Failing(source, queries, tmp_path, topic, "stream")


# Options at load(): no server is asked, so one kind of server is enough.
on_one_server = pytest.mark.parametrize("cluster", [EMBEDDED], indirect=True)


@on_one_server
@pytest.mark.parametrize(
    ("options", "sentence"),
    [  # tests/source/test_options.py has all errors, without Spark
        ({"tubemq.master": None}, "option 'tubemq.master' is required: host:port"),
        ({"tubemq.mastre": "m"}, "option 'tubemq.mastre' is unknown; did you mean 'tubemq.master'?"),
        ({"failOnDataLoss": "maybe"}, "option 'failOnDataLoss' is 'maybe'; expected true or false"),
        ({"startingOffsets": {"t": {"1:0": 29}}}, "positions are multiples of 28"),
    ],
)
def test_bad_options_are_refused_at_load(failing: Failing, options: dict[str, object], sentence: str) -> None:
    told = failing.load(**options)
    assert told.error == "ConfigError"
    assert sentence in told.sentence


@on_one_server
def test_a_stream_has_no_end(failing_stream: Failing) -> None:
    told = failing_stream(endingOffsets="latest")
    assert told == ("ConfigError", "option 'endingOffsets' is for batch reads: a stream has no end, leave it out")


@on_one_server
def test_user_schema_is_refused(failing: Failing, spark: SparkSession) -> None:
    reader = spark.readStream if failing._kind == "stream" else spark.read
    options = failing.source.options(failing.topic)

    def read() -> None:
        frame = reader.format("tubemq").options(**options).schema("value STRING").load()
        if frame.isStreaming:
            run_to_the_end(failing._queries.start(frame, Batches(), failing.checkpoint), SECONDS)
        else:
            frame.count()

    told = complaint(read)
    assert told.error == "ConfigError"
    assert "leave out .schema(…) and convert `value` with from_json" in told.sentence


# The cluster


class WrongMaster(NamedTuple):
    """An address that is not a master's, and the error of a read from there."""

    address: str
    error: str
    sentence: str


class NotHTTP(socketserver.BaseRequestHandler):
    """Answers as a master's web port does to a TubeMQ client."""

    def handle(self) -> None:
        self.request.recv(1 << 16)
        self.request.sendall(b"HTTP/1.1 400 Illegal character CNTL=0x0\r\nConnection: close\r\n\r\n")


@contextmanager
def web_server() -> Iterator[str]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), NotHTTP) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield "{}:{}".format(*server.server_address)
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def refused_address() -> Iterator[str]:
    """An address where nobody listens; the port is taken, so that nobody else can."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield "{}:{}".format(*taken.getsockname())


@pytest.fixture
def wrong_master(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[WrongMaster]:
    check = "Check option 'tubemq.master' and that the master runs"
    if request.param == "silence":
        with socket.create_server(("127.0.0.1", 0)) as server:
            silent = "{}:{}".format(*server.getsockname())
            yield WrongMaster(
                silent, "TransportError", "does not answer within 1 s in either framing. Check that it is the plain"
            )
    elif request.param == "nobody":
        with refused_address() as refused:
            yield WrongMaster(refused, "TransportError", f"Connection refused. {check}")
    elif request.param == "broker":
        yield WrongMaster(
            cluster.broker_address(1), "ConfigError", "Check option 'tubemq.master': masters listen on 8715"
        )
    elif request.param == "http":
        with web_server() as address:
            yield WrongMaster(address, "ProtocolError", "does not speak TubeMQ's protocol")
    elif request.param == "no name":
        yield WrongMaster("nobody.invalid", "TransportError", check)


@pytest.mark.parametrize(
    ("cluster", "wrong_master"),
    [
        *(
            pytest.param("embedded", kind, id=f"embedded-{kind}")
            for kind in ("nobody", "silence", "broker", "http", "no name")
        ),
        pytest.param("real", "broker", id="real-broker", marks=[pytest.mark.real, pytest.mark.thorough]),
    ],
    indirect=True,
)
def test_wrong_master_address_is_explained(failing: Failing, wrong_master: WrongMaster) -> None:
    told = failing(
        **{
            "tubemq.master": wrong_master.address,
            "tubemq.rpc.framing": "auto",
            "tubemq.rpc.timeoutMs": 1000 if "within 1 s" in wrong_master.sentence else None,
            "tubemq.retry.maxElapsedMs": 500,
        }
    )
    assert told.error == wrong_master.error
    assert wrong_master.address in told.sentence
    assert wrong_master.sentence in told.sentence


# The group


def test_group_with_other_topics_is_refused(failing: Failing, queries: Queries, tmp_path: Path) -> None:
    query = queries.start(failing.source.stream(failing.source.cluster.new_topic("one")), Batches(), tmp_path / "other")
    wait_for_progress(query)
    told = failing()
    assert told.error == "ConfigError"
    assert "the group is in use with other topics: stop those consumers, or use another 'tubemq.group'" in told.sentence
    assert query.isActive


def test_server_balanced_group_is_refused(failing: Failing) -> None:
    rival = ServerBalanced(failing.source.cluster, failing.source.group, [failing.topic])
    assert rival.register()[0] == 200
    try:
        told = failing()
    finally:
        rival.close()
    assert told.error == "ConfigError"
    assert "consumers with server-side balance: stop them, or use another 'tubemq.group'" in told.sentence


def test_partition_held_by_another_consumer_is_explained(failing: Failing) -> None:
    cluster, group = failing.source.cluster, failing.source.group
    partition = partitions(cluster, failing.topic)[-1]
    with foreign_claim(cluster, group, partition) as holder:
        told = failing(**{"tubemq.claim.timeoutMs": 600})
    assert told.error == "PartitionOccupiedError"
    assert told.sentence.startswith(
        f"{partition} at broker 2 at {cluster.broker_address(2)}: another consumer of group"
    )
    assert told.sentence.endswith(f"for more than 0.6 s: {holder}. Stop it, or use another tubemq.group")
    wait_for(lambda: not cluster.members(group).clients, "the end of what failed")


# Checkpoints


def logged(checkpoint: Path, offset: object) -> None:
    """Make a checkpoint whose first micro-batch ended at `offset`."""
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
    for folder, lines in (("offsets", ["v1", "{}", json.dumps(offset)]), ("commits", ["v1", "{}"])):
        (checkpoint / folder).mkdir()
        (checkpoint / folder / "0").write_text("\n".join(lines))


@pytest.mark.parametrize(
    ("offset", "sentence"),
    [
        (
            {"v": 2, "anything": 0},
            "offset of version 2, this release of tubemq-spark reads 1: use the release that wrote",
        ),
        ({"logOffset": 3}, 'the checkpoint holds {"logOffset": 3}, which is not an offset of the tubemq source'),
    ],
)
def test_checkpoint_of_a_newer_release_or_another_source_is_refused(
    failing_stream: Failing, offset: object, sentence: str
) -> None:
    logged(failing_stream.checkpoint, offset)
    told = failing_stream()
    assert told.error == "ConfigError"
    assert sentence in told.sentence
