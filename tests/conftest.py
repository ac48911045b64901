"""What all tests share: a real TubeMQ, Spark, and topics and groups that no other test uses."""

from __future__ import annotations

import itertools
import os
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import pytest
from pyspark.sql import SparkSession

from tests.real.cluster import FLUSH_SOON, RealTubeMQ, TopicSpec
from tests.real.jars import MissingTool

# Workers must run on this interpreter, whatever `python3` is on the PATH.
os.environ["PYSPARK_PYTHON"] = sys.executable

SEGMENT = 20_000  # index entries of a segment: far fewer than the default, so that tests reach across the ends of some

LAYOUTS = {
    "one": TopicSpec(partitions=1, stores=1, settings=FLUSH_SOON),
    "three": TopicSpec(partitions=3, stores=1, settings=FLUSH_SOON),
    "stores": TopicSpec(partitions=2, stores=2, settings=FLUSH_SOON),
}
Layout = Literal["one", "three", "stores"]
_TOPICS_OF_A_LAYOUT = {"one": 48, "three": 48, "stores": 16}
START_QUICKLY = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"  # half the time, and enough for tests
BROKER_OPTIONS = {"maxIndexSegmentSize": str(28 * SEGMENT)}


def start_tubemq(
    *,
    brokers: int = 2,
    framing: Literal["standard", "prefixed"] = "standard",
    topics: Mapping[str, TopicSpec] | None = None,
    broker_options: Mapping[str, str] | None = None,
) -> Iterator[RealTubeMQ]:
    """A cluster for a fixture to yield. Without Java or Maven the tests are skipped, on CI they fail."""
    if topics is None:
        counts = _TOPICS_OF_A_LAYOUT
        topics = {f"{layout}_{n}": LAYOUTS[layout] for layout in LAYOUTS for n in range(counts[layout])}
    try:
        options = {**BROKER_OPTIONS, **(broker_options or {})}
        cluster = RealTubeMQ(topics=topics, brokers=brokers, framing=framing, broker_options=options)
    except MissingTool as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))
    with cluster:
        yield cluster


@pytest.fixture(scope="session")
def tubemq() -> Iterator[RealTubeMQ]:
    """Two brokers, standard framing; shared by all tests, so nobody stops anything here."""
    yield from start_tubemq()


@pytest.fixture(scope="session")
def _topic_numbers() -> Callable[[str], int]:
    counters = {layout: itertools.count() for layout in LAYOUTS}
    return lambda layout: next(counters[layout])


@pytest.fixture(scope="session")
def new_topic(_topic_numbers: Callable[[str], int]) -> Callable[[Layout], str]:
    """Gives, for `one`, `three` or `stores`, the name of a topic of that layout which nobody else has used."""

    def take(layout: Layout) -> str:
        number = _topic_numbers(layout)
        assert number < _TOPICS_OF_A_LAYOUT[layout], f"declare more topics of layout {layout} in tests/conftest.py"
        return f"{layout}_{number}"

    return take


@pytest.fixture
def group() -> str:
    """A consumer group of this test alone."""
    return f"g_{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = (
        SparkSession.builder.master("local[2]")
        .appName("tubemq-spark tests")
        .config("spark.driver.extraJavaOptions", START_QUICKLY)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
