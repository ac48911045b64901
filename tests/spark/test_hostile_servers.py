# SPDX-License-Identifier: Apache-2.0
"""A query from TubeMQ into TubeMQ whose servers send what no server may send: it fails soon, in little memory, with an
error that says what to do, and continues exactly when the server is sane again."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.matrix.queries import run_to_the_end
from tests.network import hostile
from tests.network.hostile import Spoiled
from tests.network.proxied import Proxied
from tests.network.proxy import Network
from tests.spark.memory import PeakMemory
from tests.spark.queries import Queries
from tubemq_spark.client import forget_servers
from tubemq_spark.protocol.constants import Method
from tubemq_spark.testing import EmbeddedTubeMQ, ServerConfig

MAX_MEMORY = 300.0  # MB of each Python process
ROWS = [b"row %d" % number for number in range(300)]

Mischief = Callable[[Proxied], Spoiled | None]


@pytest.fixture
def tubemq() -> Iterator[EmbeddedTubeMQ]:
    """Topic `input` is read from broker 1, `output` is written to broker 2; about 20 rows come with one fetch."""
    with EmbeddedTubeMQ(brokers=2, config=ServerConfig(transfer_size=2048)) as cluster:
        cluster.create_topic("input", 1, brokers=(1,))
        cluster.create_topic("output", 1, brokers=(2,))
        for row in ROWS:
            cluster.send("input", row)
        yield cluster
        forget_servers()


@pytest.fixture
def proxied(tubemq: EmbeddedTubeMQ) -> Iterator[Proxied]:
    with Network() as network:
        yield Proxied(network, tubemq.master, {number: tubemq.broker_address(number) for number in tubemq.broker_ids})


def broker(number: int, method: Method, by: hostile.Bytes, spared: int = 0) -> Mischief:
    def befall(proxied: Proxied) -> Spoiled:
        spoiled = Spoiled(method, by, spared)
        proxied.brokers[number].edit = spoiled
        return spoiled

    return befall


def master(method: Method, by: hostile.Bytes) -> Mischief:
    def befall(proxied: Proxied) -> Spoiled:
        spoiled = Spoiled(method, by)
        proxied.masters[0].edit = spoiled
        return spoiled

    return befall


def slow(choose: Callable[[Proxied], Any]) -> Mischief:
    """One byte a second."""

    def befall(proxied: Proxied) -> None:
        choose(proxied).down.rate = 1.0

    return befall


def case(name: str, befall: Mischief, words: str | None, *, may_succeed: bool = False) -> Any:
    """The query ends with an error that has these `words`, or it succeeds if there are none, or if it may."""
    return pytest.param(befall, words, may_succeed, id=name)


FETCH, CLAIM, SEND = Method.GET_MESSAGE, Method.PARTITION_REGISTER, Method.SEND_MESSAGE
LISTS = Method.GET_PARTITION_META
NO_TUBEMQ = "ProtocolError: .*does not speak TubeMQ's protocol"
SLOW = "TransportError: .*did not answer in time. Check its port and option 'tubemq.rpc.framing'"
NO_POSITION = "ProtocolError: .*the broker reports position .*check that this is a broker of TubeMQ"
HUGE = 2**62 // 28 * 28

CASES = [
    case("slow master", slow(lambda proxied: proxied.masters[0]), SLOW),
    case("slow broker of the sink", slow(lambda proxied: proxied.brokers[2]), "TransportError: "),
    case("largest frame", broker(1, FETCH, hostile.largest_frame), "ProtocolError: .*more than 100000 fields"),
    case("endless blocks", broker(1, FETCH, hostile.endless_blocks), NO_TUBEMQ),
    # The one reply that was asked for suffices; then the connection is not used again.
    case("endless replies of a master", master(LISTS, hostile.endless_replies), None),
    case("wrong serial number of a list", master(LISTS, hostile.wrong_serial_number), f"{NO_TUBEMQ}.*serial"),
    case(
        "wrong serial number of a send",
        broker(2, SEND, hostile.wrong_serial_number),
        "(ProtocolError|TransportError): .*serial",
        may_succeed=True,  # if the sink finds all rows in the topic before its time for retries ends
    ),
    case(
        "a million partitions",
        master(LISTS, hostile.saying(topicMetaInfoList=[f"input#{n}:100:100:1" for n in range(100)])),
        "ProtocolError: .*lists that cannot be used: it lists 1000000 partitions.*Check that option 'tubemq.master'",
    ),
    case("a store of 2^62 bytes", broker(1, CLAIM, hostile.saying(maxOffset=HUGE)), NO_POSITION),
    case(
        "a fetch that goes back",
        broker(1, FETCH, hostile.saying(currOffset=0), spared=2),
        "PositionMovedError: .*a fetch began at 0, but the one before it ended at",
    ),
]


def start(spark: SparkSession, proxied: Proxied, checkpoint: Path, queries: Queries) -> Any:
    common = {
        **proxied.options,
        "tubemq.rpc.framing": "standard",
        "tubemq.rpc.timeoutMs": "2000",
        "tubemq.retry.maxElapsedMs": "4000",
    }
    source = {**common, "tubemq.group": "copy", "subscribe": "input", "startingOffsets": "earliest"}
    rows = spark.readStream.format("tubemq").options(**source).load().select("value")
    sink = {**common, "topic": "output", "effectivelyOnce": "true", "checkpointLocation": str(checkpoint)}
    writer = rows.writeStream.format("tubemq").options(**sink).trigger(availableNow=True)
    return queries.add(writer.start())


@pytest.mark.thorough
@pytest.mark.parametrize(("befall", "words", "may_succeed"), CASES)
def test_a_hostile_server_ends_a_query_soon_and_does_no_harm(
    spark: SparkSession,
    tubemq: EmbeddedTubeMQ,
    proxied: Proxied,
    queries: Queries,
    tmp_path: Path,
    befall: Mischief,
    words: str | None,
    may_succeed: bool,
) -> None:
    with PeakMemory() as memory:
        spoiled = befall(proxied)
        query = start(spark, proxied, tmp_path, queries)
        try:
            run_to_the_end(query, 60)
        except StreamingQueryException as told:
            errors = re.findall(r"^tubemq_spark\.errors\.(\w+: .*)", str(told), re.MULTILINE)
            assert words is not None, errors
            assert re.search(words, errors[0]), errors
        else:
            assert words is None or may_succeed
        assert spoiled is None or spoiled.fired
        proxied.calm()
        run_to_the_end(start(spark, proxied, tmp_path, queries))
    assert Counter(message.body for message in tubemq.messages("output")) == Counter(ROWS)
    print(f"peak memory of a Python process: {memory.highest:.0f} MB")
    assert 0 < memory.highest < MAX_MEMORY
