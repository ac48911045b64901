# SPDX-License-Identifier: Apache-2.0
"""Error codes: the numbers in TubeMQ's replies and the client's reaction to each (wire: TErrCodeConstants)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum, IntEnum, auto

from tubemq_spark.errors import AuthError, ConfigError, ServerError, TransportError, TubeMQError
from tubemq_spark.peer_text import shown
from tubemq_spark.protocol.envelope import Failure


class ErrCode(IntEnum):
    """The codes that servers send. The Java client also has 402, 405 to 408 and 420 to 423, for itself."""

    SUCCESS = 200
    NOT_READY = 201
    MOVED = 301
    BAD_REQUEST = 400
    UNAUTHORIZED = 401
    FORBIDDEN = 403
    NOT_FOUND = 404
    PARTITION_OCCUPIED = 410
    HB_NO_NODE = 411
    DUPLICATE_PARTITION = 412
    CERTIFICATE_FAILURE = 415
    SERVER_RECEIVE_OVERFLOW = 419
    CLIENT_INCONSISTENT_CONSUMETYPE = 424
    CLIENT_INCONSISTENT_TOPICSET = 425
    CLIENT_INCONSISTENT_FILTERSET = 426
    CLIENT_INCONSISTENT_SESSIONKEY = 427
    CLIENT_INCONSISTENT_SELECTBIG = 428
    CLIENT_INCONSISTENT_SOURCECOUNT = 429
    CLIENT_DUPLICATE_INDEXID = 430
    TOPIC_NOT_DEPLOYED = 431
    CONSUME_GROUP_FORBIDDEN = 450
    SERVER_CONSUME_SPEED_LIMIT = 452
    CONSUME_CONTENT_FORBIDDEN = 455
    INTERNAL_SERVER_ERROR = 500
    SERVICE_UNAVAILABLE = 503
    INTERNAL_SERVER_ERROR_MSGSET_NULL = 510
    UNSPECIFIED_ABNORMAL = 599


class Reaction(Enum):
    """What a client does after a reply with an error code. `SUCCESS` needs none."""

    RETRY = auto()  # the same request may succeed later, or at another server
    WAIT = auto()  # there is nothing to read now, or the server limits this client
    CLAIM_LOST = auto()  # the broker knows no claim of this client on the partition: another client may hold it
    OTHER_MEMBERS = auto()  # members of the group differ in topics, filters or kind: they may leave, or be dropped
    FIX_CONFIG = auto()  # the user's options do not fit the cluster or the group
    FIX_CREDENTIALS = auto()
    FAIL = auto()  # any other code, such as 400


_CODES: Mapping[Reaction, tuple[ErrCode, ...]] = {
    Reaction.RETRY: (
        ErrCode.MOVED,
        ErrCode.FORBIDDEN,  # the topic or partition is closed, or the broker does not know it until its next reload
        ErrCode.PARTITION_OCCUPIED,
        ErrCode.SERVER_RECEIVE_OVERFLOW,
        ErrCode.INTERNAL_SERVER_ERROR,
        ErrCode.SERVICE_UNAVAILABLE,
        ErrCode.INTERNAL_SERVER_ERROR_MSGSET_NULL,
        ErrCode.UNSPECIFIED_ABNORMAL,
    ),
    Reaction.WAIT: (ErrCode.NOT_FOUND, ErrCode.SERVER_CONSUME_SPEED_LIMIT, ErrCode.NOT_READY),
    Reaction.CLAIM_LOST: (
        ErrCode.HB_NO_NODE,  # no client holds the partition
        ErrCode.DUPLICATE_PARTITION,  # another client holds it
        ErrCode.UNAUTHORIZED,  # either, in the reply to a confirmation
    ),
    Reaction.OTHER_MEMBERS: (
        ErrCode.CLIENT_INCONSISTENT_CONSUMETYPE,
        ErrCode.CLIENT_INCONSISTENT_TOPICSET,
        ErrCode.CLIENT_INCONSISTENT_FILTERSET,
    ),
    Reaction.FIX_CONFIG: (
        ErrCode.CLIENT_INCONSISTENT_SESSIONKEY,
        ErrCode.CLIENT_INCONSISTENT_SELECTBIG,
        ErrCode.CLIENT_INCONSISTENT_SOURCECOUNT,
        ErrCode.CLIENT_DUPLICATE_INDEXID,
        ErrCode.TOPIC_NOT_DEPLOYED,
    ),
    Reaction.FIX_CREDENTIALS: (
        ErrCode.CERTIFICATE_FAILURE,
        ErrCode.CONSUME_GROUP_FORBIDDEN,
        ErrCode.CONSUME_CONTENT_FORBIDDEN,
    ),
}
REACTIONS: Mapping[int, Reaction] = {code: reaction for reaction, codes in _CODES.items() for code in codes}

_GROUP_IN_USE = "the group is in use {}, or use another 'tubemq.group'"
_ADVICE: Mapping[int, str] = {
    ErrCode.CLIENT_INCONSISTENT_CONSUMETYPE: _GROUP_IN_USE.format(
        "by consumers with server-side balance: stop them (a master drops those that were killed after 30 s)"
    ),
    ErrCode.CLIENT_INCONSISTENT_TOPICSET: _GROUP_IN_USE.format("with other topics: stop those consumers"),
    ErrCode.CLIENT_INCONSISTENT_FILTERSET: _GROUP_IN_USE.format("with other filters: stop those consumers"),
    ErrCode.CLIENT_INCONSISTENT_SOURCECOUNT: _GROUP_IN_USE.format("by consumers that set a source count: stop them"),
    ErrCode.TOPIC_NOT_DEPLOYED: "check the topic's name, or create it on the cluster",
    ErrCode.CERTIFICATE_FAILURE: "check options 'tubemq.user' and 'tubemq.password', and the clock of this machine",
    ErrCode.CONSUME_GROUP_FORBIDDEN: "authorise the group for the topic on the cluster",
    ErrCode.CONSUME_CONTENT_FORBIDDEN: "set option 'filters' to message types that the group may read, or "
    "authorise the group for these types on the cluster",
}

_VISIT_TOKEN_ADVICE = (
    "the master sends a new token to its brokers every few minutes: check that the broker belongs to the cluster of "
    "'tubemq.master' and reaches its master"
)
_MAX_NAME, _MAX_MESSAGE = 100, 2000  # characters of a peer's text in an error

_BROKER = re.compile(r"\[Duplicated Register\] Partition ([0-9]{1,10})#")

# Exceptions of a server that is not in service (wire: corerpc.exception).
_ELSEWHERE = frozenset({"StandbyException", "ServiceStoppingException", "ServerNotReadyException"})


def reaction_to(code: int) -> Reaction:
    """Return the reaction to the error `code`; `FAIL` for a number that is not in the table."""
    return REACTIONS.get(code, Reaction.FAIL)


def is_retryable(code: int) -> bool:
    """Return True if the same request may succeed later."""
    return reaction_to(code) in (Reaction.RETRY, Reaction.WAIT)


def code_name(code: int) -> str:
    """Return TubeMQ's name of `code`, or `UNKNOWN`."""
    try:
        return ErrCode(code).name
    except ValueError:
        return "UNKNOWN"


def is_elsewhere(failure: Failure) -> bool:
    """Return True if another server, or this one later, may handle the request."""
    return failure.simple_name in _ELSEWHERE


def is_unknown_topic(code: int, message: str) -> bool:
    """Return True if the broker lacks the topic; other texts mean closed or starting (wire: BrokerServiceServer)."""
    return code == ErrCode.FORBIDDEN and "not existed" in message


def is_unknown_partition(text: str) -> bool:
    """Return True if the broker has the topic and lacks the partition: it was added just now, or the topic was created
    anew with fewer (wire: MessageStoreManager)."""
    return "Wrong partition value" in text


def broker_in(code: int, text: str) -> int | None:
    """Return the id of the broker that refuses a claim because another client has it; None if the text names none.

    410: `[Duplicated Register] Partition <brokerId>#<group>:<topic>:<partition> has been registered by …` (wire:
    BrokerServiceServer).
    """
    found = _BROKER.match(text) if code == ErrCode.PARTITION_OCCUPIED else None
    return int(found[1]) if found else None


def undeployed_topics(code: int, text: str) -> frozenset[str]:
    """Return the topics that the master does not have, by the `text` of its refusal (wire: MasterParamCheckUtils)."""
    found = re.search(r"Requested topic \[+([^\]]+)", text) if code == ErrCode.TOPIC_NOT_DEPLOYED else None
    return frozenset(found[1].split(", ") if found else ())


def is_about_visit_token(code: int, message: str) -> bool:
    """Return True if the broker refuses the visit token, not the credentials (wire: SimpleCertificateBrokerHandler)."""
    return code == ErrCode.CERTIFICATE_FAILURE and "visit authorized token" in str(message).lower()


def error_for_code(code: int, message: str, what: str) -> TubeMQError:
    """Return the error to raise for a reply with `code`. Its text starts with `what` failed, and where."""
    is_of_token = is_about_visit_token(code, message)
    advice = _VISIT_TOKEN_ADVICE if is_of_token else _ADVICE.get(code)
    text = f"{what} failed with {code} {code_name(code)}: {shown(message)}" + (f"; {advice}" if advice else "")
    match reaction_to(code):
        case Reaction.OTHER_MEMBERS | Reaction.FIX_CONFIG:
            refused = ConfigError(text)
            refused.code = code
            return refused
        case Reaction.FIX_CREDENTIALS if not is_of_token:  # users cannot change a token
            return AuthError(text)
    return ServerError(text, code=code, name=code_name(code), message=shown(message, _MAX_MESSAGE))


def refused_for_now(code: int, message: str, what: str, holder: str = "") -> TransportError:
    """Return the error to raise for a reply with `code` after which the same request may succeed later."""
    return TransportError(f"{what}: {code} {message}", holder=holder, is_topic_unknown=is_unknown_topic(code, message))


def error_for_failure(failure: Failure, what: str) -> ServerError:
    """Return the error to raise for a request that no handler answered."""
    name = shown(failure.simple_name, _MAX_NAME)
    text = f"{what} failed at the server with {name}: {shown(failure.text) or 'no further text'}"
    return ServerError(text, code=-1, name=name, message=shown(failure.text, _MAX_MESSAGE))


class NotFound(Enum):
    """The kinds of error code 404."""

    END = auto()  # the cursor is at the end of the store
    PASSED = auto()  # the cursor passed the rest of a memory block, without messages of this partition
    WAIT = auto()  # the cursor stays: the broker cannot read these messages now


def not_found_kind(message: str) -> NotFound:
    """Return the kind of a 404, which only its text shows (wire: MsgFileStore, MsgMemStore, BrokerServiceServer)."""
    if "reached maxOffset" in message:
        return NotFound.END
    return NotFound.PASSED if "found Message by index!" in message else NotFound.WAIT
