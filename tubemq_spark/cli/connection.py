# SPDX-License-Identifier: Apache-2.0
"""The connection of a command: client settings and HTTP API, from the command line, the environment and the profile.

The command line wins over the environment, and that over the profile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tubemq_spark.cli.admin import AdminApi
from tubemq_spark.cli.profile import Profile, load_profile
from tubemq_spark.client.settings import CLIENT_OPTIONS, MASTER, RETRY_MAX_ELAPSED_MS, ClientSettings
from tubemq_spark.errors import ConfigError
from tubemq_spark.option_definition import check_names
from tubemq_spark.protocol.constants import WEB_PORT
from tubemq_spark.protocol.metadata import Address, parse_master_addresses

_RETRY_MS = "10000"  # a person waits less long than a query


@dataclass(frozen=True)
class Connection:
    """`options` are the `tubemq.*` options, as Spark takes them; `settings` are their values."""

    options: Mapping[str, str]
    settings: ClientSettings
    admin: AdminApi


def connect(
    master: str | None = None,
    config: Path | None = None,
    assignments: Sequence[str] = (),
    admin: str | None = None,
    token: str | None = None,
) -> Connection:
    """Return the connection. `assignments` are further options as `NAME=VALUE`, with or without `tubemq.`.

    Raise `ConfigError` for a missing master and for wrong options.
    """
    profile = load_profile(config)
    options = client_options(master, profile, assignments)
    if MASTER.name not in options:
        raise ConfigError(
            "no master is named. Use --master HOST:PORT, the variable TUBEMQ_MASTER or the profile's master"
        )
    check_names(options, CLIENT_OPTIONS)
    settings = ClientSettings.from_options(options)
    web = _web_addresses(admin or profile.admin, settings.masters)
    return Connection(options, settings, AdminApi(web, token or profile.token))


def client_options(master: str | None, profile: Profile, assignments: Sequence[str]) -> dict[str, str]:
    """Return the `tubemq.*` options, which may be wrong or incomplete."""
    options = {RETRY_MAX_ELAPSED_MS.name: _RETRY_MS, **profile.options, **_assigned(assignments)}
    return options if master is None else {**options, MASTER.name: master}


def _assigned(assignments: Sequence[str]) -> dict[str, str]:
    known = {option.name.lower(): option.name for option in CLIENT_OPTIONS}
    found = {}
    for text in assignments:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise ConfigError(f"-X {text!r} is not NAME=VALUE, for example -X user=alice")
        name = name.strip()
        full = name if name.lower().startswith("tubemq.") else f"tubemq.{name}"
        found[known.get(full.lower(), full)] = value
    return found


def _web_addresses(text: str | None, masters: Sequence[Address]) -> tuple[Address, ...]:
    if text is None:
        return tuple(address._replace(port=WEB_PORT) for address in masters)
    try:
        addresses = parse_master_addresses(text)
    except ValueError as error:
        raise ConfigError(f"--admin is {text!r}; expected HOST:PORT[,HOST:PORT…] ({error})") from None
    return tuple(
        address if ":" in part else address._replace(port=WEB_PORT)
        for address, part in zip(addresses, text.split(","), strict=True)
    )
