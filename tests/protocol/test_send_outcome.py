# SPDX-License-Identifier: Apache-2.0
"""What a failed send means, for each answer and each other end of it."""

from __future__ import annotations

import pytest

from tubemq_spark.errors import ProtocolError, TransportError
from tubemq_spark.protocol.envelope import Failure
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.send_acks import SendAck
from tubemq_spark.protocol.send_outcome import FailureCause, Fate, SendOutcome, classify_failure

RETRIED = {301, 403, 404, 410, 415, 419, 452, 500, 503, 510, 599, 201}


def answer(code: int) -> SendAck:
    return SendAck(success=False, errCode=code, errMsg="")


@pytest.mark.parametrize("code", [*(code for code in ErrCode if code != ErrCode.SUCCESS), 0, -1, 440, 1000])
def test_each_code_means_a_retry_or_a_refusal(code: int) -> None:
    fate, _ = classify_failure(answer(code))
    assert (fate is Fate.REFUSED) == (code not in RETRIED)


STOPPING = Failure("org.apache.inlong.tubemq.corerpc.exception.ServiceStoppingException", "")
EXCEPTION = Failure("java.lang.reflect.InvocationTargetException", "")
FAILURES = [
    (answer(400), Fate.REFUSED, FailureCause.OTHER),
    (answer(403), Fate.NOT_STORED, FailureCause.PARTITION_CLOSED),
    (answer(415), Fate.NOT_STORED, FailureCause.AUTHORIZATION),
    (answer(419), Fate.NOT_STORED, FailureCause.BROKER_FULL),
    (answer(500), Fate.HANDLED, FailureCause.OTHER),
    (answer(503), Fate.NOT_STORED, FailureCause.BROKER_REFUSES),
    (answer(1000), Fate.REFUSED, FailureCause.OTHER),
    (STOPPING, Fate.NOT_STORED, FailureCause.BROKER_REFUSES),
    (EXCEPTION, Fate.HANDLED, FailureCause.OTHER),
    (TransportError("broke"), Fate.UNKNOWN, FailureCause.OTHER),
    (ProtocolError("damage"), Fate.UNKNOWN, FailureCause.OTHER),
]


@pytest.mark.parametrize(("outcome", "fate", "cause"), FAILURES, ids=lambda value: str(value)[:40].strip())
def test_each_failure_has_a_fate_and_a_cause(outcome: SendOutcome, fate: Fate, cause: FailureCause) -> None:
    assert classify_failure(outcome) == (fate, cause)
