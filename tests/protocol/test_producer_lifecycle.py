"""What answers and failures mean for a record that was sent."""

from __future__ import annotations

import pytest

from tubemq_spark.errors import ProtocolError, TransportError
from tubemq_spark.protocol.envelope import Failure
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.producer_lifecycle import (
    Answer,
    FailureCause,
    Outcome,
    SendEvent,
    classify_failure,
    send_event,
)

FAILED = {301, 403, 404, 410, 415, 419, 452, 500, 503, 510, 599, 201}


@pytest.mark.parametrize("code", ErrCode)
def test_send_event_of_each_code(code: ErrCode) -> None:
    expected = SendEvent.FAILED if code in FAILED else SendEvent.REFUSED
    assert send_event(code) is (SendEvent.ACKNOWLEDGED if code == 200 else expected)


@pytest.mark.parametrize("code", [0, -1, 440, 1000])
def test_an_unknown_code_is_a_refusal(code: int) -> None:
    assert send_event(code) is SendEvent.REFUSED


def answer(code: int) -> Answer:
    return Answer(success=False, errCode=code, errMsg="")


RETRY, UNKNOWN, REFUSED = SendEvent.FAILED, SendEvent.OUTCOME_UNKNOWN, SendEvent.REFUSED
STOPPING = Failure("org.apache.inlong.tubemq.corerpc.exception.ServiceStoppingException", "")
EXCEPTION = Failure("java.lang.reflect.InvocationTargetException", "")
FAILURES = [
    # outcome                 for a record that may be stored twice, or only once; cause
    (answer(400),             REFUSED, REFUSED, FailureCause.OTHER),
    (answer(403),             RETRY,   RETRY,   FailureCause.PARTITION_CLOSED),
    (answer(415),             RETRY,   RETRY,   FailureCause.AUTHORIZATION),
    (answer(419),             RETRY,   RETRY,   FailureCause.BROKER_FULL),
    (answer(500),             RETRY,   UNKNOWN, FailureCause.OTHER),
    (answer(503),             RETRY,   RETRY,   FailureCause.BROKER_REFUSES),
    (answer(1000),            REFUSED, REFUSED, FailureCause.OTHER),
    (STOPPING,                RETRY,   RETRY,   FailureCause.BROKER_REFUSES),
    (EXCEPTION,               RETRY,   UNKNOWN, FailureCause.OTHER),
    (TransportError("broke"), RETRY,   UNKNOWN, FailureCause.OTHER),
    (ProtocolError("damage"), RETRY,   UNKNOWN, FailureCause.OTHER),
]  # fmt: skip


@pytest.mark.parametrize(("outcome", "twice", "once", "cause"), FAILURES, ids=lambda value: str(value)[:40].strip())
def test_each_failure_is_retried_looked_up_or_refused(
    outcome: Outcome, twice: SendEvent, once: SendEvent, cause: FailureCause
) -> None:
    assert classify_failure(outcome, store_once=False) == (twice, cause)
    assert classify_failure(outcome, store_once=True) == (once, cause)
