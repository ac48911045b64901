# SPDX-License-Identifier: Apache-2.0
"""Opening a TCP connection: name resolution, connect timeout, TLS handshake. TLS sockets do not block, and TLS errors
say what users can do about them.

A server that refuses a client sends an alert, which has a number and no text. The moment of the alert says more than
its number: before the server has chosen a cipher, it knows only the versions and ciphers of the client.
"""

from __future__ import annotations

import socket
import ssl
import struct
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from tubemq_spark.client.retries import Deadline
from tubemq_spark.client.timings import Timings
from tubemq_spark.client.tls import ClientContext, TlsSettings, openssl_reason, tls_context
from tubemq_spark.errors import ConfigError, ProtocolError, TransportError
from tubemq_spark.protocol.constants import BROKER_TLS_PORT, MASTER_TLS_PORT
from tubemq_spark.protocol.metadata import Address

if sys.platform != "win32":
    import fcntl
    import termios

Socket = socket.socket

_DROP_UNSENT = struct.pack("ii", 1, 0)  # SO_LINGER on, for 0 seconds
_CHECK_PORT = (
    f"Check that it is the TLS port: masters listen on {MASTER_TLS_PORT} and brokers on {BROKER_TLS_PORT} by default"
)

# OpenSSL's X509_V_ERR_… (include/openssl/x509_vfy.h).
_NOT_YET_VALID, _EXPIRED, _INVALID_PURPOSE, _HOSTNAME_MISMATCH, _IP_ADDRESS_MISMATCH = 9, 10, 26, 62, 64
_WEAK = (66, 67, 68)  # the server's key, an authority's key, an authority's signature

_OF_CERTIFICATE: Mapping[int, str] = {
    _NOT_YET_VALID: "check this machine's clock, or have the server's operator install a certificate that is valid now",
    _EXPIRED: "have the server's operator renew it, or the one of its authority; if they are valid, set this machine's "
    "clock",
    _INVALID_PURPOSE: "have the server's operator install a certificate that is for servers",
    **dict.fromkeys(
        (_HOSTNAME_MISMATCH, _IP_ADDRESS_MISMATCH),
        "connect by a name that it has, or set option 'tubemq.tls.verifyHostname' to false",
    ),
    **dict.fromkeys(_WEAK, "have the server's operator install one with a longer key and a newer signature"),
}
_OF_AUTHORITY = "name the file of the authority that signed it in option 'tubemq.tls.ca'"

_GIVE_CERTIFICATE = "give a certificate that the server trusts in options 'tubemq.tls.cert' and 'tubemq.tls.key'"

# Words in OpenSSL's reasons.
_NOTHING_IN_COMMON = (
    "PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL", "INSUFFICIENT_SECURITY", "NO_CIPHER", "NO_SHARED", "UNKNOWN_CIPHER",
    "WRONG_CIPHER", "DH_KEY_TOO_SMALL", "WRONG_CURVE", "WRONG_SIGNATURE_TYPE",
)  # fmt: skip
_OF_OWN_CERTIFICATE = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED", "HANDSHAKE_FAILURE", "DECRYPT_ERROR")


def open_socket(address: Address, seconds: float, tls: TlsSettings | None, timings: Timings) -> Socket:
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
                opened = _over_tls(opened, context, address, left)
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
    problem = OSError(f"{address.host} is not a host's name")
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


def _over_tls(plain: socket.socket, context: ClientContext, address: Address, seconds: float) -> TlsSocket:
    """Return `plain` over TLS, after a handshake within `seconds`.

    Raise `ProtocolError` if the server is not trusted or has no TLS version or cipher of this process, `OSError` if it
    does not answer, closes the connection, or refuses this client.
    """
    context.sslsocket_class = TlsSocket
    secure = context.wrap_socket(plain, server_hostname=address.host, do_handshake_on_connect=False)
    assert isinstance(secure, TlsSocket)
    try:
        secure.settimeout(seconds)
        _handshake(secure, address, seconds)
    except BaseException:
        secure.close()
        raise
    return secure


def _handshake(secure: TlsSocket, address: Address, seconds: float) -> None:
    try:
        secure.do_handshake()
    except TimeoutError:
        raise ConnectionError(f"no answer to the TLS handshake within {seconds:g} s. {_CHECK_PORT}") from None
    except ssl.SSLCertVerificationError as cause:
        raise ProtocolError(
            f"the certificate of {address} is not trusted: {cause.verify_message}; "
            f"{_OF_CERTIFICATE.get(cause.verify_code, _OF_AUTHORITY)}"
        ) from None
    except ssl.SSLEOFError:
        raise ConnectionError(f"the peer closed it in the TLS handshake. {_CHECK_PORT}") from None
    except ssl.SSLError as cause:
        reason = cause.reason or ""
        has_cipher = secure.cipher() is not None  # else the server refused before it chose one
        if any(word in reason for word in _NOTHING_IN_COMMON) or ("HANDSHAKE_FAILURE" in reason and not has_cipher):
            raise ProtocolError(
                f"cannot connect to {address}: the server and this client have no version or cipher of TLS in common "
                f"({_words(reason)}); have the server's operator enable TLS 1.2 or 1.3 with a cipher that this "
                "machine's OpenSSL has"
            ) from None
        if "ALERT" in reason:
            raise ConnectionError(_failure(cause, secure.context)) from None
        raise ProtocolError(f"{address} does not speak TLS ({openssl_reason(cause)}). {_CHECK_PORT}") from None


def _failure(cause: ssl.SSLError, context: ssl.SSLContext) -> str:
    if "ALERT" not in (cause.reason or ""):
        return f"TLS failed ({openssl_reason(cause)})"
    shows_certificate = isinstance(context, ClientContext) and context.shows_certificate
    return _refusal(cause.reason, shows_certificate=shows_certificate)


def _refusal(reason: str, *, shows_certificate: bool) -> str:
    """Return a description of an alert that is not a mismatch. `shows_certificate`: this client has a certificate."""
    words = _words(reason)
    if not any(word in reason for word in _OF_OWN_CERTIFICATE):
        return f"the server refuses TLS with this client ({words}); if it asks for a certificate, {_GIVE_CERTIFICATE}"
    if not shows_certificate:
        return f"the server asks for this client's certificate, and there is none ({words}); {_GIVE_CERTIFICATE}"
    if "EXPIRED" in reason:
        return (
            f"the server refuses this client's certificate ({words}); renew the file of option 'tubemq.tls.cert', or "
            "set the clock that is wrong"
        )
    return (
        f"the server refuses this client's certificate ({words}); have its operator trust the authority that signed "
        "the file of option 'tubemq.tls.cert', or give another certificate"
    )


def _words(reason: str) -> str:
    return reason.lower().replace("_", " ")


class TlsSocket(ssl.SSLSocket):
    """A TLS socket with the errors of a plain non-blocking one: `BlockingIOError` if it would wait, another `OSError`
    if it broke. Writing waits only for writing, and reading only for reading.
    """

    def send(self, data: Any, flags: int = 0) -> int:
        try:
            return super().send(data, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None
        except ssl.SSLError as cause:
            raise ConnectionError(_failure(cause, self.context)) from None

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        try:
            return super().recv_into(buffer, nbytes, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None
        except ssl.SSLError as cause:
            raise ConnectionError(_failure(cause, self.context)) from None

    def is_quiet(self) -> bool:
        """Return True if the peer sent nothing, apart from messages of TLS itself such as session tickets."""
        try:
            self.recv_into(bytearray(1))
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def close(self) -> None:
        with suppress(OSError, ValueError):
            self.unwrap()  # sends the closing alert
        super().close()


def drop_unsent_bytes(opened: Socket) -> None:
    """Let the system drop what the peer has not got yet when the socket is closed."""
    with suppress(OSError):
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DROP_UNSENT)


def not_received(opened: Socket) -> int:
    """Return how many bytes the system has taken and the peer's host has not received, by its TCP."""
    if sys.platform == "win32":
        return 0
    try:
        return int.from_bytes(fcntl.ioctl(opened.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except OSError:  # not every system reports this about sockets
        return 0
