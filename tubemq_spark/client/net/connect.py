"""Connecting to a server whose release is unknown: a probe finds out which framing it speaks."""

from __future__ import annotations

import logging

from tubemq_spark.client.backoff import Deadline
from tubemq_spark.client.clock import SYSTEM_CLOCK, Clock
from tubemq_spark.client.net.connection import FRAMINGS, Connection
from tubemq_spark.client.timings import DEFAULT_TIMINGS, Timings
from tubemq_spark.client.tls import TlsSettings
from tubemq_spark.errors import ProtocolError, TransportError
from tubemq_spark.protocol.constants import Framing, ServiceType
from tubemq_spark.protocol.envelope import Request
from tubemq_spark.protocol.metadata import Address

_log = logging.getLogger(__name__)

# A method that no server knows. The server answers with an exception at once and changes nothing.
_PROBE = Request(ServiceType.MASTER, 0, 10_000, b"")
_POLL = 0.02  # seconds


def connect(
    address: Address,
    framing: Framing | None,
    timeout: float,
    tls: TlsSettings | None = None,
    timings: Timings = DEFAULT_TIMINGS,
    clock: Clock = SYSTEM_CLOCK,
) -> Connection:
    """Return a connection with `framing`, or with the framing that `address` answers to if `framing` is None.

    A server does not answer the framing that it does not know. So the standard framing is tried first, and soon the
    other one too, over a second connection. Raises as `Connection` does, and `TransportError` if neither framing is
    answered within `timeout` seconds.
    """
    known = framing or FRAMINGS.get(address)
    if known is not None:
        return Connection(address, known, timeout, tls, timings, clock)
    deadline = Deadline(timeout, clock)
    standard = Connection(address, Framing.STANDARD, timeout, tls, timings, clock)
    probes = {standard: standard.submit_request(_PROBE)}
    try:
        found = _first_answered(probes, Deadline(min(timings.second_framing_after, timeout / 2), clock))
        if found is None:
            left = max(deadline.left, timings.min_connect_step)
            prefixed = Connection(address, Framing.PREFIXED, left, tls, timings, clock)
            probes[prefixed] = prefixed.submit_request(_PROBE)
            found = _first_answered(probes, deadline)
    except (TransportError, ProtocolError):
        for probe in probes:
            probe.close()
        raise
    for probe in probes:
        if probe is not found:
            probe.close()
    if found is None:
        raise TransportError(
            f"{address} accepts connections but does not answer within {timeout:g} s in either framing. "
            f"Check that it is the {'plain' if tls is None else 'TLS'} port of a TubeMQ master or broker "
            f"({'8715, 8123' if tls is None else '8716, 8124'} by default)"
        )
    FRAMINGS[address] = found.framing
    _log.debug("%s speaks the %s framing", address, found.framing.value)
    return found


def _first_answered(probes: dict[Connection, int], deadline: Deadline) -> Connection | None:
    while not deadline.passed:
        for connection, serial_no in probes.items():
            connection.poll(min(_POLL, deadline.left))
            if connection.answered(serial_no):
                connection.reply(serial_no)
                return connection
    return None
