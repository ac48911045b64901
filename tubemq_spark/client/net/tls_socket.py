"""A TCP socket over TLS: what it takes to open one, and why it did not open."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from functools import lru_cache
from typing import Any

from tubemq_spark.client.net import tls_advice
from tubemq_spark.client.net.tls import TlsSettings
from tubemq_spark.errors import ConfigError, ProtocolError
from tubemq_spark.protocol.metadata import Address


def over_tls(plain: socket.socket, context: ssl.SSLContext, address: Address, seconds: float) -> TlsSocket:
    """`plain` over TLS, with the handshake done within `seconds`.

    `ProtocolError` when who answers is not to be trusted, or speaks no TLS that this process can; `OSError` when it is
    silent, closes, or refuses this client.
    """
    secure = context.wrap_socket(plain, server_hostname=address.host, do_handshake_on_connect=False)
    assert isinstance(secure, TlsSocket)
    try:
        _shake_hands(secure, address, seconds)
    except BaseException:
        secure.close()
        raise
    return secure


def _shake_hands(secure: TlsSocket, address: Address, seconds: float) -> None:
    secure.settimeout(seconds)
    try:
        secure.do_handshake()
    except TimeoutError:
        raise ConnectionError(f"no answer to the TLS handshake within {seconds:g} s; is this the plain port?") from None
    except ssl.SSLCertVerificationError as cause:
        raise ProtocolError(
            f"the certificate of {address} is not trusted: {cause.verify_message}; "
            f"{tls_advice.for_certificate(cause.verify_code)}"
        ) from None
    except ssl.SSLEOFError:
        raise ConnectionError("the peer closed it in the TLS handshake; is this the plain port?") from None
    except ssl.SSLError as cause:
        reason = cause.reason or ""
        if tls_advice.is_mismatch(reason, has_cipher=secure.cipher() is not None):
            raise ProtocolError(f"cannot connect to {address}: {tls_advice.mismatch(reason)}") from None
        if tls_advice.is_alert(reason):
            raise ConnectionError(_broken(cause, secure.context)) from None
        raise ProtocolError(f"{address} does not speak TLS ({_said(cause)}); is this the plain port?") from None


def _broken(cause: ssl.SSLError, context: ssl.SSLContext) -> str:
    if not tls_advice.is_alert(cause.reason or ""):
        return f"TLS failed ({_said(cause)})"
    shows_certificate = isinstance(context, _Context) and context.shows_certificate
    return tls_advice.refusal(cause.reason, shows_certificate=shows_certificate)


class _Context(ssl.SSLContext):
    shows_certificate = False


def tls_context(tls: TlsSettings) -> ssl.SSLContext:
    """Made anew when a file has changed. `ConfigError` when one cannot be read or used."""
    return _context(tls, tls.last_changes())


@lru_cache(maxsize=16)
def _context(tls: TlsSettings, _last_changes: tuple[int, ...]) -> ssl.SSLContext:
    context = _Context(ssl.PROTOCOL_TLS_CLIENT)
    context.sslsocket_class = TlsSocket
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # so that writing never waits for reading
    context.check_hostname = tls.verify_hostname
    if tls.ca is None:
        context.load_default_certs()
    else:
        try:
            context.load_verify_locations(tls.ca)
        except OSError as cause:
            raise ConfigError(f"option 'tubemq.tls.ca': no PEM certificate in {tls.ca} ({_said(cause)})") from None
    if tls.cert is not None:
        _load_own(context, tls)
        context.shows_certificate = True
    return context


def _load_own(context: ssl.SSLContext, tls: TlsSettings) -> None:
    assert tls.cert is not None
    asked = []

    def password() -> str:  # without it OpenSSL would ask at the terminal
        asked.append(True)
        return tls.key_password or ""

    try:
        context.load_cert_chain(tls.cert, tls.key, password)
    except (OSError, ValueError) as cause:  # the latter for a password that is too long
        if asked:
            problem = "is missing" if tls.key_password is None else "does not open it"
            raise ConfigError(
                f"option 'tubemq.tls.key': {tls.key} is encrypted, and option 'tubemq.tls.keyPassword' {problem}"
            ) from None
        raise ConfigError(
            f"options 'tubemq.tls.cert' and 'tubemq.tls.key': {tls.cert} and {tls.key} are no PEM certificate and its "
            f"private key ({_said(cause)})"
        ) from None


class TlsSocket(ssl.SSLSocket):
    """Like a plain socket that does not block: says `BlockingIOError` when it has to wait, and other `OSError`s when it
    broke. Writing waits for writing and reading for reading only.
    """

    def send(self, data: Any, flags: int = 0) -> int:
        try:
            return super().send(data, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None
        except ssl.SSLError as cause:
            raise ConnectionError(_broken(cause, self.context)) from None

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        try:
            return super().recv_into(buffer, nbytes, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None
        except ssl.SSLError as cause:
            raise ConnectionError(_broken(cause, self.context)) from None

    def is_quiet(self) -> bool:
        """Whether the peer sent nothing but what TLS itself sends, such as tickets for later sessions."""
        try:
            self.recv_into(bytearray(1))
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def close(self) -> None:
        with suppress(OSError, ValueError):
            self.unwrap()  # says good-bye
        super().close()


def _said(cause: OSError | ValueError) -> str:
    return tls_advice.said(getattr(cause, "reason", None) or str(cause))
