# SPDX-License-Identifier: Apache-2.0
"""Two brokers start at each other's address in the middle of a query, a write or a command, and before masters list it.

`tests/contract/test_swapped_brokers.py` has the same between the steps of a query, on both servers.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tests.clocks import SkippingClock
from tests.without_spark.query import SMALL_FETCHES, Query, stored, write
from tubemq_spark.client import forget_servers
from tubemq_spark.errors import DataLossError, TransportError
from tubemq_spark.protocol.constants import IDENTITY_GROUP
from tubemq_spark.testing import EmbeddedTubeMQ


@pytest.fixture
def pair(skipping_clock: SkippingClock) -> Iterator[EmbeddedTubeMQ]:
    """Brokers 1 and 2, whose stores have different sizes."""
    with EmbeddedTubeMQ({"one": 1}, brokers=2, config=SMALL_FETCHES) as tubemq:
        for number in range(160):
            tubemq.send("one", b"row %d" % number, f"{1 + number % 8 // 5}:0")
        yield tubemq
        tubemq.clear_faults()
        forget_servers()


def stop_and_swap(tubemq: EmbeddedTubeMQ) -> None:
    for broker_id in (1, 2):
        tubemq.stop_broker(broker_id)
    tubemq.swap_addresses(1, 2)


def swap(tubemq: EmbeddedTubeMQ) -> None:
    stop_and_swap(tubemq)
    for broker_id in (1, 2):
        tubemq.start_broker(broker_id)


def start_after_questions(tubemq: EmbeddedTubeMQ, questions: int) -> None:
    """Start broker 2 now, and broker 1 when broker 2 has been asked so often who it is.

    Until then masters list broker 1 where broker 2 is.
    """
    stop_and_swap(tubemq)
    asked = tubemq.on("partition_register", broker=2, group=IDENTITY_GROUP, nth=2 * questions, times=1)
    asked.run(lambda: tubemq.start_broker(1))
    tubemq.start_broker(2)


MOMENTS: dict[str, Callable[[EmbeddedTubeMQ, Query], object]] = {
    "in a fetch": lambda tubemq, _: tubemq.on("get_message", nth=3, times=1).run(lambda: swap(tubemq)),
    "in a seek": lambda tubemq, _: tubemq.on("partition_register", nth=3, times=1).run(lambda: swap(tubemq)),
    "when a batch is planned": lambda tubemq, query: once(query, "planned", lambda: swap(tubemq)),
    "while a task delivers": lambda tubemq, query: once(query, "given", lambda: swap(tubemq)),
    "before masters list it": lambda tubemq, query: once(query, "planned", lambda: start_after_questions(tubemq, 4)),
    "before masters list it to the driver": lambda tubemq, query: once(
        query, "found", lambda: start_after_questions(tubemq, 4)
    ),
}


def once(query: Query, moment: str, act: Callable[[], None]) -> None:
    def run() -> None:
        setattr(query, moment, lambda: None)
        act()

    setattr(query, moment, run)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_stream_reads_each_row_once(pair: EmbeddedTubeMQ, moment: str) -> None:
    query = Query(pair, "one", retry_for=5.0)  # less than the time for which a process keeps where lost brokers are
    MOMENTS[moment](pair, query)
    for _ in range(2):
        query.run()
        assert query.rows == stored(pair, "one")
        pair.send("one", b"more", "1:0")


def test_the_error_says_who_is_there_if_masters_never_list_it(pair: EmbeddedTubeMQ) -> None:
    """Not that data is lost."""
    query = Query(pair, "one", retry_for=2.0)
    query.run()
    stop_and_swap(pair)
    pair.start_broker(2)
    pair.send("one", b"more", "2:0")
    with pytest.raises(TransportError, match=r"broker 2 answers at 127\.0\.0\.1:\d+, not broker 1") as caught:
        query.run()
    assert not isinstance(caught.value, DataLossError)
    pair.start_broker(1)
    query.run()
    assert query.rows == stored(pair, "one")


def test_masters_are_asked_at_most_once_a_second(pair: EmbeddedTubeMQ, skipping_clock: SkippingClock) -> None:
    query = Query(pair, "one", retry_for=20.0)
    asked = pair.on("get_partition_meta").count()
    once(query, "found", lambda: start_after_questions(pair, 12))
    begin, before = skipping_clock.monotonic(), asked.fired
    query.run()
    assert asked.fired - before <= 6 + (skipping_clock.monotonic() - begin)
    assert query.rows == stored(pair, "one")


def test_a_write_goes_on_where_the_brokers_are(pair: EmbeddedTubeMQ) -> None:
    pair.on("send_message", nth=40, times=1).run(lambda: start_after_questions(pair, 3))
    rows = [b"written %d" % number for number in range(100)]
    assert write(pair, rows, max_in_flight=10, topic="one") == 100
    found = Counter(message.body for message in pair.messages("one") if message.body.startswith(b"written"))
    assert found.keys() == set(rows)


def test_a_task_looks_at_once_where_its_broker_is_and_logs_it(
    pair: EmbeddedTubeMQ, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(pair, "one", retry_for=2.0)  # less than the time after which a task looks for a lost broker
    once(query, "planned", lambda: swap(pair))
    query.run()
    moved = [record for record in caplog.records if record.message.startswith("[broker-moved]")]
    assert moved
    assert all(record.levelno == logging.WARNING for record in moved)
