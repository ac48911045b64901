"""What configures the client: the `tubemq.*` options that source and sink share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tubemq_spark.errors import ConfigError
from tubemq_spark.options import Option, Planned, not_blank, one_of, whole_number
from tubemq_spark.protocol.auth import Credentials
from tubemq_spark.protocol.constants import Framing
from tubemq_spark.protocol.metadata import Address, parse_master_addresses

MASTER = Option(
    "tubemq.master", parse_master_addresses, "host:port[,host:port…], port 8715 when left out", required=True
)
USER = Option("tubemq.user", not_blank, "a user name")
PASSWORD = Option("tubemq.password", str, "the user's password", secret=True)
PASSWORD_FILE = Option("tubemq.passwordFile", not_blank, "the path of a file with the password in its first line")
RPC_TIMEOUT_MS = Option("tubemq.rpc.timeoutMs", whole_number(100, 600_000), "milliseconds, 100 to 600000", 10_000)
RPC_FRAMING = Option(
    "tubemq.rpc.framing", one_of("auto", "standard", "prefixed"), "auto, standard or prefixed (TubeMQ 1.1, 1.2)", "auto"
)
RETRY_MAX_ELAPSED_MS = Option("tubemq.retry.maxElapsedMs", whole_number(0), "milliseconds", 60_000)
CONNECTIONS_IDLE_MS = Option("tubemq.connections.idleMs", whole_number(1000), "milliseconds, at least 1000", 180_000)

CLIENT_OPTIONS: tuple[Option[Any] | Planned, ...] = (
    MASTER,
    USER,
    PASSWORD,
    PASSWORD_FILE,
    RPC_TIMEOUT_MS,
    RPC_FRAMING,
    RETRY_MAX_ELAPSED_MS,
    CONNECTIONS_IDLE_MS,
    Planned("tubemq.connections.shared", "true"),
    Planned("tubemq.tls.enabled", "false"),
    Planned("tubemq.tls.ca"),
    Planned("tubemq.tls.cert"),
    Planned("tubemq.tls.key"),
    Planned("tubemq.tls.keyPassword"),
    Planned("tubemq.tls.verifyHostname", "true"),
)


@dataclass(frozen=True)
class ClientSettings:
    """Plain values, for they travel to the executors. Times are in seconds; `framing` None means: find out."""

    masters: tuple[Address, ...]
    credentials: Credentials | None = None
    rpc_timeout: float = 10.0
    framing: Framing | None = None
    retry_for: float = 60.0
    idle_for: float = 180.0

    @classmethod
    def from_options(cls, raw: Mapping[str, str]) -> ClientSettings:
        framing = RPC_FRAMING.get(raw)
        return cls(
            masters=MASTER.get(raw),
            credentials=_credentials(raw),
            rpc_timeout=RPC_TIMEOUT_MS.get(raw) / 1000,
            framing=None if framing == "auto" else Framing(framing),
            retry_for=RETRY_MAX_ELAPSED_MS.get(raw) / 1000,
            idle_for=CONNECTIONS_IDLE_MS.get(raw) / 1000,
        )


def _credentials(raw: Mapping[str, str]) -> Credentials | None:
    user, password, file = USER.read(raw), PASSWORD.read(raw), PASSWORD_FILE.read(raw)
    if password is not None and file is not None:
        raise ConfigError("give option 'tubemq.password' or 'tubemq.passwordFile', not both")
    if user is None:
        if password is not None or file is not None:
            raise ConfigError("option 'tubemq.user' is required where a password is given")
        return None
    if file is not None:
        try:
            password = Path(file).read_text(encoding="utf-8").splitlines()[0]
        except (OSError, UnicodeDecodeError, IndexError) as cause:
            raise ConfigError(f"option 'tubemq.passwordFile': {file} gives no password ({cause})") from None
    if not password:
        raise ConfigError("option 'tubemq.user' needs 'tubemq.password' or 'tubemq.passwordFile' beside it")
    return Credentials(user, password)
