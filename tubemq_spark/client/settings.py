# SPDX-License-Identifier: Apache-2.0
"""The client's configuration: the `tubemq.*` options that source and sink share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tubemq_spark.client.clock import SYSTEM_CLOCK, Clock
from tubemq_spark.client.timings import DEFAULT_TIMINGS, Timings
from tubemq_spark.client.tls import TlsSettings, tls_context
from tubemq_spark.errors import ConfigError
from tubemq_spark.option_definition import Option, boolean, choice, defined, flag, not_blank, number
from tubemq_spark.protocol.auth import Credentials
from tubemq_spark.protocol.constants import (
    BROKER_PORT,
    BROKER_TLS_PORT,
    MASTER_PORT,
    MASTER_TLS_PORT,
    WEB_PORT,
    Framing,
)
from tubemq_spark.protocol.metadata import Address, Broker, parse_addresses, parse_broker_addresses


def _addresses(default_port: int) -> Callable[[str], tuple[Address, ...]]:
    return lambda text: parse_addresses(text, default_port)


MASTER = Option(
    "tubemq.master",
    parse_addresses,
    "host:port[,host:port…]",
    f"the masters. The default port is {MASTER_PORT}, or {MASTER_TLS_PORT} with TLS. Write an IPv6 address in "
    "brackets: `[::1]:8715`",
    required=True,
)
USER = Option("tubemq.user", not_blank, "a user name", "the user of TubeMQ's simple authenticator")
PASSWORD = Option("tubemq.password", str, "the user's password", "the user's password", secret=True)
_MAX_SECRET = 10_000  # characters of the first line of a file
PASSWORD_FILE = Option(
    "tubemq.passwordFile", not_blank, "the path of a file", "a file with the password in its first line"
)
RPC_TIMEOUT_MS = number("tubemq.rpc.timeoutMs", "milliseconds", 100, "timeout of one request", 10_000, most=600_000)
RPC_FRAMING = choice(
    "tubemq.rpc.framing",
    ("auto", "standard", "prefixed"),
    "the framing of requests: `prefixed` for TubeMQ 1.1 and 1.2, `standard` for others; `auto` detects it",
    "auto",
)
RETRY_MAX_ELAPSED_MS = number(
    "tubemq.retry.maxElapsedMs", "milliseconds", 0, "how long one operation is retried before its task fails", 60_000
)
CONNECTIONS_IDLE_MS = number(
    "tubemq.connections.idleMs", "milliseconds", 1000, "an idle connection is closed after this time", 180_000
)

CONNECTIONS_SHARED = flag(
    "tubemq.connections.shared",
    True,
    "whether the tasks of a worker process share connections. With false, each task opens and closes its own",
)
BROKER_ADDRESSES = Option(
    "tubemq.brokers.addresses",
    parse_broker_addresses,
    "brokerId=host:port[,brokerId=host:port…]",
    "addresses to use instead of those that the master lists, for brokers behind NAT, in containers or with forwarded "
    "ports",
)
ADMIN_ADDRESS = Option(
    "tubemq.admin.address",
    _addresses(WEB_PORT),
    "host:port[,host:port…]",
    f"the masters' HTTP API (`webPort` in master.ini), which `subscribePattern` needs. The default port is {WEB_PORT}. "
    "It is plain HTTP, also with TLS",
    shown_default=f"the hosts of `tubemq.master`, port {WEB_PORT}",
)
TLS_ENABLED = flag(
    "tubemq.tls.enabled",
    False,
    "whether to use TLS 1.2 or later to masters and brokers, which have separate ports for it",
)
TLS_CA = Option(
    "tubemq.tls.ca",
    not_blank,
    "the path of a PEM file",
    "the authorities to trust, on the driver and every executor; by default those that the system trusts",
)
TLS_CERT = Option(
    "tubemq.tls.cert",
    not_blank,
    "the path of a PEM file",
    "this client's certificate and its intermediate certificates, for servers that ask for one (two-way TLS)",
)
TLS_KEY = Option(
    "tubemq.tls.key",
    not_blank,
    "the path of a PEM file",
    "the private key of `tubemq.tls.cert`; it may be in the same file",
)
TLS_KEY_PASSWORD = Option(
    "tubemq.tls.keyPassword",
    str,
    "the key's password",
    "the password of `tubemq.tls.key`, if the key is encrypted",
    secret=True,
)
TLS_VERIFY_HOSTNAME = Option(
    "tubemq.tls.verifyHostname",
    boolean,
    "true or false",
    "whether a server's certificate must name the host that the client connects to. A trusted authority must have "
    "signed it in either case",
    shown_default="true",  # no real default, because `_tls` must know whether the option is set
)

CLIENT_OPTIONS = defined(vars())


@dataclass(frozen=True)
class ClientSettings:
    """Plain values, because they travel to the executors. Times are in seconds.

    `broker_addresses` replace those that a master lists. `framing=None` detects it, `tls=None` disables TLS.
    `master_reachable` means that a master has answered to these settings before, in any process: the first request to
    the masters is then retried as long as later ones. `timings` and `clock` are not options; tests replace them.
    """

    masters: tuple[Address, ...]
    credentials: Credentials | None = None
    rpc_timeout: float = RPC_TIMEOUT_MS.preset / 1000
    framing: Framing | None = None
    retry_for: float = RETRY_MAX_ELAPSED_MS.preset / 1000
    idle_for: float = CONNECTIONS_IDLE_MS.preset / 1000
    shared_connections: bool = CONNECTIONS_SHARED.preset
    broker_addresses: tuple[Broker, ...] = ()
    admin_addresses: tuple[Address, ...] = ()
    tls: TlsSettings | None = None
    master_reachable: bool = field(default=False, compare=False)
    timings: Timings = field(default_factory=lambda: DEFAULT_TIMINGS)
    clock: Clock = field(default_factory=lambda: SYSTEM_CLOCK)

    @property
    def default_broker_port(self) -> int:
        """The port of brokers that the master lists without one. With TLS it is 8124 in release 2.5 and 8123 in release
        1.2. The client cannot tell the releases apart and assumes 2.5 (wire: BrokerConfEntity).
        """
        return BROKER_PORT if self.tls is None else BROKER_TLS_PORT

    @classmethod
    def from_options(cls, raw: Mapping[str, str]) -> ClientSettings:
        if not any(name.lower().startswith("tubemq.") for name in raw):
            raise ConfigError(
                f"option '{MASTER.name}' is required: {MASTER.expects}. Spark passes no options of CREATE TABLE: "
                "give them where the table is used, as in FROM table WITH (…)"
            )
        framing = RPC_FRAMING.get(raw)
        tls = _tls(raw)
        masters = (MASTER if tls is None else replace(MASTER, parse=_addresses(MASTER_TLS_PORT))).get(raw)
        return cls(
            masters=masters,
            credentials=_credentials(raw),
            rpc_timeout=RPC_TIMEOUT_MS.get(raw) / 1000,
            framing=None if framing == "auto" else Framing(framing),
            retry_for=RETRY_MAX_ELAPSED_MS.get(raw) / 1000,
            idle_for=CONNECTIONS_IDLE_MS.get(raw) / 1000,
            shared_connections=CONNECTIONS_SHARED.get(raw),
            broker_addresses=BROKER_ADDRESSES.read(raw) or (),
            admin_addresses=ADMIN_ADDRESS.read(raw) or tuple(one._replace(port=WEB_PORT) for one in masters),
            tls=tls,
        )


def _credentials(raw: Mapping[str, str]) -> Credentials | None:
    user, password, file = USER.read(raw), PASSWORD.read(raw), PASSWORD_FILE.read(raw)
    if password is not None and file is not None:
        raise ConfigError("give option 'tubemq.password' or 'tubemq.passwordFile', not both")
    if user is None:
        if password is not None or file is not None:
            raise ConfigError("option 'tubemq.user' is required with a password")
        return None
    if file is not None:
        try:
            password = first_line(file)
        except (OSError, ValueError) as cause:
            raise ConfigError(f"option 'tubemq.passwordFile': {file} gives no password ({cause})") from None
    if not password:
        raise ConfigError("option 'tubemq.user' needs 'tubemq.password' or 'tubemq.passwordFile' beside it")
    return Credentials(user, password)


def first_line(path: str) -> str:
    """Return the first line of a file, without its end. Raise `OSError` or `ValueError`."""
    with open(path, encoding="utf-8") as file:
        line = file.readline(_MAX_SECRET + 1)
    if len(line) > _MAX_SECRET:
        raise ValueError("its first line is too long")
    if not line.strip():
        raise ValueError("its first line is empty")
    return line.splitlines()[0]


def _tls(raw: Mapping[str, str]) -> TlsSettings | None:
    others: tuple[Option[Any], ...] = (TLS_CA, TLS_CERT, TLS_KEY, TLS_KEY_PASSWORD, TLS_VERIFY_HOSTNAME)
    given = [option.name for option in others if option.read(raw) is not None]
    if not TLS_ENABLED.get(raw):
        if given:
            raise ConfigError(f"option '{given[0]}' needs TLS: set option 'tubemq.tls.enabled' to true, or remove it")
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
    tls_context(tls)  # reports a wrong file here, on the driver
    return tls
