# SPDX-License-Identifier: Apache-2.0
"""A broker loses messages that a query has read: the check notices it, and finds each partition's first new message."""

from __future__ import annotations

import itertools
import logging
import re
from functools import partial

import pytest

from tests.without_spark.query import TOPICS
from tests.without_spark.source import Stream, bodies, stored, where
from tubemq_spark.client import forget_servers
from tubemq_spark.source import truncation_check
from tubemq_spark.testing import EmbeddedTubeMQ, ServerConfig

RISING, FALLING = 300.0, 2600.0  # seconds into the wave of message ids
TURNS = [
    2199.0,
    *(pytest.param(phase, marks=pytest.mark.thorough) for phase in (2140.0, 4397.0, 4340.0)),
]  # near a turn
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def one_store_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the check divide the stores as it does with many."""
    monkeypatch.setattr(truncation_check, "_STORES_AT_ONCE", 1)


def send(tubemq: EmbeddedTubeMQ, count: int, *, flush: bool = False) -> None:
    """Send messages to all partitions of `TOPICS` in turn."""
    for number in itertools.islice(_numbers, count):
        topic, partition = [("one", 0), ("pair", 0), ("pair", 1)][number % 3]
        tubemq.send(topic, b"%d" % number, partition)
    for topic in TOPICS if flush else ():
        tubemq.flush(topic)


def crash(tubemq: EmbeddedTubeMQ) -> None:
    tubemq.crash_broker(1)
    tubemq.start_broker(1)


@pytest.mark.parametrize("phase", TURNS)
def test_no_message_comes_twice_where_ids_turn(phase: float, caplog: pytest.LogCaptureFixture) -> None:
    """The query skips new messages then, and logs their range, so that a batch can read them."""
    with EmbeddedTubeMQ(topics=TOPICS, config=ServerConfig(message_id_phase=phase)) as tubemq:
        stream = Stream(tubemq, *TOPICS, failOnDataLoss="false")
        send(tubemq, 60, flush=True)
        stream.run()
        send(tubemq, 60, flush=True)
        send(tubemq, 60)
        stream.run()
        crash(tubemq)
        send(tubemq, 300)
        stream.run()
        rows_read = bodies(stream.rows)
        assert len(rows_read) == len(set(rows_read))
        warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert len([text for text in warnings if "the broker lost [" in text]) == 3
        told = [text for text in warnings if "ids do not show which messages" in text]
        assert len(told) == 2  # stores
        ranges = {topic: re.search(rf"topic {topic}, .*\[(\d+), (\d+)\)", "\n".join(told)) for topic in TOPICS}
        for topic, found in ranges.items():
            assert found is not None
            missing = [message for message in tubemq.messages(topic) if message.body not in rows_read]
            assert missing
            assert all(int(found[1]) <= message.offset < int(found[2]) for message in missing)
    forget_servers()


PHASES = [RISING, pytest.param(FALLING, marks=pytest.mark.thorough)]


@pytest.mark.parametrize("phase", PHASES)
def test_a_store_that_becomes_shorter_while_it_is_checked_is_checked_again(phase: float) -> None:
    """Each stored message is read once, in order, and each lost one once at most."""
    with EmbeddedTubeMQ(topics=TOPICS, config=ServerConfig(message_id_phase=phase)) as tubemq:
        stream = Stream(tubemq, *TOPICS)
        send(tubemq, 60, flush=True)
        stream.run()
        send(tubemq, 90)
        sent = stored(tubemq, *TOPICS)
        with tubemq.on("partition_register", client="_look_", times=1).run(partial(crash, tubemq)) as crashed:
            stream.run()
        assert crashed.fired
        left, rows_read = stored(tubemq, *TOPICS), bodies(stream.rows)
        assert len(rows_read) == len(set(rows_read))
        assert set(left) <= set(rows_read) <= set(sent) > set(left)
        for partition in where(stream.rows):
            numbers = [int(row["value"]) for row in stream.rows if where([row]) == {partition}]
            assert numbers == sorted(numbers)
    forget_servers()


@pytest.mark.parametrize("phase", PHASES)
def test_new_fingerprints_alone_make_no_new_batch(phase: float) -> None:
    with EmbeddedTubeMQ(topics=TOPICS, config=ServerConfig(message_id_phase=phase)) as tubemq:
        stream = Stream(tubemq, *TOPICS)
        send(tubemq, 30)
        stream.run()
        tubemq.stop_broker(1)
        tubemq.start_broker(1)
        assert stream.run() == []
        assert set(stream.checkpoint.offset().fingerprints) == {(1, "one", 0), (1, "pair", 0)}
    forget_servers()
