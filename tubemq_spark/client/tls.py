"""How to speak TLS, and the files it takes. `connection` does it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from tubemq_spark.errors import ConfigError


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
