# SPDX-License-Identifier: Apache-2.0
"""One byte of a reply arrives inverted, each byte in its turn. The rows stay exact, or the connector raises one of its
errors. It never delivers a wrong row, raises another exception, or hangs.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from tests.faults.engine import PATIENT, TOPICS, Query, Rows, bodies, counts, fill, stored, write
from tests.faults.unanswered import unanswered
from tests.sending import let_go
from tubemq_spark.client import forget_servers
from tubemq_spark.errors import TubeMQError
from tubemq_spark.testing import Calls, EmbeddedTubeMQ, faults

READING = [
    ("consumer_register_v2", 1),
    ("get_partition_meta", 1),
    ("partition_register", 1),
    ("partition_register", 4),
    ("partition_unregister", 1),
    ("get_message", 1),
    ("get_message", 2),
    ("commit_offset", 1),
    ("consumer_close", 1),
]
_groups = itertools.count()

each_step = pytest.mark.parametrize(
    "step", [7, pytest.param(1, marks=pytest.mark.thorough)], ids="every {} bytes".format
)


@pytest.fixture(scope="module")
def tubemq() -> Iterator[EmbeddedTubeMQ]:
    with EmbeddedTubeMQ(topics=TOPICS) as cluster:
        yield cluster
        forget_servers()


def length_of(call: Calls, run: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the length of the frame that answers `call` in an undisturbed `run`."""
    lengths: list[int] = []

    def measure(frame: bytes, at: int) -> bytes:
        lengths.append(len(frame))
        return frame

    with monkeypatch.context() as context, call.corrupt(0):
        context.setattr(faults, "_invert", measure)
        run()
    (length,) = lengths
    return length


def without_ids(rows: Rows) -> object:
    """Return the rows without message ids, which only TCP protects."""
    return {partition: [(row.offset, row.body) for row in found] for partition, found in rows.items()}


@each_step
@pytest.mark.parametrize(("method", "nth"), READING)
def test_a_query(tubemq: EmbeddedTubeMQ, monkeypatch: pytest.MonkeyPatch, method: str, nth: int, step: int) -> None:
    if not tubemq.messages("one"):
        fill(tubemq, 9)
    whole = stored(tubemq)

    def new_query() -> Query:
        return Query(tubemq, group=f"damage_{next(_groups)}", retry_for=PATIENT)

    length = length_of(tubemq.on(method, nth=nth, times=1), lambda: new_query().run(), monkeypatch)
    failed = 0
    for at in range(nth % step, length, step):
        query = new_query()
        with unanswered(tubemq.on(method, nth=nth, times=1).corrupt(at)) as fault:
            try:
                query.run()
            except TubeMQError:
                failed += 1
                let_go(tubemq)
                tubemq.clock.advance(60)  # claims that it could not give back expire
                query.rows.clear()
                query = new_query()
                query.run()
        assert fault.fired == 1, at
        assert without_ids(query.rows) == without_ids(whole), at
        if method != "get_message":
            assert query.rows == whole, at
    assert failed or method in ("consumer_close", "partition_unregister")


@each_step
@pytest.mark.parametrize("method", ["producer_register", "producer_heartbeat", "send_message"])
def test_a_sink(monkeypatch: pytest.MonkeyPatch, method: str, step: int) -> None:
    """The sink sends rows again whose replies it could not read; no row is missing."""
    rows = bodies(5)
    with EmbeddedTubeMQ(topics=TOPICS) as tubemq:
        length = length_of(tubemq.on(method, times=1), lambda: write(tubemq, rows), monkeypatch)
        for at in range(0, length, step):
            forget_servers()
            before = counts(tubemq)
            with unanswered(tubemq.on(method, times=1).corrupt(at)) as fault, suppress(TubeMQError):
                assert write(tubemq, rows, max_in_flight=1, retry_for=PATIENT) == len(rows), at
                new = counts(tubemq) - before
                assert new - Counter(rows) <= Counter(rows[:1]), at
                assert new >= Counter(rows), at
            assert fault.fired == 1, at
        forget_servers()
