# SPDX-License-Identifier: Apache-2.0
"""TLS settings: the files that TLS needs, checked and loaded. `net.open_socket` uses them for connections."""

from __future__ import annotations

import logging
import os
import ssl
from dataclasses import dataclass, field
from functools import lru_cache

from tubemq_spark.client.runtime import PerProcess
from tubemq_spark.errors import ConfigError

_log = logging.getLogger(__name__)

_warned: PerProcess[set[TlsSettings]] = PerProcess(set)


@dataclass(frozen=True)
class TlsSettings:
    """Paths of PEM files and a password, as plain values, because they travel to the executors.

    The files are read when a connection is made. Without `ca` the system's trust store is used. `cert` and `key` go
    together; they are sent to servers that ask for a certificate. Without `verify_hostname` a certificate for another
    host is accepted too, if an authority signed it.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    key_password: str | None = field(default=None, repr=False)
    verify_hostname: bool = True

    def modified_at(self) -> tuple[int, ...]:
        """Return when each file was modified, in nanoseconds. Raise `ConfigError` if one cannot be read."""
        times = []
        for option, path in (("ca", self.ca), ("cert", self.cert), ("key", self.key)):
            if path is not None:
                try:
                    with open(path, "rb") as file:
                        times.append(os.fstat(file.fileno()).st_mtime_ns)
                except (OSError, ValueError) as cause:  # ValueError: the name cannot be a file's
                    problem = getattr(cause, "strerror", None) or cause
                    raise ConfigError(f"option 'tubemq.tls.{option}': cannot read {path} ({problem})") from None
        return tuple(times)


def warn_of_unverified_names(tls: TlsSettings | None) -> None:
    """Log a warning if `tls` does not verify host names, once for each process and settings."""
    if tls is None or tls.verify_hostname or tls in _warned():
        return
    _warned().add(tls)
    _log.warning(
        "[hostname-unverified] "
        "OPTION 'tubemq.tls.verifyHostname' IS FALSE: whoever has any certificate of the trusted authorities can pose "
        "as the masters and brokers, and read and change the messages. Use server certificates that name their hosts, "
        "and leave the option out"
    )


class ClientContext(ssl.SSLContext):
    """An `SSLContext` that knows whether this client has a certificate of its own."""

    shows_certificate = False


def tls_context(tls: TlsSettings) -> ClientContext:
    """Return the context for `tls`, cached until a file changes. Raise `ConfigError` if a file cannot be used."""
    return _context()(tls, tls.modified_at())


def _load(tls: TlsSettings, _modified_at: tuple[int, ...]) -> ClientContext:
    context = ClientContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # so that writing never waits for reading
    context.check_hostname = tls.verify_hostname
    if tls.ca is None:
        context.load_default_certs()
    else:
        try:
            context.load_verify_locations(tls.ca)
        except (OSError, ValueError) as cause:  # ValueError: no path at all
            raise ConfigError(
                f"option 'tubemq.tls.ca': no PEM certificate in {tls.ca} ({openssl_reason(cause)})"
            ) from None
    if tls.cert is not None:
        _load_own_certificate(context, tls, tls.cert)
        context.shows_certificate = True
    return context


_context = PerProcess(lambda: lru_cache(maxsize=16)(_load))


def _load_own_certificate(context: ssl.SSLContext, tls: TlsSettings, cert: str) -> None:
    is_encrypted = False

    def password() -> str:  # without this function OpenSSL would ask at the terminal
        nonlocal is_encrypted
        is_encrypted = True
        return tls.key_password or ""

    try:
        context.load_cert_chain(cert, tls.key, password)
    except (OSError, ValueError) as cause:  # ValueError: the password is too long
        if is_encrypted:
            problem = "is missing" if tls.key_password is None else "does not open it"
            raise ConfigError(
                f"option 'tubemq.tls.key': {tls.key} is encrypted, and option 'tubemq.tls.keyPassword' {problem}"
            ) from None
        raise ConfigError(
            f"options 'tubemq.tls.cert' and 'tubemq.tls.key': {cert} and {tls.key} are not a PEM certificate and its "
            f"private key ({openssl_reason(cause)})"
        ) from None


def openssl_reason(cause: OSError | ValueError) -> str:
    """Return OpenSSL's reason in words, such as `wrong version number`."""
    return (getattr(cause, "reason", None) or str(cause)).lower().replace("_", " ")
