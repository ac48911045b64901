# SPDX-License-Identifier: Apache-2.0
"""What the outcome of a send means: for its record, and for the broker or partition."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto

from tubemq_spark.errors import ProtocolError, TransportError
from tubemq_spark.protocol.envelope import Failure
from tubemq_spark.protocol.errcode import ErrCode, is_elsewhere, is_retryable
from tubemq_spark.protocol.send_acks import SendAck

SendOutcome = SendAck | Failure | TransportError | ProtocolError
"""What became of one send: the broker's answer, an exception at the broker, or the error that ended the connection."""


class Fate(Enum):
    """What happens to a record whose send failed."""

    NOT_STORED = auto()  # it may be sent again
    HANDLED = auto()  # it may be stored, and no copy of it will arrive any more
    UNKNOWN = auto()  # it may be stored, or arrive later
    REFUSED = auto()  # no broker will ever take it


class FailureCause(Enum):
    """What a failed send says about the broker or the partition."""

    AUTHORIZATION = auto()  # 415; the visit token may have expired
    BROKER_REFUSES = auto()  # the broker starts or stops
    BROKER_FULL = auto()
    PARTITION_CLOSED = auto()  # 403; closed for a while or for good
    OTHER = auto()


_CAUSES: Mapping[int, FailureCause] = {
    ErrCode.CERTIFICATE_FAILURE: FailureCause.AUTHORIZATION,
    ErrCode.SERVICE_UNAVAILABLE: FailureCause.BROKER_REFUSES,
    ErrCode.SERVER_RECEIVE_OVERFLOW: FailureCause.BROKER_FULL,
    ErrCode.FORBIDDEN: FailureCause.PARTITION_CLOSED,
}

# A broker that answers with one of these codes has stored nothing (wire: BrokerServiceServer). Any other failure, and
# a missing answer, leave that open.


def classify_failure(outcome: SendOutcome) -> tuple[Fate, FailureCause]:
    """Return what a failed send means for its record, and for the broker or partition."""
    if isinstance(outcome, SendAck):
        code = outcome.errCode
        # The visit token may have expired (CERTIFICATE_FAILURE): the next heartbeat brings a new one.
        if not is_retryable(code) and code != ErrCode.CERTIFICATE_FAILURE:
            return Fate.REFUSED, _CAUSES.get(code, FailureCause.OTHER)
        fate = Fate.NOT_STORED if code in _CAUSES else Fate.HANDLED
        return fate, _CAUSES.get(code, FailureCause.OTHER)
    if isinstance(outcome, Failure):
        if is_elsewhere(outcome):
            return Fate.NOT_STORED, FailureCause.BROKER_REFUSES
        return Fate.HANDLED, FailureCause.OTHER
    return Fate.UNKNOWN, FailureCause.OTHER
