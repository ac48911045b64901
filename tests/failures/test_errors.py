# SPDX-License-Identifier: Apache-2.0
"""What a query or a write says when a server answers one of its requests with a refusal, nonsense or nothing.

Each row of the tables is a request and what becomes of it. If that happens once, the work goes on or ends; if it always
happens, it ends. The error names the request, the server, the reason and what to do. The next run loses nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.clocks import UseTimings
from tests.sending import connections_to
from tests.waiting import wait_until
from tests.without_spark.query import GROUP, Query, counts, fill, stored, write
from tubemq_spark.client import forget_servers
from tubemq_spark.client.cluster.master_client import SessionExpiredError
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
from tubemq_spark.testing import Calls, EmbeddedTubeMQ, Fault

SAID = "as the test said"
SERVER = r"127\.0\.0\.1:\d+"
BROKER = rf"broker 1 at {SERVER}"
PASSWORD = r"; check options 'tubemq\.user' and 'tubemq\.password', and the clock of this machine"
EXCEPTIONS = "org.apache.inlong.tubemq.corerpc.exception."
STANDBY, STOPPING, NOT_READY = "StandbyException", "ServiceStoppingException", "ServerNotReadyException"
TARGET = "java.lang.reflect.InvocationTargetException"  # the name of an exception that a server's handler raised

CUT: dict[str, Callable[[Calls], Fault]] = {
    "cut": lambda calls: calls.close_connection(),
    "cut in a reply": lambda calls: calls.close_mid_frame(),
    "begin token": lambda calls: calls.corrupt(0),
    "number of blocks": lambda calls: calls.corrupt(9),
    "envelope": lambda calls: calls.corrupt(17),
}
DAMAGED = ("begin token", "number of blocks", "envelope")  # the places of a damaged byte


def befall(calls: Calls, what: int | str, text: str = SAID) -> Fault:
    """Let something befall requests: an error code, an exception's name, or one of `CUT`."""
    if isinstance(what, int):
        return calls.fail(what, text)
    if what in CUT:
        return CUT[what](calls)
    return calls.throw(what if "." in what else EXCEPTIONS + what, text)


class Case(NamedTuple):
    method: str
    what: int | str
    error: type[TubeMQError] | None  # if it always happens
    words: str = ""
    is_final: bool = False  # it ends the work also if it happens once
    text: str = SAID

    def __str__(self) -> str:
        return f"{self.method} {self.what}"


REGISTER, LISTS, CLAIM, RELEASE = (
    "consumer_register_v2",
    "get_partition_meta",
    "partition_register",
    "partition_unregister",
)
FETCH, ENDS, BEAT = "get_message", "commit_offset", "partition_heartbeat"
AIM = {
    REGISTER: f"registering group readers for one, pair at the master {SERVER}",
    LISTS: f"asking for the partitions of one, pair at the master {SERVER}",
    CLAIM: f"claiming 1:(one|pair):[01] for group readers at {BROKER}",
    FETCH: f"reading 1:one:0 at {BROKER}",
    ENDS: f"asking for the end of 1:one:0 at {BROKER}",
    BEAT: rf"the heartbeat of spark_\w+_p0_a0\S* at {BROKER}",
    "producer_register": f"registering a producer at the master {SERVER}",
    "producer_heartbeat": f"a producer's heartbeat at the master {SERVER}",
    "send_message": rf"sending row \d+ of the task to {BROKER}, partition 1:pair:[01],",
}
NO_PROGRESS = f"1:one:0 at {BROKER}: gave up after 30 s without progress: "


def refused(method: str, code: int, error: type[TubeMQError], advice: str = "") -> Case:
    return Case(method, code, error, f"{AIM[method]} failed with {code} {code_name(code)}: {SAID}{advice}", True)


def gave_up(method: str, what: int | str, reason: str) -> Case:
    """A request that was repeated for as long as it may be."""
    if method in (REGISTER, LISTS):
        end = r".*Check option 'tubemq\.master' and that the master runs( there.*)?"
        return Case(method, what, TransportError, f"no master answered: {AIM[method]}: {reason}{end}")
    if method == CLAIM:
        begin, end = f"{AIM[CLAIM]}: ", ".*Check that the brokers run, that this machine can reach them, .*"
    else:
        begin, end = f"{NO_PROGRESS}.*", ".*Check that the broker runs and can be reached from the executors"
    return Case(method, what, TransportError, f"{begin}{reason}{end}")


def forgotten(method: str, code: int) -> Case:
    words = (
        rf"1:one:0 at {BROKER}: spark_\w+_b1_p0_a0\S* does not hold the partition any more \({code}: {SAID}\); a newer "
        "attempt took it over, or this one paused for too long. What it read so far is not used"
    )
    return Case(method, code, FencedError, words, True)


def nothing_came(code: int, text: str = SAID) -> Case:
    words = (
        f"1:one:0 at {BROKER}: nothing came for 30 s, the last answer to a fetch was {code} {code_name(code)}: {text}."
    )
    return Case(FETCH, code, ServerError, words + ".*", text=text)


OTHERS = r"; the group is in use .*: stop (them|those consumers).*, or use another 'tubemq\.group'"
CREATE = "; check the topic's name, or create it on the cluster"
GRANT = "; authorise the group for the topic on the cluster"
NARROW = "; set option 'filters' to message types that the group may read, or authorise .* these types on the cluster"
HELD = "[Duplicated Register] Partition 1#readers:one:0 has been registered by somebody"
STRANGER = (
    f"1:one:0 at {BROKER}: another consumer of group readers holds the partition for more than 0.2 s: somebody. .*"
)
OURS = (
    rf"1:one:0 at {BROKER}: an earlier attempt holds the partition, although the broker was told \d+ times in 30 s to "
    r"end such claims: spark_.*_p0_a0\S*\. Check the broker's log for what it refuses"
)
STALE = "Visit Authorized Token is invalid!"
QUIET = "((?!password).)*"  # the password is not to blame

READING = [
    *(gave_up(method, "cut", ".*broke: the peer closed it") for method in (REGISTER, LISTS, CLAIM, FETCH, ENDS, BEAT)),
    gave_up(FETCH, "cut in a reply", ".*broke: the peer closed it"),
    *(gave_up(one, two, rf".*not in service \({two}\)") for one, two in zip(
        (REGISTER, LISTS, CLAIM, FETCH, ENDS, BEAT), (STANDBY, NOT_READY, STOPPING) * 2, strict=True
    )),
    *(Case(one, TARGET, ServerError, f"{AIM[one]} failed at the server with InvocationTargetException: {SAID}", True)
      for one in (REGISTER, LISTS, CLAIM, FETCH, ENDS, BEAT)),
    *(Case(one, place, ProtocolError, r".*does not speak TubeMQ's protocol \(standard\): .*", True)
      for one in (REGISTER, LISTS, CLAIM, FETCH, ENDS, BEAT) for place in DAMAGED),
    *(Case(RELEASE, place, None) for place in DAMAGED),
    *(Case("consumer_close", what, None) for what in ("cut", "envelope", STANDBY, TARGET, 400, 411, 415)),
    # The master
    *(refused(method, 400, ServerError) for method in (REGISTER, LISTS)),
    *(refused(method, 415, AuthError, PASSWORD) for method in (REGISTER, LISTS)),
    *(refused(method, 500, ServerError) for method in (REGISTER, LISTS)),
    *(refused(REGISTER, code, ConfigError, OTHERS)._replace(is_final=False)  # a killed consumer is a member for a while
      for code in (424, 425, 426)),
    refused(REGISTER, 429, ConfigError, OTHERS),
    *(refused(REGISTER, code, ConfigError) for code in (427, 428, 430)),
    refused(REGISTER, 431, ConfigError, CREATE),
    refused(REGISTER, 450, AuthError, GRANT),
    refused(REGISTER, 455, AuthError, NARROW),
    Case(REGISTER, 201, TransportError, "registering group readers for one, pair: the master is not ready"),
    Case(LISTS, 411, SessionExpiredError,
         "asking for the partitions of one, pair: the master has forgotten this client"),
    # Claims at the broker
    refused(CLAIM, 400, ServerError),
    refused(CLAIM, 415, AuthError, PASSWORD),
    *(gave_up(CLAIM, code, f"{code} {SAID}") for code in (201, 403, 452, 500, 503)),
    Case(CLAIM, 410, PartitionOccupiedError, STRANGER, text=HELD),
    Case(CLAIM, 415, TransportError, f".*{STALE}{QUIET}the master gives no newer one{QUIET}", text=STALE),
    *(Case(RELEASE, what, PartitionOccupiedError, OURS) for what in (400, 403, 411, 412, 415, 500, 503, STANDBY)),
    Case(RELEASE, TARGET, PartitionOccupiedError, OURS),
    refused(BEAT, 400, ServerError),
    Case(BEAT, 415, AuthError, f"{AIM[BEAT]} failed with 415 CERTIFICATE_FAILURE: {SAID}; check.*"),
    *(gave_up(BEAT, code, f".*: {code} {SAID}") for code in (201, 403, 452, 500, 503)),
    # Reading
    refused(FETCH, 400, ServerError),
    Case(FETCH, 777, ServerError, f"{AIM[FETCH]} failed with 777 UNKNOWN: {SAID}", True),
    *(forgotten(FETCH, code) for code in (401, 411, 412)),
    *(nothing_came(code) for code in (301, 403, 500, 503, 510, 599)),
    *(nothing_came(404, text) for text in (
        "current offset is exceed max file offset", "current offset is exceed max offset!",
        "Can't found Message by index in cache", "the request offset reached cache maxOffset",
    )),
    forgotten(ENDS, 401),
    refused(ENDS, 400, ServerError),
    *(gave_up(ENDS, code, f"{code} {SAID}") for code in (201, 403, 452, 500, 503)),
]  # fmt: skip


@pytest.mark.parametrize("case", READING, ids=[f"{case} {number}" for number, case in enumerate(READING)])
def test_a_query(tubemq: EmbeddedTubeMQ, use_timings: UseTimings, case: Case) -> None:
    use_timings(claim_proof_max_age=0.0)  # a reader proves its claim before each delivery
    by_a_task = "_p" if case.method == FETCH else None
    # A planner does without what it cannot see, but not without a broker.
    always = by_a_task if isinstance(case.what, str) else None
    query = Query(tubemq)
    for times, client in ((1, by_a_task), (None, always)):
        fill(tubemq, 24)
        with befall(tubemq.on(case.method, times=times, client=client), case.what, case.text) as fault:
            if case.error is None or (times and not case.is_final):
                query.run()
            else:
                with pytest.raises(case.error) as caught:
                    query.run()
                assert caught.type is case.error
                assert re.fullmatch(case.words, str(caught.value)), caught.value
        assert fault.fired
        query.run()
        assert query.rows == stored(tubemq)
        forget_servers()
    for partition, end in query.ends.items():
        assert tubemq.group_offset(GROUP, partition.topic, partition.broker_id, partition.partition_id) == end


@pytest.mark.parametrize("method", [REGISTER, LISTS, CLAIM, FETCH])
def test_a_query_whose_server_never_answers(tubemq: EmbeddedTubeMQ, use_timings: UseTimings, method: str) -> None:
    use_timings(slow_peer_grace=0.02)
    fill(tubemq, 24)
    with (
        tubemq.on(method).drop_request(),
        pytest.raises(TransportError, match=rf"(one|pair).*{SERVER} did not answer in time"),
    ):
        Query(tubemq, rpc_timeout=0.1, retry_for=0.2).run()


# Writing

ROWS = [b"row %d" % number for number in range(40)]
JOIN, ALIVE, SEND = "producer_register", "producer_heartbeat", "send_message"
STORED = ("cut in a reply", *DAMAGED)  # the row is stored, and nobody hears of it


def no_master(method: str, what: str, reason: str) -> Case:
    end = r".*\. Check option 'tubemq\.master' and that the master runs( there.*)?"
    return Case(method, what, TransportError, f"no master answered: {AIM[method]}: {reason}{end}")


def given_up(what: int | str, error: type[TubeMQError], reason: str) -> Case:
    """A row that was sent again and again."""
    words = (
        r"row \d+ of the task for topic pair was not acknowledged within [0-9.]+ s of its first failure, in \d+ tries "
        rf"on all brokers of the topic that could be used; the last one, to partition 1:pair:[01]: {reason}.*; 0 of "
        r"\d+ messages of the task are acknowledged.*or give them longer with option 'tubemq\.retry\.maxElapsedMs'"
    )
    return Case(SEND, what, error, words)


WRITING = [
    *(no_master(method, "cut", "the connection to .* broke: the peer closed it") for method in (JOIN, ALIVE)),
    *(no_master(method, STANDBY, rf"not in service \({STANDBY}\)") for method in (JOIN, ALIVE)),
    *(refused(method, code, ServerError) for method in (JOIN, ALIVE) for code in (400, 500)),
    *(refused(method, 415, AuthError, PASSWORD) for method in (JOIN, ALIVE)),
    Case(JOIN, TARGET, ServerError, f"{AIM[JOIN]} failed at the server with InvocationTargetException: {SAID}", True),
    Case(JOIN, 201, TransportError, "registering a producer: the master is not ready"),
    Case(ALIVE, 201, TransportError, "a producer's heartbeat: the master is not ready"),
    Case(ALIVE, 411, SessionExpiredError, "a producer's heartbeat: the master has forgotten this client"),
    *(Case(method, place, ProtocolError, r".* does not speak TubeMQ's protocol \(standard\): .*", True)
      for method in (JOIN, ALIVE) for place in DAMAGED),
    *(given_up(code, ServerError, f"{AIM[SEND]} failed with {code} {code_name(code)}: {SAID}")
      for code in (403, 419, 500, 503, 510, 599)),
    *(given_up(name, ServerError, f"{AIM[SEND]} failed at the server with {name.rpartition('.')[2]}")
      for name in (STANDBY, STOPPING, NOT_READY, TARGET)),
    given_up("cut", TransportError, "the connection to .* broke: the peer closed it"),
    given_up("cut in a reply", TransportError, "the connection to .* broke: the peer closed it"),
    *(given_up(place, ProtocolError, r".* does not speak TubeMQ's protocol \(standard\): ") for place in DAMAGED),
    Case(SEND, 400, ServerError, f"{AIM[SEND]} failed with 400 BAD_REQUEST: {SAID}; 0 of .*", True),
    Case(SEND, 415, AuthError, f"{AIM[SEND]} failed with 415 CERTIFICATE_FAILURE: {SAID}{PASSWORD}; 0 of .*"),
    Case(SEND, 415, ServerError, f".*{STALE}{QUIET}check that the broker belongs to the cluster.*", text=STALE),
]  # fmt: skip


def is_quiet(tubemq: EmbeddedTubeMQ) -> bool:
    """Close idle connections, also one that was opened in the background just now, and say whether any are left."""
    forget_servers()
    return not connections_to(tubemq)


@pytest.mark.parametrize("case", WRITING, ids=[f"{case} {number}" for number, case in enumerate(WRITING)])
def test_a_task(tubemq: EmbeddedTubeMQ, case: Case) -> None:
    expected: Counter[bytes] = Counter()
    for times in (1, None):
        with befall(tubemq.on(case.method, times=times), case.what, case.text) as fault:
            if times and not case.is_final:
                assert write(tubemq, ROWS, max_in_flight=1) == len(ROWS)
                expected += Counter(ROWS)
            else:
                with pytest.raises(TubeMQError) as caught:
                    write(tubemq, ROWS, max_in_flight=1)
                assert caught.type is case.error
                assert re.fullmatch(case.words, str(caught.value)), caught.value
            wait_until(lambda: is_quiet(tubemq), "that nothing more comes of the task")
        assert fault.fired
        if case.what in STORED and case.method == SEND:
            expected += Counter({ROWS[0]: fault.fired})
        assert counts(tubemq) == expected
    assert write(tubemq, ROWS) == len(ROWS)
    assert counts(tubemq) == expected + Counter(ROWS)


def test_a_task_whose_servers_never_answer(tubemq: EmbeddedTubeMQ, use_timings: UseTimings) -> None:
    use_timings(slow_peer_grace=0.02)
    with tubemq.on(SEND).drop_request(), pytest.raises(TransportError, match=f"{BROKER} did not answer within 0.2 s"):
        write(tubemq, ROWS, rpc_timeout=0.2, retry_for=0.2)
    forget_servers()
    with tubemq.on(JOIN).drop_request(), pytest.raises(TransportError, match=f"{SERVER} did not answer in time"):
        write(tubemq, ROWS, rpc_timeout=0.1, retry_for=0.2)


@pytest.mark.parametrize("code", [400, 777])
def test_the_error_names_the_refused_row_and_counts_those_before_it(tubemq: EmbeddedTubeMQ, code: int) -> None:
    with tubemq.on(SEND, nth=20, times=1).fail(code, SAID), pytest.raises(ServerError) as caught:
        write(tubemq, ROWS, max_in_flight=1)
    assert str(caught.value).startswith("sending row 19 of the task ")
    assert str(caught.value).endswith("; 19 of 40 messages of the task are acknowledged")
    assert counts(tubemq) == Counter(ROWS[:19])
    with tubemq.on(SEND, nth=20, times=1).fail(code, SAID), pytest.raises(ServerError) as caught:
        write(tubemq, ROWS)  # many are in flight
    told = re.search(r"; (\d+) of \d+ messages of the task are acknowledged$", str(caught.value))
    assert told is not None
    assert 19 <= int(told[1]) <= counts(tubemq).total() - 19


@pytest.mark.parametrize("place", DAMAGED)
def test_all_sends_behind_a_damaged_reply_are_repeated(tubemq: EmbeddedTubeMQ, place: str) -> None:
    """The replies behind it cannot be read any more; only their rows are stored twice, in batches of each partition."""
    with befall(tubemq.on(SEND, nth=20, times=1), place):
        assert write(tubemq, ROWS) == len(ROWS)
    twice = [row for row, count in counts(tubemq).items() if count > 1]
    assert 0 < len(twice) <= len(ROWS) - 19
    assert counts(tubemq) == Counter(ROWS) + Counter(twice)
