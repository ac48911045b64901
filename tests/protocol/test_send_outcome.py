# SPDX-License-Identifier: Apache-2.0
"""What a failed send means, for each answer and each other end of it."""

from __future__ import annotations

import pytest

from tubemq_spark.errors import ProtocolError, TransportError
from tubemq_spark.protocol.envelope import Failure
from tubemq_spark.protocol.send_acks import SendAck
from tubemq_spark.protocol.send_outcome import FailureCause, Fate, SendOutcome, classify_failure


def answer(code: int) -> SendAck:
    return SendAck(success=False, errCode=code, errMsg="")


STOPPING = Failure("org.apache.inlong.tubemq.corerpc.exception.ServiceStoppingException", "")
EXCEPTION = Failure("java.lang.reflect.InvocationTargetException", "")
FAILURES = [
    (answer(400), Fate.REFUSED, FailureCause.OTHER),
    (answer(403), Fate.NOT_STORED, FailureCause.PARTITION_CLOSED),
    (answer(404), Fate.HANDLED, FailureCause.OTHER),
    (answer(411), Fate.REFUSED, FailureCause.OTHER),
    (answer(415), Fate.NOT_STORED, FailureCause.AUTHORIZATION),
    (answer(419), Fate.NOT_STORED, FailureCause.BROKER_FULL),
    (answer(424), Fate.REFUSED, FailureCause.OTHER),
    (answer(450), Fate.REFUSED, FailureCause.OTHER),
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
