# SPDX-License-Identifier: Apache-2.0
"""Two faults at random places: the rows are exact in the end.

The places are the same in each run. TUBEMQ_TEST_SEED selects others; with `random` a failure shows the seed.
"""

from __future__ import annotations

import os
import random
import secrets
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tests.faults.engine import PATIENT, SMALL_FETCHES, TOPICS, Query, bodies, counts, fill, stored, write
from tests.faults.kinds import BROKEN, DAMAGED, ELSEWHERE, NO_ANSWER, SLOW, TARGET, Kind, code, exception
from tests.faults.test_servers import flush_and_crash, restart_master, stop, switch_master
from tests.sending import let_go
from tubemq_spark.client import forget_servers
from tubemq_spark.errors import TubeMQError
from tubemq_spark.testing import EmbeddedTubeMQ, Fault

pytestmark = pytest.mark.timeout(120)

QUERIES, SINKS = 50, 20  # how many
ROWS = bodies(60)
HURRIED = 2.0  # seconds to wait for an answer, for two faults may hide one from the other
CALLS = [
    "consumer_register_v2",
    "get_partition_meta",
    "partition_register",
    "partition_unregister",
    "get_message",
    "get_message",
    "commit_offset",
    "consumer_close",
]
KINDS = [
    *(*NO_ANSWER, *BROKEN, *ELSEWHERE, SLOW, *DAMAGED, exception(TARGET)),
    *map(code, (400, 401, 403, 404, 410, 411, 412, 415, 419, 452, 500, 503)),
]
UNHEARD = {"drop_reply", "close_mid_frame", *map(str, DAMAGED)}


@pytest.fixture
def tubemq() -> Iterator[EmbeddedTubeMQ]:
    with EmbeddedTubeMQ(topics=TOPICS, masters=2, config=SMALL_FETCHES) as cluster:
        yield cluster
        cluster.clear_faults()
        forget_servers()


def randomness(name: str, number: int) -> random.Random:
    seed = os.environ.get("TUBEMQ_TEST_SEED", "usual")
    seed = secrets.token_hex(4) if seed == "random" else seed
    print(f"TUBEMQ_TEST_SEED={seed}")
    return random.Random(f"{seed} {name} {number}")


def running(name: str, act: Callable[[], None], *, after: bool) -> Kind:
    return Kind(f"{name} {'after' if after else 'before'}", lambda calls: calls.run(act, after=after))


def events(tubemq: EmbeddedTubeMQ) -> list[Kind]:
    """What happens to servers, before or after the work; nothing is lost by it."""
    acts: dict[str, Callable[[], None]] = {
        "crash": lambda: flush_and_crash(tubemq),
        "stop": lambda: stop(tubemq),
        "restart of a master": lambda: restart_master(tubemq),
        "change of masters": lambda: switch_master(tubemq),
        "expiry": lambda: tubemq.clock.advance(40),
    }
    return [running(name, act, after=after) for name, act in acts.items() for after in (False, True)]


def befall(tubemq: EmbeddedTubeMQ, calls: list[str], kinds: list[Kind], rng: random.Random) -> list[tuple[Kind, Fault]]:
    """Two rules, each for a few calls."""
    chosen = []
    for _ in range(2):
        method, kind = rng.choice(calls), rng.choice(kinds)
        nth, times = rng.choice([1, 1, 2, 3, 4, 5, 8]), rng.choice([1, 1, 2, 5])
        print(f"{method}, from the {nth}. on, {times} times: {kind}")
        chosen.append((kind, kind.befall(tubemq.on(method, nth=nth, times=times))))
    return chosen


@pytest.mark.parametrize("number", range(QUERIES))
def test_a_query(tubemq: EmbeddedTubeMQ, number: int) -> None:
    rng = randomness("query", number)
    fill(tubemq)
    query = Query(tubemq, retry_for=rng.choice([0.15, 2.0]), rpc_timeout=HURRIED)
    befall(tubemq, CALLS, [*KINDS, *events(tubemq)], rng)
    try:
        query.run()
    except TubeMQError as error:
        print(f"{type(error).__name__}: {error}")
    else:
        assert query.rows == stored(tubemq)
    let_go(tubemq)  # what comes later than the faults end would do harm
    tubemq.clear_faults()
    tubemq.clock.advance(60)  # claims that could not be given back expire
    fill(tubemq, 60)
    query.be_patient()
    query.run()
    assert query.rows == stored(tubemq)


@pytest.mark.parametrize("number", range(SINKS))
def test_a_sink(tubemq: EmbeddedTubeMQ, number: int) -> None:
    """One row at a time: it is known how many were stored and not acknowledged."""
    rng = randomness("sink", number)
    chosen = befall(
        tubemq,
        ["producer_register", "producer_heartbeat", "send_message", "send_message", "send_message"],
        [*KINDS, *events(tubemq)],
        rng,
    )
    failed = False
    try:
        patience = rng.choice([0.15, 2.0])
        assert write(tubemq, ROWS, max_in_flight=1, retry_for=patience, rpc_timeout=HURRIED) == len(ROWS)
    except TubeMQError as error:
        print(f"{type(error).__name__}: {error}")
        failed = True
    let_go(tubemq)
    tubemq.clear_faults()
    before = counts(tubemq)
    assert set(before) <= set(ROWS)
    if failed:
        assert write(tubemq, ROWS, max_in_flight=1, retry_for=PATIENT) == len(ROWS)
        assert counts(tubemq) == Counter(ROWS) + before
    else:
        assert set(before) == set(ROWS)
        unheard = sum(fault.fired for kind, fault in chosen if str(kind) in UNHEARD or str(kind).endswith("after"))
        assert before.total() - len(ROWS) <= unheard
