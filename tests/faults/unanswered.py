# SPDX-License-Identifier: Apache-2.0
"""Timeouts of the client that follow events and not only the time.

All timeouts are long here. A request that a fault leaves without a reply is given up soon after the fault met it. So
the client never takes a slow machine for a silent server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest import mock
from weakref import WeakKeyDictionary

from tubemq_spark.client.net.connection import Connection
from tubemq_spark.client.producer.record_run import RecordRun
from tubemq_spark.client.producer.sender import BrokerChannel
from tubemq_spark.errors import ProtocolError, TransportError
from tubemq_spark.protocol.constants import Framing
from tubemq_spark.protocol.envelope import Failure, Request, Response, decode_request
from tubemq_spark.protocol.frame import FrameDecoder
from tubemq_spark.testing import Fault
from tubemq_spark.testing.faults import _read

SOON = 0.2  # seconds
_TICK = 0.01


@dataclass(eq=False)
class _Rule:
    """A fault at the servers, and a counter of the requests that meet it at the client."""

    fault: Fault
    mirror: Fault

    def meets(self, request: Request) -> bool:
        name, fields = _read(request)
        self.mirror.removed = self.fault.removed
        return fields is not None and self.mirror.meets(self.fault._conditions.server or "", name, fields)


@dataclass
class _Unanswered:
    """A call that the fault meets as its `number`-th; `met_at` is on the monotonic clock."""

    fault: Fault
    number: int
    met_at: float = field(default=float("inf"), init=False)

    @property
    def is_met(self) -> bool:
        if self.met_at == float("inf") and self.fault.fired >= self.number:
            self.met_at = time.monotonic()
        return self.met_at < float("inf")

    @property
    def holds_up_others(self) -> bool:
        """Whether what follows on the connection gets no answer either."""
        return self.fault.effect.silence or self.fault.effect.delay > 0


_rules: list[_Rule] = []
_calls: WeakKeyDictionary[Connection, dict[int, _Unanswered]] = WeakKeyDictionary()


def unanswered(fault: Fault) -> Fault:
    """Of the calls that meet `fault` some get no answer, or none that can be read."""
    _rules.append(_Rule(fault, Fault(fault._conditions, fault.effect)))
    return fault


@contextmanager
def patience() -> Iterator[None]:
    """For a test that uses `unanswered`."""
    _rules.clear()
    with (
        mock.patch.object(Connection, "submit_request", _submit),
        mock.patch.object(Connection, "submit_run", _submit_run),
        mock.patch.object(Connection, "reply", _reply),
        mock.patch.object(BrokerChannel, "gives_up_at", _gives_up_at),
    ):
        yield
    _rules.clear()


_submit_as_ever, _submit_run_as_ever, _reply_as_ever, _gives_up_at_as_ever = (
    Connection.submit_request,
    Connection.submit_run,
    Connection.reply,
    BrokerChannel.gives_up_at,
)


def _submit(connection: Connection, request: Request) -> int:
    call = _call(connection, request)
    serial_no = _submit_as_ever(connection, request)
    if call is not None:
        _calls[connection][serial_no] = call
    return serial_no


def _submit_run(connection: Connection, count: int, encode: Callable[[int], bytes]) -> int:
    def noting(first: int) -> bytes:
        frames = encode(first)
        for serial_no, body in FrameDecoder(Framing.STANDARD).feed(frames):
            call = _call(connection, decode_request(body))
            if call is not None:
                _calls[connection][serial_no] = call
        return frames

    return _submit_run_as_ever(connection, count, noting)


def _call(connection: Connection, request: Request) -> _Unanswered | None:
    calls = _calls.setdefault(connection, {})
    call = next((one for one in calls.values() if one.holds_up_others), None)
    if call is None:
        rule = next((rule for rule in _rules if rule.meets(request)), None)
        call = None if rule is None else _Unanswered(rule.fault, rule.mirror.fired)
    return call


def _serial_numbers(link: BrokerChannel) -> Iterator[int]:
    for first, one in link._sends.items():
        if isinstance(one, RecordRun):
            yield from range(first + one.acknowledged, first + len(one.bodies))
        else:
            yield first


def _reply(connection: Connection, serial_no: int) -> Response | Failure:
    call = _calls.get(connection, {}).get(serial_no)
    deadlines = connection._deadlines
    while call is not None and time.monotonic() < deadlines.get(serial_no, 0.0):
        if call.is_met:
            deadlines[serial_no] = min(deadlines[serial_no], call.met_at + SOON)
            break
        try:
            connection.poll(_TICK)
        except (TransportError, ProtocolError):
            break  # it is said below
    return _reply_as_ever(connection, serial_no)


def _gives_up_at(link: BrokerChannel) -> float:
    usual = _gives_up_at_as_ever(link)
    known = _calls.get(link.connection, {})
    calls = [known.get(serial_no) for serial_no in _serial_numbers(link)]
    waiting = [call for call in calls if call is not None]
    if not calls or len(waiting) < len(calls):  # others are to be answered first
        return min(usual, time.monotonic() + _TICK) if waiting else usual
    if not all(call.is_met for call in waiting):
        return min(usual, time.monotonic() + _TICK)
    return min(usual, max(call.met_at for call in waiting) + SOON)
