"""What configures the client: the `tubemq.*` options that source and sink share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tubemq_spark.client.clock import SYSTEM_CLOCK, Clock
from tubemq_spark.client.timings import DEFAULT_TIMINGS, Timings
from tubemq_spark.client.tls import TlsSettings, tls_context
from tubemq_spark.errors import ConfigError
from tubemq_spark.options import Option, boolean, not_blank, one_of, whole_number
from tubemq_spark.protocol.auth import Credentials
from tubemq_spark.protocol.constants import BROKER_PORT, Framing
from tubemq_spark.protocol.metadata import Address, parse_master_addresses

_MASTER_TLS_PORT = 8716  # as servers are configured unless told otherwise
_BROKER_TLS_PORT = 8124

MASTER = Option(
    "tubemq.master",
    parse_master_addresses,
    "host:port[,host:port…]",
    "the masters, port 8715 when left out, or 8716 with TLS",
    required=True,
)
USER = Option("tubemq.user", not_blank, "a user name", "the user of the simple authenticator")
PASSWORD = Option("tubemq.password", str, "the user's password", "the user's password", secret=True)
PASSWORD_FILE = Option(
    "tubemq.passwordFile", not_blank, "the path of a file", "a file with the password in its first line"
)
RPC_TIMEOUT_MS = Option(
    "tubemq.rpc.timeoutMs", whole_number(100, 600_000), "milliseconds, 100 to 600000", "how long one request may take",
    10_000,
)  # fmt: skip
RPC_FRAMING = Option(
    "tubemq.rpc.framing",
    one_of("auto", "standard", "prefixed"),
    "auto, standard or prefixed",
    "how requests are framed: `prefixed` for TubeMQ 1.1 and 1.2, `standard` for others, `auto` finds out",
    "auto",
)
RETRY_MAX_ELAPSED_MS = Option(
    "tubemq.retry.maxElapsedMs",
    whole_number(0),
    "milliseconds, 0 or more",
    "how long one operation is retried before its task fails",
    60_000,
)
CONNECTIONS_IDLE_MS = Option(
    "tubemq.connections.idleMs",
    whole_number(1000),
    "milliseconds, at least 1000",
    "an unused connection is closed after that time",
    180_000,
)

CONNECTIONS_SHARED = Option(
    "tubemq.connections.shared",
    boolean,
    "true or false",
    "true: the tasks of a worker process use one another's connections again; false: each task opens its own, and "
    "closes them at its end",
    True,
)
TLS_ENABLED = Option(
    "tubemq.tls.enabled",
    boolean,
    "true or false",
    "whether to use TLS, at least 1.2, to the masters and all brokers; they have ports of their own for it",
    False,
)
TLS_CA = Option(
    "tubemq.tls.ca",
    not_blank,
    "the path of a PEM file",
    "the certificates of the authorities that may sign a server's, on the driver and every executor; without it those "
    "that the system trusts",
)
TLS_CERT = Option(
    "tubemq.tls.cert",
    not_blank,
    "the path of a PEM file",
    "this client's certificate and those between it and its authority, for servers that ask for one (two-way TLS)",
)
TLS_KEY = Option(
    "tubemq.tls.key",
    not_blank,
    "the path of a PEM file",
    "the private key of `tubemq.tls.cert`; it may stand in the same file",
)
TLS_KEY_PASSWORD = Option(
    "tubemq.tls.keyPassword",
    str,
    "the key's password",
    "the password of `tubemq.tls.key`, where the key is encrypted",
    secret=True,
)
TLS_VERIFY_HOSTNAME = Option(
    "tubemq.tls.verifyHostname",
    boolean,
    "true or false",
    "whether a server's certificate must name the host that was connected to; an authority must have signed it either "
    "way",
    shown_default="true",  # it must be known whether it was given
)

CLIENT_OPTIONS: tuple[Option[Any], ...] = (
    MASTER,
    USER,
    PASSWORD,
    PASSWORD_FILE,
    RPC_TIMEOUT_MS,
    RPC_FRAMING,
    RETRY_MAX_ELAPSED_MS,
    CONNECTIONS_IDLE_MS,
    CONNECTIONS_SHARED,
    TLS_ENABLED,
    TLS_CA,
    TLS_CERT,
    TLS_KEY,
    TLS_KEY_PASSWORD,
    TLS_VERIFY_HOSTNAME,
)


@dataclass(frozen=True)
class ClientSettings:
    """Plain values, for they travel to the executors. Times are in seconds; `framing` None means: find out; `tls` None
    means: do without. `are_proven` when a master has answered to them before, in whatever process: who asks the masters
    for the first time is then as patient as later. `timings` and `clock` are no options; tests replace them.
    """

    masters: tuple[Address, ...]
    credentials: Credentials | None = None
    rpc_timeout: float = 10.0
    framing: Framing | None = None
    retry_for: float = 60.0
    idle_for: float = 180.0
    shared_connections: bool = True
    tls: TlsSettings | None = None
    are_proven: bool = field(default=False, compare=False)
    timings: Timings = field(default_factory=lambda: DEFAULT_TIMINGS)
    clock: Clock = field(default_factory=lambda: SYSTEM_CLOCK)

    @property
    def default_broker_port(self) -> int:
        """Of brokers whose port the master leaves out. Over TLS that is 8124 by release 2.5, and 8123 by release 1.2,
        which cannot be told apart: 2.5 is assumed (wire: BrokerConfEntity).
        """
        return BROKER_PORT if self.tls is None else _BROKER_TLS_PORT

    @classmethod
    def from_options(cls, raw: Mapping[str, str]) -> ClientSettings:
        framing = RPC_FRAMING.get(raw)
        tls = _tls(raw)
        return cls(
            masters=(MASTER if tls is None else replace(MASTER, parse=_masters_over_tls)).get(raw),
            credentials=_credentials(raw),
            rpc_timeout=RPC_TIMEOUT_MS.get(raw) / 1000,
            framing=None if framing == "auto" else Framing(framing),
            retry_for=RETRY_MAX_ELAPSED_MS.get(raw) / 1000,
            idle_for=CONNECTIONS_IDLE_MS.get(raw) / 1000,
            shared_connections=CONNECTIONS_SHARED.get(raw),
            tls=tls,
        )


def _masters_over_tls(text: str) -> tuple[Address, ...]:
    return tuple(
        address if ":" in given else address._replace(port=_MASTER_TLS_PORT)
        for address, given in zip(parse_master_addresses(text), text.split(","), strict=True)
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


def _tls(raw: Mapping[str, str]) -> TlsSettings | None:
    others: tuple[Option[Any], ...] = (TLS_CA, TLS_CERT, TLS_KEY, TLS_KEY_PASSWORD, TLS_VERIFY_HOSTNAME)
    given = [option.name for option in others if option.read(raw) is not None]
    if not TLS_ENABLED.get(raw):
        if given:
            raise ConfigError(
                f"option '{given[0]}' is of TLS: set option 'tubemq.tls.enabled' to true, or leave it out"
            )
        return None
    for option, needed in ((TLS_CERT, TLS_KEY), (TLS_KEY, TLS_CERT), (TLS_KEY_PASSWORD, TLS_KEY)):
        if option.name in given and needed.name not in given:
            raise ConfigError(f"option '{option.name}' needs '{needed.name}' beside it: {needed.meaning}")
    tls = TlsSettings(
        ca=TLS_CA.read(raw),
        cert=TLS_CERT.read(raw),
        key=TLS_KEY.read(raw),
        key_password=TLS_KEY_PASSWORD.read(raw),
        verify_hostname=TLS_VERIFY_HOSTNAME.read(raw) is not False,
    )
    tls_context(tls)  # what is wrong with a file is said here, on the driver
    return tls
