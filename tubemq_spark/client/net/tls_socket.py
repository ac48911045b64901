"""A TCP socket over TLS: the handshake, and non-blocking reads and writes."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from typing import Any

from tubemq_spark.client.net import tls_advice
from tubemq_spark.client.tls import ClientContext, reason_of
from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol.metadata import Address

_CHECK_PORT = "Check that it is the TLS port: masters listen on 8716 and brokers on 8124 by default"


def over_tls(plain: socket.socket, context: ClientContext, address: Address, seconds: float) -> TlsSocket:
    """Return `plain` over TLS, after a handshake within `seconds`.

    Raise `ProtocolError` if the server is not trusted or has no TLS version or cipher of this process, `OSError` if it
    does not answer, closes the connection, or refuses this client.
    """
    context.sslsocket_class = TlsSocket
    secure = context.wrap_socket(plain, server_hostname=address.host, do_handshake_on_connect=False)
    assert isinstance(secure, TlsSocket)
    try:
        _handshake(secure, address, seconds)
    except BaseException:
        secure.close()
        raise
    return secure


def _handshake(secure: TlsSocket, address: Address, seconds: float) -> None:
    secure.settimeout(seconds)
    try:
        secure.do_handshake()
    except TimeoutError:
        raise ConnectionError(f"no answer to the TLS handshake within {seconds:g} s. {_CHECK_PORT}") from None
    except ssl.SSLCertVerificationError as cause:
        raise ProtocolError(
            f"the certificate of {address} is not trusted: {cause.verify_message}; "
            f"{tls_advice.for_certificate(cause.verify_code)}"
        ) from None
    except ssl.SSLEOFError:
        raise ConnectionError(f"the peer closed it in the TLS handshake. {_CHECK_PORT}") from None
    except ssl.SSLError as cause:
        reason = cause.reason or ""
        if tls_advice.is_mismatch(reason, has_cipher=secure.cipher() is not None):
            raise ProtocolError(f"cannot connect to {address}: {tls_advice.mismatch(reason)}") from None
        if tls_advice.is_alert(reason):
            raise ConnectionError(_failure(cause, secure.context)) from None
        raise ProtocolError(f"{address} does not speak TLS ({reason_of(cause)}). {_CHECK_PORT}") from None


def _failure(cause: ssl.SSLError, context: ssl.SSLContext) -> str:
    if not tls_advice.is_alert(cause.reason or ""):
        return f"TLS failed ({reason_of(cause)})"
    shows_certificate = isinstance(context, ClientContext) and context.shows_certificate
    return tls_advice.refusal(cause.reason, shows_certificate=shows_certificate)


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
