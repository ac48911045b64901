# SPDX-License-Identifier: Apache-2.0
"""Errors about bad input: they are raised at once, on the driver, in one sentence that says what to do.

The tests look at the text of the exception that the user's program gets from Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.clusters import Cluster
from tests.clusters.servers import EMBEDDED
from tests.spark.queries import Batches, Queries, Source, run_to_the_end

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
    assert "the schema asks for value string; expected any of these columns, each once: value binary, " in told.sentence


# The cluster


@on_one_server
@pytest.mark.parametrize("address", ["127.0.0.1:1", "nobody.invalid:8715"])
def test_an_address_without_a_master_is_explained(failing_stream: Failing, address: str) -> None:
    told = failing_stream(**{"tubemq.master": address, "tubemq.retry.maxElapsedMs": 500})
    assert told.error == "TransportError"
    assert f"{address}: " in told.sentence
    assert "Check option 'tubemq.master' and that the master runs" in told.sentence


# Checkpoints
