# SPDX-License-Identifier: Apache-2.0
"""Failed heartbeats: queries and sinks continue, and the next heartbeat repairs the state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.clocks import SkippingClock, UseTimings
from tests.faults.engine import (
    PATIENT,
    TOPICS,
    Query,
    bodies,
    counts,
    fill,
    settings,
    stored,
    write,
)
from tests.faults.kinds import (
    BROKEN,
    DAMAGED,
    ELSEWHERE,
    NO_ANSWER,
    NO_REASON,
    SLOW,
    TARGET,
    Failure,
    Kind,
    code,
    exception,
)
from tests.waiting import wait_until
from tubemq_spark.client import forget_servers
from tubemq_spark.client.cluster.session_pool import SESSIONS
from tubemq_spark.errors import AuthError, FencedError, ProtocolError, ServerError, TransportError
from tubemq_spark.source import input_partition as partition
from tubemq_spark.testing import EmbeddedTubeMQ, Fault, ServerConfig

ROWS = bodies(300)
TROUBLE = [*NO_ANSWER, *BROKEN, *ELSEWHERE, SLOW, *DAMAGED, exception(TARGET), *map(code, (400, 411, 415, 500, 503))]


@pytest.fixture
def _quick_heart(use_timings: UseTimings) -> None:
    use_timings(heartbeat_period=0.02)


@pytest.fixture
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task gives rows out long before it is done."""
    monkeypatch.setattr(partition, "ROWS", 20)


def next_one(tubemq: EmbeddedTubeMQ, method: str, client: str | None = None) -> None:
    """Waits until a call comes; `client` is a part of its client's id."""
    with tubemq.on(method, client=client).count() as seen:
        wait_until(lambda: seen.fired, f"the next {method}")


def fires(fault: Fault) -> Callable[[], None]:
    return lambda: wait_until(lambda: fault.fired, f"{fault}")


@pytest.mark.usefixtures("_quick_heart", "_small_batches")
def test_a_consumer_of_rows_may_pause_for_two_minutes(tubemq: EmbeddedTubeMQ) -> None:
    """Fetches are in flight then for longer than any timeout of the client. No request fails or is repeated."""
    fill(tubemq)
    clock = SkippingClock()
    query = Query(tubemq, rpc_timeout=10.0, retry_for=1.0, clock=clock)
    stops: list[str] = []

    def stop() -> None:
        (holder,) = {name for name in tubemq.claims().values() if "_p0_" in name or "_p1_" in name} or {""}
        if not holder or holder in stops:
            return
        for _ in range(6):
            clock.advance(20.0)
            tubemq.clock.advance(20)
            next_one(tubemq, "partition_heartbeat", holder)
        stops.append(holder)

    query.given = stop
    with tubemq.on("partition_register", client="_p").count() as registers:
        query.run()
    assert stops
    assert registers.fired == 2 * 3  # the claim, which is a seek to the start, and a seek at the end of each partition
    assert query.rows == stored(tubemq)


@pytest.mark.usefixtures("_quick_heart")
@pytest.mark.parametrize("kind", [*TROUBLE, code(201)], ids=str)
def test_a_query_continues_after_a_failed_heartbeat_to_the_master(tubemq: EmbeddedTubeMQ, kind: Kind) -> None:
    fill(tubemq)
    query = Query(tubemq, retry_for=PATIENT)
    with kind.befall(tubemq.on("consumer_heartbeat_v2", times=1)) as fault:
        query.found = fires(fault)
        query.planned = lambda: next_one(tubemq, "consumer_heartbeat_v2")
        query.run()
    assert fault.fired == 1
    assert query.rows == stored(tubemq)


@pytest.mark.usefixtures("_quick_heart", "_small_batches")
@pytest.mark.parametrize("kind", TROUBLE, ids=str)
@pytest.mark.parametrize("of", ["driver", "task"])
def test_a_query_continues_after_a_failed_heartbeat_to_a_broker(tubemq: EmbeddedTubeMQ, of: str, kind: Kind) -> None:
    fill(tubemq)
    query = Query(tubemq, retry_for=PATIENT)
    name = "_driver_" if of == "driver" else "_p0_"
    with kind.befall(tubemq.on("partition_heartbeat", client=name, times=1)) as fault:
        if of == "driver":
            query.found = fires(fault)
        else:
            query.given = lambda: fault.fired or fires(fault)()
        query.run()
    assert fault.fired == 1
    assert query.rows == stored(tubemq)


@pytest.mark.usefixtures("_quick_heart")
def test_a_consumer_that_the_master_forgot_registers_again(tubemq: EmbeddedTubeMQ) -> None:
    fill(tubemq)
    query = Query(tubemq, retry_for=PATIENT)
    with (
        tubemq.on("consumer_register_v2").count() as registers,
        code(411).befall(tubemq.on("consumer_heartbeat_v2", times=1)) as fault,
    ):
        query.found = lambda: wait_until(lambda: registers.fired == 2, "the register")
        query.run()
    assert (fault.fired, registers.fired) == (1, 2)
    assert query.rows == stored(tubemq)


@pytest.mark.usefixtures("_quick_heart", "_small_batches")
def test_heartbeats_keep_claims_and_members(tubemq: EmbeddedTubeMQ) -> None:
    """For longer than servers wait, of which less than that passes between two of them."""
    fill(tubemq)
    query = Query(tubemq, retry_for=PATIENT)

    kept: list[str] = []

    def a_long_time_passes(holder: str) -> None:
        if holder in kept:
            return
        before = {key: name for key, name in tubemq.claims().items() if holder in name}
        assert before
        for _ in range(5):
            tubemq.clock.advance(20)
            next_one(tubemq, "partition_heartbeat", holder)
            next_one(tubemq, "consumer_heartbeat_v2")
            next_one(tubemq, "partition_heartbeat", holder)
        assert {key: name for key, name in tubemq.claims().items() if holder in name} == before
        kept.append(holder)

    with tubemq.on("consumer_register_v2").count() as registers:
        query.found = lambda: a_long_time_passes("_driver_")
        query.given = lambda: a_long_time_passes("_p0_")
        query.run()
    assert (kept, registers.fired) == (["_driver_", "_p0_"], 1)
    assert query.rows == stored(tubemq)


@pytest.mark.usefixtures("_quick_heart")
@pytest.mark.parametrize("kind", [*TROUBLE, code(201)], ids=str)
def test_a_task_continues_after_a_failed_heartbeat_of_its_producer(tubemq: EmbeddedTubeMQ, kind: Kind) -> None:
    write(tubemq, ROWS, retry_for=PATIENT)
    in_use = SESSIONS().lease(settings(tubemq, retry_for=PATIENT))
    with in_use, kind.befall(tubemq.on("producer_heartbeat", times=1)) as fault:
        fires(fault)()
        next_one(tubemq, "producer_heartbeat")
        assert write(tubemq, ROWS, retry_for=PATIENT) == len(ROWS)
    assert counts(tubemq) == Counter(ROWS + ROWS)


def test_a_heartbeat_gets_a_new_visit_token(use_timings: UseTimings) -> None:
    """The broker refuses it, and the master has forgotten the producer: it registers again and sends again."""
    use_timings(heartbeat_period=3600.0)
    config = ServerConfig(start_visit_token_check=True, visit_token_check_in_valid_time=0.0)
    with EmbeddedTubeMQ(topics=TOPICS, config=config) as tubemq:
        write(tubemq, ROWS, retry_for=PATIENT)
        for _ in range(10):
            tubemq.clock.advance(300)
        with tubemq.on("producer_register").count() as registers:
            assert write(tubemq, ROWS, retry_for=PATIENT) == len(ROWS)
        assert registers.fired == 1
        assert counts(tubemq) == Counter(ROWS + ROWS)
        forget_servers()


# A reader that stood still asks whether its claim is good before it gives anything out.

MASTER = r"127\.0\.0\.1:\d+"
READER = f"^1:one:0 at broker 1 at {MASTER}: "
HEARTBEAT_OF_TASK = rf"^the heartbeat of spark_\w+_p0_a0\S* at broker 1 at {MASTER} failed "
GAVE_UP = f"{READER}gave up after 0.15 s without progress: "
DOUBTS = [
    *[(kind, None, Failure(TransportError, f"{GAVE_UP}.* did not answer in time")) for kind in NO_ANSWER[:2]],
    *[(kind, None, Failure(TransportError, f"{GAVE_UP}.* broke: the peer closed it")) for kind in BROKEN],
    *[(kind, None, Failure(TransportError, f"{GAVE_UP}.*not in service")) for kind in ELSEWHERE],
    *[(kind, *[Failure(ProtocolError, f"{READER}.*does not speak TubeMQ's protocol")] * 2) for kind in DAMAGED],
    *[(code(n), None, Failure(TransportError, f"{GAVE_UP}.*: {n} {NO_REASON}")) for n in (403, 500, 503)],
    (code(400), *[Failure(ServerError, f"{HEARTBEAT_OF_TASK}with 400 BAD_REQUEST: {NO_REASON}$")] * 2),
    (code(415), None, Failure(AuthError, f"{HEARTBEAT_OF_TASK}with 415 CERTIFICATE_FAILURE: {NO_REASON}; check")),
    (exception(TARGET), *[Failure(ServerError, f"{HEARTBEAT_OF_TASK}at the server with InvocationTargetEx")] * 2),
    (SLOW, None, None),
]


@pytest.mark.parametrize("times", [1, None], ids=["once", "always"])
@pytest.mark.parametrize(("kind", "once", "always"), DOUBTS, ids=[str(kind) for kind, _, _ in DOUBTS])
def test_a_failed_proof_of_the_claim_is_retried_or_ends_the_query(
    tubemq: EmbeddedTubeMQ,
    use_timings: UseTimings,
    kind: Kind,
    once: Failure | None,
    always: Failure | None,
    times: int | None,
) -> None:
    use_timings(claim_proof_max_age=0.0)
    fill(tubemq)
    query = Query(tubemq)
    failure = once if times == 1 else always
    with kind.befall(tubemq.on("partition_heartbeat", times=times)) as fault:
        if failure is None:
            query.be_patient()
            query.run()
        else:
            with pytest.raises(failure.error, match=failure.words):
                query.run()
    assert fault.fired
    query.be_patient()
    query.run()
    assert query.rows == stored(tubemq)


def test_a_claim_that_is_lost_fails_the_task(tubemq: EmbeddedTubeMQ, use_timings: UseTimings) -> None:
    use_timings(claim_proof_max_age=0.0)
    fill(tubemq)
    query = Query(tubemq)
    with (
        tubemq.on("partition_heartbeat", times=1).run(lambda: tubemq.clock.advance(40)) as fault,
        pytest.raises(FencedError, match=rf"{READER}.* does not hold the partition any more \(411: 411:1:127"),
    ):
        query.run()
    assert fault.fired == 1
    query.be_patient()
    query.run()
    assert query.rows == stored(tubemq)
