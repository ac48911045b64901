# SPDX-License-Identifier: Apache-2.0
"""Each request of a streaming query with each kind of fault.

The query continues and its rows are exact, or it fails with an error that names the fault. The next run, without the
fault, then delivers the exact rows.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.faults.engine import GROUP, Query, fill, stored
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
from tubemq_spark.errors import (
    AuthError,
    ConfigError,
    FencedError,
    PartitionOccupiedError,
    ProtocolError,
    ServerError,
    TransportError,
    TubeMQError,
)
from tubemq_spark.protocol.errcode import code_name
from tubemq_spark.testing import EmbeddedTubeMQ

# The calls of a query's run, and which of each a fault meets: early ones and late ones.
CALLS = {
    "consumer_register_v2": (1,),
    "get_partition_meta": (1, 2),
    "consumer_close": (1,),
    "partition_register": (1, 5, 11),
    "partition_unregister": (1, 3, 7),
    "get_message": (1, 3, 6),
    "commit_offset": (1, 3),
}


def check(
    tubemq: EmbeddedTubeMQ,
    method: str,
    kind: Kind,
    failure: Failure | None,
    *,
    nth: int = 1,
    times: int | None = None,
    client: str | None = None,
) -> None:
    """Run a query with the fault, and again without. Only clients with `client` in their ids meet the fault."""
    fill(tubemq)
    query = Query(tubemq)
    if failure is None:
        query.be_patient()
    with kind.befall(tubemq.on(method, nth=nth, times=times, client=client)) as fault:
        if failure is None:
            query.run()
            assert query.rows == stored(tubemq)
        else:
            with pytest.raises(failure.error, match=failure.words) as caught:
                query.run()
            assert caught.type is failure.error
            assert not query.rows
    assert fault.fired == (times or fault.fired) > 0
    fill(tubemq)  # there is more to read now, for a query that went on
    query.be_patient()
    query.run()
    assert query.rows == stored(tubemq)
    for partition, end in query.ends.items():
        assert tubemq.group_offset(GROUP, partition.topic, partition.broker_id, partition.partition_id) == end


FIRST = [(method, 1) for method in CALLS]
LATER = [(method, nth) for method, numbers in CALLS.items() for nth in numbers[1:]]
ONCE = [
    *[(*call, kind) for call in FIRST for kind in (*NO_ANSWER, *BROKEN, *ELSEWHERE, SLOW)],
    *[(*call, kind) for call in LATER for kind in (*NO_ANSWER[:2], *BROKEN, *ELSEWHERE)],
]


@pytest.mark.parametrize(("method", "nth", "kind"), ONCE, ids=str)
def test_a_request_that_fails_once_is_retried(tubemq: EmbeddedTubeMQ, method: str, nth: int, kind: Kind) -> None:
    check(tubemq, method, kind, None, nth=nth, times=1)


# What happens again and again

MASTER = r"127\.0\.0\.1:\d+"
BROKER = r"broker 1 at 127\.0\.0\.1:\d+"
CHECK_MASTER = r"Check option 'tubemq\.master' and that the master runs$"
CHECK_BROKER = "Check that the broker runs and can be reached from the (driver|executors)$"

# What a call was for, as errors say it.
PURPOSE = {
    "consumer_register_v2": f"registering group readers for one, pair at the master {MASTER}",
    "get_partition_meta": f"asking for the partitions of one, pair at the master {MASTER}",
    "partition_register": f"claiming 1:(one|pair):[01] for group readers at {BROKER}",
    "get_message": f"reading 1:one:0 at {BROKER}",
    "commit_offset": f"asking for the end of 1:one:0 at {BROKER}",
}
OCCUPIED = Failure(
    PartitionOccupiedError,
    rf"^1:one:0 at {BROKER}: an earlier attempt holds the partition, although the broker was told \d+ times in "
    r"0\.15 s to end such claims: spark_.*_driver_a0\S*\. Check the broker's log for what it refuses$",
)


def given_up(method: str, reason: str) -> Failure:
    """Return the failure of a query that retried a request for as long as it may."""
    if method in ("consumer_register_v2", "get_partition_meta"):
        return Failure(TransportError, f"^no master answered: {PURPOSE[method]}: {reason}.*{CHECK_MASTER}")
    if method == "partition_register":
        return Failure(TransportError, f"^{PURPOSE[method]}: {reason}.*; gave up after 0.15 s. {CHECK_BROKER}")
    return Failure(
        TransportError, f"^1:one:0 at {BROKER}: gave up after 0.15 s without progress: .*{reason}.*{CHECK_BROKER}"
    )


@pytest.mark.parametrize("kind", NO_ANSWER, ids=str)
@pytest.mark.parametrize("method", CALLS)
def test_a_query_fails_if_a_request_never_gets_a_reply(tubemq: EmbeddedTubeMQ, method: str, kind: Kind) -> None:
    failure = None if method == "consumer_close" else given_up(method, f"{MASTER} did not answer in time")
    check(tubemq, method, kind, failure)


@pytest.mark.parametrize("kind", BROKEN, ids=str)
@pytest.mark.parametrize("method", CALLS)
def test_a_query_fails_if_connections_always_break(tubemq: EmbeddedTubeMQ, method: str, kind: Kind) -> None:
    reason = f"the connection to {MASTER} broke: the peer closed it"
    check(tubemq, method, kind, None if method == "consumer_close" else given_up(method, reason))


@pytest.mark.parametrize("kind", ELSEWHERE, ids=str)
@pytest.mark.parametrize("method", CALLS)
def test_a_query_fails_if_no_server_is_in_service(tubemq: EmbeddedTubeMQ, method: str, kind: Kind) -> None:
    failure: Failure | None = given_up(method, rf"not in service \({kind}\)")
    if method == "consumer_close":
        failure = None
    elif method == "partition_unregister":
        failure = OCCUPIED  # the driver's claim cannot be had from it
    check(tubemq, method, kind, failure)


@pytest.mark.parametrize("times", [1, None], ids=["once", "always"])
@pytest.mark.parametrize("method", CALLS)
def test_a_query_reports_an_exception_of_the_server(tubemq: EmbeddedTubeMQ, method: str, times: int | None) -> None:
    failure: Failure | None
    if method == "consumer_close":
        failure = None
    elif method == "partition_unregister":
        failure = OCCUPIED if times is None else None
    else:
        words = f"^{PURPOSE[method]} failed at the server with InvocationTargetException: as the test said$"
        failure = Failure(ServerError, words)
    check(tubemq, method, exception(TARGET), failure, times=times)


@pytest.mark.parametrize("method", CALLS)
def test_slow_replies_do_no_harm(tubemq: EmbeddedTubeMQ, method: str) -> None:
    check(tubemq, method, SLOW, None)


# Error codes


class Case(NamedTuple):
    """A request whose reply has an error code, and what follows if that happens once, and if always."""

    method: str
    kind: Kind
    once: Failure | None
    always: Failure | None


def fatal(error: type[TubeMQError], number: int, *methods: str, advice: str = "") -> list[Case]:
    """Cases in which the query fails at once."""
    cases = []
    for method in methods:
        words = f"^{PURPOSE[method]} failed with {number} {code_name(number)}: {NO_REASON}{advice}$"
        cases.append(Case(method, code(number), Failure(error, words), Failure(error, words)))
    return cases


def passing(method: str, *numbers: int) -> list[Case]:
    """Cases in which the query fails after some retries."""
    return [Case(method, code(number), None, given_up(method, f"{number} {NO_REASON}")) for number in numbers]


def forgotten(method: str, number: int) -> Case:
    words = (
        rf"^1:one:0 at {BROKER}: spark_\w+_b1_p0_a0\S* does not hold the partition any more \({number}: {NO_REASON}\); "
        "a newer attempt took it over, or this one paused for too long. What it read so far is not used$"
    )
    return Case(method, code(number), Failure(FencedError, words), Failure(FencedError, words))


def no_progress(number: int, text: str = NO_REASON) -> Case:
    words = (
        f"^1:one:0 at {BROKER}: nothing came for 0.15 s, the last answer to a fetch was {number} {code_name(number)}: "
        f"{text}. Check that the topic is open for reading and the broker in service$"
    )
    return Case("get_message", code(number, text), None, Failure(ServerError, words))


NOT_READY = Failure(TransportError, "^registering group readers for one, pair: the master is not ready$")
LOST_MEMBER = Failure(TransportError, "^asking for the partitions of one, pair: the master has forgotten this client$")
ANOTHER_GROUP = r"; the group is in use .*: stop (them|those consumers), or use another 'tubemq\.group'"
CREDENTIALS = r"; check options 'tubemq\.user' and 'tubemq\.password', and the clock of this machine"
SOMEBODY = "[Duplicated Register] Partition 1#readers:one:0 has been registered by somebody"
A_STRANGER = Failure(
    PartitionOccupiedError,
    f"^1:one:0 at {BROKER}: another consumer of group readers holds the partition for more than 0.2 s: somebody. "
    r"Stop it, or use another tubemq\.group$",
)

CODES = [
    # The master
    *fatal(ServerError, 400, "consumer_register_v2", "get_partition_meta"),
    *fatal(AuthError, 415, "consumer_register_v2", "get_partition_meta", advice=CREDENTIALS),
    *fatal(ServerError, 500, "consumer_register_v2", "get_partition_meta"),
    *[
        case
        for n in (424, 425, 426, 429)
        for case in fatal(ConfigError, n, "consumer_register_v2", advice=ANOTHER_GROUP)
    ],
    *[case for n in (427, 428, 430) for case in fatal(ConfigError, n, "consumer_register_v2")],
    *fatal(ConfigError, 431, "consumer_register_v2", advice="; check the topic's name, or create it on the cluster"),
    *fatal(AuthError, 450, "consumer_register_v2", advice="; authorise the group for the topic on the cluster"),
    *fatal(
        AuthError,
        455,
        "consumer_register_v2",
        advice="; set option 'filters' to message types that the group may read, or authorise the group for these "
        "types on the cluster",
    ),
    Case("consumer_register_v2", code(201), None, NOT_READY),
    Case("get_partition_meta", code(411), None, LOST_MEMBER),
    *[Case("consumer_close", code(n), None, None) for n in (400, 411, 415)],
    # Claims at the broker
    *fatal(ServerError, 400, "partition_register"),
    *fatal(AuthError, 415, "partition_register", advice=CREDENTIALS),
    *passing("partition_register", 403, 500, 503),
    Case("partition_register", code(410, SOMEBODY), None, A_STRANGER),
    *[Case("partition_unregister", code(n), None, OCCUPIED) for n in (400, 403, 411, 412, 415, 500, 503)],
    # Reading
    *fatal(ServerError, 400, "get_message"),
    *[forgotten("get_message", n) for n in (401, 411, 412)],
    *[no_progress(n) for n in (301, 403, 500, 503, 510, 599)],
    *[
        no_progress(404, text)
        for text in (
            "current offset is exceed max file offset",
            "current offset is exceed max offset!",
            "Can't found Message by index in cache",
            "the request offset reached cache maxOffset",
        )
    ],
    forgotten("commit_offset", 401),
    *fatal(ServerError, 400, "commit_offset"),
    *passing("commit_offset", 403, 500, 503),
]
CODE_IDS = [f"{case.method} {case.kind} {number}" for number, case in enumerate(CODES)]


@pytest.mark.parametrize("case", CODES, ids=CODE_IDS)
def test_an_error_code_once(tubemq: EmbeddedTubeMQ, case: Case) -> None:
    by_a_task = "_p" if case.method == "get_message" else None  # the driver does without what it cannot see
    check(tubemq, case.method, case.kind, case.once, times=1, client=by_a_task)


@pytest.mark.parametrize("case", CODES, ids=CODE_IDS)
def test_an_error_code_in_every_reply(tubemq: EmbeddedTubeMQ, case: Case) -> None:
    check(tubemq, case.method, case.kind, case.always)


def test_an_error_shows_an_unknown_code(tubemq: EmbeddedTubeMQ) -> None:
    failure = Failure(ServerError, f"^{PURPOSE['get_message']} failed with 777 UNKNOWN: {NO_REASON}$")
    check(tubemq, "get_message", code(777), failure)


# Bytes that are none of TubeMQ's


NONSENSE = f"{MASTER} does not speak TubeMQ's protocol \\(standard\\): "
MET_FIRST = dict.fromkeys(CALLS, 1) | {"get_message": 3, "partition_register": 3, "commit_offset": 2}


@pytest.mark.parametrize("times", [1, None], ids=["once", "always"])
@pytest.mark.parametrize("kind", DAMAGED, ids=str)
@pytest.mark.parametrize("method", CALLS)
def test_a_damaged_frame_fails_the_query_at_once(
    tubemq: EmbeddedTubeMQ, method: str, kind: Kind, times: int | None
) -> None:
    """The first reply or a later one is damaged. The query fails because of that, before any timeout."""
    failure = None if method == "consumer_close" else Failure(ProtocolError, f"(one|pair).*: {NONSENSE}")
    check(tubemq, method, kind, failure, nth=MET_FIRST[method], times=times)
