# SPDX-License-Identifier: Apache-2.0
"""Kinds of faults of a request, and what a test expects after each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.faults.unanswered import unanswered
from tubemq_spark.errors import TubeMQError
from tubemq_spark.testing import Calls, Fault

_RPC = "org.apache.inlong.tubemq.corerpc.exception."
STANDBY, STOPPING, NOT_READY = (
    f"{_RPC}{name}" for name in ("StandbyException", "ServiceStoppingException", "ServerNotReadyException")
)
TARGET = "java.lang.reflect.InvocationTargetException"  # the name of an exception that a server's handler raised

NO_REASON = "as the test said"
UNHURRIED = 10.0  # seconds to wait for a reply that certainly comes, on a slow machine, too
LATE = 30.0  # seconds: more than the client waits

# Byte offsets that exist in every reply's frame.
PLACES = {"begin token": 0, "serial number": 5, "number of blocks": 9, "length of a block": 13, "envelope": 17}


@dataclass(frozen=True)
class Kind:
    """One kind of fault."""

    name: str
    befall: Callable[[Calls], Fault]

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Failure:
    """The expected error of a query or a write: its class, and a pattern of its text."""

    error: type[TubeMQError]
    words: str

    def __str__(self) -> str:
        return self.error.__name__


def code(number: int, text: str = NO_REASON) -> Kind:
    return Kind(f"code {number}", lambda calls: calls.fail(number, text))


def exception(name: str) -> Kind:
    return Kind(name.rsplit(".", 1)[-1], lambda calls: calls.throw(name, NO_REASON))


def damage(name: str, at: int) -> Kind:
    return Kind(f"corrupt {name}", lambda calls: calls.corrupt(at))


# After these faults a retry may succeed: over another connection, at another server, or later.
NO_ANSWER = (
    Kind("drop_request", lambda calls: unanswered(calls.drop_request())),
    Kind("drop_reply", lambda calls: unanswered(calls.drop_reply())),
    Kind("delay beyond the timeout", lambda calls: unanswered(calls.delay(LATE))),
    Kind("silence", lambda calls: unanswered(calls.silence())),
)
BROKEN = (
    Kind("close_mid_frame", lambda calls: calls.close_mid_frame()),
    Kind("close_connection", lambda calls: calls.close_connection()),
)
ELSEWHERE = (exception(STANDBY), exception(STOPPING), exception(NOT_READY))
SLOW = Kind("delay", lambda calls: calls.delay(0.03))
DAMAGED = tuple(damage(name, at) for name, at in PLACES.items())
