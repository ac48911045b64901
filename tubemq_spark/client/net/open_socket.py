"""Opening a TCP connection: name resolution, connect timeout, TLS handshake."""

from __future__ import annotations

import socket

from tubemq_spark.client.backoff import Deadline
from tubemq_spark.client.net.tls_socket import over_tls
from tubemq_spark.client.timings import Timings
from tubemq_spark.client.tls import TlsSettings, tls_context
from tubemq_spark.errors import ConfigError, TransportError
from tubemq_spark.protocol.metadata import Address


def open_socket(address: Address, seconds: float, tls: TlsSettings | None, timings: Timings) -> socket.socket:
    """Return a connected, non-blocking socket.

    Raise `TransportError` if nobody answers at `address` within `seconds`, `ProtocolError` if the server that answers
    over TLS is not trusted.
    """
    try:
        context = None if tls is None else tls_context(tls)
        deadline = Deadline(seconds)
        opened = _connect(address, deadline, timings.min_connect_step)
        try:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is not None:
                left = max(timings.min_connect_step, min(deadline.left, timings.tls_handshake_timeout))
                opened = over_tls(opened, context, address, left)
            opened.setblocking(False)
        except BaseException:
            opened.close()
            raise
    except ConfigError as cause:  # the driver has checked the files, but they may differ here, or be replaced just now
        raise TransportError(f"cannot connect to {address}: {cause}. Each executor needs the file") from None
    except (OSError, UnicodeError) as cause:  # UnicodeError: the name cannot be a host's
        raise TransportError(f"cannot connect to {address}: {reason_of(cause)}") from None
    return opened


def _connect(address: Address, deadline: Deadline, min_step: float) -> socket.socket:
    """Return a connected socket. If the name has several hosts, they share the time that is left."""
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    problem = OSError(f"{address.host} is no host's name")
    for number, (family, kind, protocol, _, host) in enumerate(found):
        opened = socket.socket(family, kind, protocol)
        try:
            opened.settimeout(max(min_step, deadline.left / (len(found) - number)))
            opened.connect(host)
            return opened
        except OSError as cause:
            opened.close()
            problem = cause
    raise problem


def reason_of(cause: OSError | ValueError) -> str:
    """Return the system's reason, such as `Connection refused`."""
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
