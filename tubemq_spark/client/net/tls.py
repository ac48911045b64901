"""How to speak TLS, and the files it takes. `connection` does it."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field

from tubemq_spark.errors import ConfigError

_log = logging.getLogger(__name__)

_warned: set[TlsSettings] = set()  # in this process


@dataclass(frozen=True)
class TlsSettings:
    """Plain values, for they travel to the executors.

    The files are PEM, and are read where a connection is made. Without `ca` the system's trust store counts; `cert`
    and `key` go together and are shown to servers that ask for a certificate. Without `verify_hostname` the
    certificate of another host is taken too, if the authority signed it.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    key_password: str | None = field(default=None, repr=False)
    verify_hostname: bool = True

    def last_changes(self) -> tuple[int, ...]:
        """When each of the files was changed, in nanoseconds. `ConfigError` when one cannot be read."""
        changes = []
        for option, path in (("ca", self.ca), ("cert", self.cert), ("key", self.key)):
            if path is not None:
                try:
                    with open(path, "rb") as file:
                        changes.append(os.fstat(file.fileno()).st_mtime_ns)
                except (OSError, ValueError) as cause:  # the latter for a name that cannot be a file's
                    problem = getattr(cause, "strerror", None) or cause
                    raise ConfigError(f"option 'tubemq.tls.{option}': cannot read {path} ({problem})") from None
        return tuple(changes)


def warn_of_unverified_names(tls: TlsSettings | None) -> None:
    """Says it loudly, once for each process and settings, when a server need not be the host that was meant."""
    if tls is None or tls.verify_hostname or tls in _warned:
        return
    _warned.add(tls)
    _log.warning(
        "OPTION 'tubemq.tls.verifyHostname' IS FALSE: whoever has any certificate of the trusted authorities can pose "
        "as the masters and brokers, and read and change the messages. Use server certificates that name their hosts, "
        "and leave the option out"
    )
