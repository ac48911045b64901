# SPDX-License-Identifier: Apache-2.0
"""Each request of a sink's task with each kind of fault.

All rows are stored, and only rows whose replies were lost are stored twice; or the task fails with an error that names
the fault, and the next attempt stores all rows.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

import pytest

from tests.faults.engine import PATIENT, bodies, counts, write
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
from tests.sending import connections_to
from tests.waiting import wait_until
from tubemq_spark.client import forget_servers
from tubemq_spark.client.cluster.session_pool import SESSIONS
from tubemq_spark.errors import AuthError, ProtocolError, ServerError, TransportError, TubeMQError
from tubemq_spark.protocol.errcode import code_name
from tubemq_spark.testing import EmbeddedTubeMQ

ROWS = bodies(300)
AT_MASTER = ("producer_register", "producer_heartbeat")
DONE_UNHEARD = {
    "drop_reply",
    "close_mid_frame",
    *(str(kind) for kind in DAMAGED),
}  # then the row is stored, and sent again


def once_each(*doubled: bytes) -> Counter[bytes]:
    return Counter(ROWS) + Counter(doubled)


def acknowledged(error: BaseException) -> int:
    """Return the number of rows that are stored for certain, from the end of the error."""
    told = re.search(r"; (\d+) of (\d+) rows of the task are acknowledged($|\. Check that the brokers run)", str(error))
    assert told is not None, error
    assert int(told[1]) < int(told[2]) <= len(ROWS)
    return int(told[1])


def check(
    tubemq: EmbeddedTubeMQ, method: str, kind: Kind, failure: Failure | None, *, times: int | None = None
) -> None:
    """Write with the fault, and if that fails once more without."""
    with kind.befall(tubemq.on(method, times=times)) as fault:
        if failure is None:
            assert write(tubemq, ROWS, retry_for=PATIENT) == len(ROWS)
        else:
            with pytest.raises(failure.error, match=failure.words) as caught:
                write(tubemq, ROWS)
            assert caught.type is failure.error
            assert not counts(tubemq)
    assert fault.fired == (times or fault.fired) > 0
    if failure is not None:
        assert write(tubemq, ROWS, retry_for=PATIENT) == len(ROWS)
    assert counts(tubemq) == once_each()


# The master


@pytest.mark.parametrize("kind", [*NO_ANSWER, *BROKEN, *ELSEWHERE, SLOW, code(201)], ids=str)
@pytest.mark.parametrize("method", AT_MASTER)
def test_a_request_to_the_master_that_fails_once_is_retried(tubemq: EmbeddedTubeMQ, method: str, kind: Kind) -> None:
    check(tubemq, method, kind, None, times=1)


MASTER = r"127\.0\.0\.1:\d+"
PURPOSE = {"producer_register": "registering a producer", "producer_heartbeat": "a producer's heartbeat"}
NOBODY = r"^no master answered: {0} at the master {1}: {2}.*\. Check option 'tubemq\.master' and that the master runs$"
CREDENTIALS = r"; check options 'tubemq\.user' and 'tubemq\.password', and the clock of this machine"


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        *((kind, f"{MASTER} did not answer in time") for kind in NO_ANSWER),
        *((kind, "the connection to .* broke: the peer closed it") for kind in BROKEN),
        *((kind, rf"not in service \({kind}\)") for kind in ELSEWHERE),
    ],
    ids=str,
)
@pytest.mark.parametrize("method", AT_MASTER)
def test_a_task_fails_without_a_master(tubemq: EmbeddedTubeMQ, method: str, kind: Kind, reason: str) -> None:
    check(tubemq, method, kind, Failure(TransportError, NOBODY.format(PURPOSE[method], MASTER, reason)))


@pytest.mark.parametrize(
    ("number", "error", "advice"), [(400, ServerError, ""), (415, AuthError, CREDENTIALS), (500, ServerError, "")]
)
@pytest.mark.parametrize("times", [1, None], ids=["once", "always"])
@pytest.mark.parametrize("method", AT_MASTER)
def test_a_task_reports_a_refusal_of_the_master(
    tubemq: EmbeddedTubeMQ, method: str, times: int | None, number: int, error: type[TubeMQError], advice: str
) -> None:
    words = f"^{PURPOSE[method]} at the master {MASTER} failed with {number} {code_name(number)}: {NO_REASON}{advice}$"
    check(tubemq, method, code(number), Failure(error, words), times=times)


def test_a_task_reports_an_exception_of_the_master(tubemq: EmbeddedTubeMQ) -> None:
    words = f"^registering a producer at the master {MASTER} failed at the server with InvocationTargetException: "
    check(tubemq, "producer_register", exception(TARGET), Failure(ServerError, words))


@pytest.mark.parametrize(("method", "number", "reason"), [
    ("producer_register", 201, "the master is not ready"),
    ("producer_heartbeat", 201, "the master is not ready"),
    ("producer_heartbeat", 411, "the master has forgotten this client"),
])  # fmt: skip
def test_a_task_fails_if_the_master_is_never_ready(
    tubemq: EmbeddedTubeMQ, method: str, number: int, reason: str
) -> None:
    check(tubemq, method, code(number), Failure(TransportError, f"^{PURPOSE[method]}: {reason}$"))


def test_a_producer_that_the_master_forgot_registers_again(tubemq: EmbeddedTubeMQ) -> None:
    with tubemq.on("producer_register").count() as registers:
        check(tubemq, "producer_heartbeat", code(411), None, times=1)
    assert registers.fired == 2


@pytest.mark.parametrize("kind", DAMAGED, ids=str)
@pytest.mark.parametrize("method", AT_MASTER)
def test_a_task_reports_a_damaged_reply_of_the_master(tubemq: EmbeddedTubeMQ, method: str, kind: Kind) -> None:
    words = rf"^{PURPOSE[method]} at the master .* does not speak TubeMQ's protocol \(standard\): "
    check(tubemq, method, kind, Failure(ProtocolError, words), times=1)


@pytest.mark.parametrize("kind", [*NO_ANSWER, *BROKEN, *ELSEWHERE, *DAMAGED, code(400), code(415)], ids=str)
def test_a_lost_close_request_does_no_harm(tubemq: EmbeddedTubeMQ, kind: Kind) -> None:
    write(tubemq, ROWS, retry_for=PATIENT)
    with kind.befall(tubemq.on("producer_close")) as fault:
        SESSIONS().close()
    assert fault.fired == 1
    assert write(tubemq, ROWS, retry_for=PATIENT) == len(ROWS)


# Sends that fail once. One at a time, so that it is known which row each of them is.


QUICK = [*BROKEN, *ELSEWHERE, SLOW, *DAMAGED, exception(TARGET), *map(code, (403, 415, 419, 500, 503, 510, 599))]
ONCE = [*[(kind, nth) for kind in QUICK for nth in (1, 150, 300)], *[(kind, 150) for kind in NO_ANSWER]]


@pytest.mark.parametrize(("kind", "nth"), ONCE, ids=str)
def test_a_send_that_fails_once_is_retried(tubemq: EmbeddedTubeMQ, kind: Kind, nth: int) -> None:
    with kind.befall(tubemq.on("send_message", nth=nth, times=1)) as fault:
        assert write(tubemq, ROWS, max_in_flight=1, retry_for=PATIENT) == len(ROWS)
    assert fault.fired == 1
    assert counts(tubemq) == (once_each(ROWS[nth - 1]) if str(kind) in DONE_UNHEARD else once_each())


# Many at a time.


@pytest.mark.parametrize(
    "kind", [*NO_ANSWER, *BROKEN, *ELSEWHERE, SLOW, exception(TARGET), *map(code, (403, 419, 500, 503))], ids=str
)
def test_one_failed_send_of_many_is_retried(tubemq: EmbeddedTubeMQ, kind: Kind) -> None:
    with kind.befall(tubemq.on("send_message", nth=50, times=1)) as fault:
        assert write(tubemq, ROWS, retry_for=PATIENT) == len(ROWS)
    assert fault.fired == 1
    assert counts(tubemq) == (once_each(ROWS[49]) if str(kind) in DONE_UNHEARD else once_each())


@pytest.mark.parametrize("kind", DAMAGED, ids=str)
def test_all_sends_behind_a_damaged_reply_are_retried(tubemq: EmbeddedTubeMQ, kind: Kind) -> None:
    """The replies behind it cannot be read any more; only their rows are stored twice."""
    with kind.befall(tubemq.on("send_message", nth=50, times=1)) as fault:
        assert write(tubemq, ROWS, retry_for=PATIENT) == len(ROWS)
    assert fault.fired == 1
    found = counts(tubemq)
    twice = [row for row in ROWS if found[row] > 1]
    assert twice == ROWS[49 : 49 + len(twice)] != []
    assert found == once_each(*twice)


@pytest.mark.parametrize("period", [3, 10])
@pytest.mark.parametrize("kind", [code(500), code(419), exception(TARGET)], ids=str)
def test_many_temporary_refusals_do_not_fail_the_task(tubemq: EmbeddedTubeMQ, kind: Kind, period: int) -> None:
    faults = [kind.befall(tubemq.on("send_message", nth=nth, times=1)) for nth in range(period, 300, period)]
    assert write(tubemq, ROWS, retry_for=PATIENT) == len(ROWS)
    assert sum(fault.fired for fault in faults) == len(faults)
    assert counts(tubemq) == once_each()


# Sends that always fail


class Case(NamedTuple):
    kind: Kind
    error: type[TubeMQError]
    last: str  # what the error says of the last try


SEND = rf"sending row \d+ of the task to broker 1 at {MASTER}, partition 1:pair:[01],"
ALWAYS = [
    *[
        Case(code(n), ServerError, f"{SEND} failed with {n} {code_name(n)}: {NO_REASON}")
        for n in (403, 419, 500, 503, 510, 599)
    ],
    *[Case(kind, ServerError, f"{SEND} failed at the server with {kind}") for kind in (*ELSEWHERE, exception(TARGET))],
    *[Case(kind, TransportError, f"broker 1 at {MASTER} did not answer within 10 s") for kind in NO_ANSWER],
    *[Case(kind, TransportError, "the connection to .* broke: the peer closed it") for kind in BROKEN],
    *[Case(kind, ProtocolError, r".* does not speak TubeMQ's protocol \(standard\): ") for kind in DAMAGED],
]


@pytest.mark.parametrize("case", ALWAYS, ids=[str(case.kind) for case in ALWAYS])
def test_a_task_fails_if_sends_always_fail(tubemq: EmbeddedTubeMQ, case: Case) -> None:
    """Rows that were stored without a reply stay beside the rows of the next attempt."""
    with case.kind.befall(tubemq.on("send_message")) as fault:
        with pytest.raises(case.error) as caught:
            write(tubemq, ROWS, max_in_flight=10)
        forget_servers()
        wait_until(lambda: not connections_to(tubemq), "that nothing more comes of the task")
    told = str(caught.value)
    assert caught.type is case.error
    assert fault.fired
    words = (
        rf"^row \d+ of the task for topic pair was not acknowledged within [0-9.]+ s of its first failure, in \d+ "
        rf"tries on all brokers of the topic that could be used; the last one, to partition 1:pair:[01]: {case.last}"
    )
    assert caught.match(words)
    assert told.endswith("or give them longer with option 'tubemq.retry.maxElapsedMs'")
    assert acknowledged(caught.value) == 0
    before = counts(tubemq)
    if str(case.kind) in DONE_UNHEARD:
        assert before.total() == fault.fired
    else:
        assert not before
    assert write(tubemq, ROWS, retry_for=PATIENT) == len(ROWS)
    assert counts(tubemq) == Counter(ROWS) + before


@pytest.mark.parametrize("times", [1, None], ids=["once", "always"])
def test_the_error_names_the_refused_row(tubemq: EmbeddedTubeMQ, times: int | None) -> None:
    with (
        code(400).befall(tubemq.on("send_message", nth=20, times=times)) as fault,
        pytest.raises(ServerError, match=f"^{SEND} failed with 400 BAD_REQUEST: {NO_REASON}; ") as caught,
    ):
        write(tubemq, ROWS, max_in_flight=1)
    assert "row 19 " in str(caught.value)
    assert caught.value.code == 400
    assert fault.fired == 1
    assert counts(tubemq) == Counter(ROWS[:19])
    assert acknowledged(caught.value) == 19


@pytest.mark.parametrize("kind", [code(400), code(420)], ids=str)
def test_the_error_of_a_refused_row_counts_the_rows_acknowledged_before(tubemq: EmbeddedTubeMQ, kind: Kind) -> None:
    with (
        kind.befall(tubemq.on("send_message", nth=150, times=1)) as fault,
        pytest.raises(ServerError, match=r"^sending row 149 ") as caught,
    ):
        write(tubemq, ROWS)
    assert fault.fired == 1
    assert ROWS[149] not in counts(tubemq)
    assert 149 <= acknowledged(caught.value) <= counts(tubemq).total()


def test_a_task_reports_wrong_credentials(tubemq: EmbeddedTubeMQ) -> None:
    """A single refusal may be due to a new token, see above."""
    with (
        code(415).befall(tubemq.on("send_message")) as fault,
        pytest.raises(
            AuthError, match=f"^{SEND} failed with 415 CERTIFICATE_FAILURE: {NO_REASON}{CREDENTIALS}; "
        ) as caught,
    ):
        write(tubemq, ROWS, max_in_flight=1, retry_for=PATIENT)  # the second try must not be too late
    assert fault.fired == 2
    assert not counts(tubemq)
    assert acknowledged(caught.value) == 0
