# SPDX-License-Identifier: Apache-2.0
"""The connection of a command: client settings and HTTP API, from the command line, the environment and the profile.

The command line wins over the environment, and that over the profile: a TOML file whose keys are the names of the
connection's options without `tubemq.`. Its table `[tls]` holds `tubemq.tls.…`, and so on; the table `[admin]` also has
the `token` or `tokenFile` of the master's HTTP API.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tubemq_spark.cli.output import note
from tubemq_spark.client.admin_api import AdminApi
from tubemq_spark.client.settings import (
    ADMIN_ADDRESS,
    CLIENT_OPTIONS,
    MASTER,
    PASSWORD,
    PASSWORD_FILE,
    RETRY_MAX_ELAPSED_MS,
    TLS_KEY,
    TLS_KEY_PASSWORD,
    ClientSettings,
    first_line,
)
from tubemq_spark.errors import ConfigError
from tubemq_spark.option_definition import check_names

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TOKEN_VARIABLE = "TUBEMQ_ADMIN_TOKEN"  # a name, not a token
_RETRY_MS = "10000"  # a person waits less long than a query
_MAX_PROFILE = 1 << 20  # characters
_ADMIN_KEYS = ("address", "token", "tokenFile")
_SECRETS = (PASSWORD.name, TLS_KEY_PASSWORD.name)
_SECRET_FILES = (PASSWORD_FILE.name, TLS_KEY.name)


@dataclass(frozen=True)
class Profile:
    """`options` are `tubemq.*` options; `admin` is the table of the master's HTTP API."""

    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    admin: Mapping[str, str] = field(default_factory=dict, repr=False)


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
    token_file: Path | None = None,
) -> Connection:
    """Return the connection. `assignments` are further options as `NAME=VALUE`, with or without `tubemq.`.

    Raise `ConfigError` for a missing master and for wrong options. Warn of secrets that others can read.
    """
    profile = load_profile(config)
    options = client_options(master, profile, assignments)
    if admin is not None:
        options[ADMIN_ADDRESS.name] = admin
    if MASTER.name not in options:
        raise ConfigError(
            "no master is named. Use --master HOST:PORT, the variable TUBEMQ_MASTER or the profile's master"
        )
    check_names(options, CLIENT_OPTIONS)
    settings = ClientSettings.from_options(options)
    file = None if token_file is None else str(token_file)
    if token is None:
        token = _token(profile.admin, file)
    elif file is not None:
        raise ConfigError(f"give one token: --token (or {TOKEN_VARIABLE}) or --token-file, not both")
    elif token != os.environ.get(TOKEN_VARIABLE):
        _warn_of_argument("--token", f"{TOKEN_VARIABLE}, --token-file")
    return Connection(options, settings, AdminApi(settings.admin_addresses, token))


def client_options(master: str | None, profile: Profile, assignments: Sequence[str]) -> dict[str, str]:
    """Return the `tubemq.*` options, which may be wrong or incomplete. Warn of secrets that others can read."""
    assigned = _assigned(assignments)
    for name in assigned.keys() & _SECRETS:
        short = name.removeprefix("tubemq.")
        _warn_of_argument(f"-X {short}", "-X passwordFile" if name == PASSWORD.name else "a key without password")
    options = {RETRY_MAX_ELAPSED_MS.name: _RETRY_MS, **profile.options, **assigned}
    for name in _SECRET_FILES:
        if name in options:
            _warn_of_readers(Path(options[name]))
    return options if master is None else {**options, MASTER.name: master}


def load_profile(path: Path | None) -> Profile:
    """Return the profile at `path`, or at the default path if a file is there, or an empty one.

    Raise `ConfigError` if a file that was named does not exist, is not TOML, or has unknown keys.
    """
    found = path or _default_path()
    if found is None:
        return Profile()
    try:
        with found.open(encoding="utf-8") as file:
            text = file.read(_MAX_PROFILE + 1)
        if len(text) > _MAX_PROFILE:
            raise ConfigError("it is too long")
        content = tomllib.loads(text)
        admin = content.pop("admin", {})
        if not isinstance(admin, dict):
            raise ConfigError("admin is a table: write [admin], and below it address = …")
        if unknown := sorted(set(admin) - set(_ADMIN_KEYS)):
            raise ConfigError(f"the table [admin] takes {', '.join(_ADMIN_KEYS)} only, not {', '.join(unknown)}")
        table = dict(_options(admin, ""))
        given = {ADMIN_ADDRESS.name: table["address"]} if "address" in table else {}
        profile = Profile({**dict(_options(content, "tubemq.")), **given}, table)
        check_names(profile.options, CLIENT_OPTIONS)
    except OSError as error:
        raise ConfigError(f"the profile {found} cannot be read: {error.strerror}. Check --config") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the profile {found} is not TOML: {error}") from None
    except ConfigError as error:
        raise ConfigError(f"the profile {found}: {error}") from None
    if profile.options.keys() & _SECRETS or "token" in admin:
        _warn_of_readers(found)
    return profile


def _default_path() -> Path | None:
    """Return the path of the file in the user's folder for configuration, None if there is none."""
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    path = folder / "tubemq-spark" / "config.toml"
    return path if path.exists() else None


def _options(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _options(value, f"{prefix}{key}.")
        elif not isinstance(value, str | int | float):
            raise ConfigError(f"{prefix}{key} is a {type(value).__name__}; expected a text, a number, true or false")
        else:
            yield prefix + key, str(value).lower() if isinstance(value, bool) else str(value)


def _assigned(assignments: Sequence[str]) -> dict[str, str]:
    known = {option.name.lower(): option.name for option in CLIENT_OPTIONS}
    found = {}
    for text in assignments:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise ConfigError("-X takes NAME=VALUE, for example -X user=alice")  # what was given may be a secret
        name = name.strip()
        full = name if name.lower().startswith("tubemq.") else f"tubemq.{name}"
        found[known.get(full.lower(), full)] = value
    return found


def _token(admin: Mapping[str, str], file: str | None) -> str | None:
    """Return the token in the first line of a file, or the profile's; None without one."""
    file = file or admin.get("tokenFile")
    if file is None:
        return admin.get("token")
    try:
        token = first_line(file).strip()
    except (OSError, ValueError, IndexError) as error:
        raise ConfigError(f"the file {file} gives no token ({error})") from None
    _warn_of_readers(Path(file))
    return token


def _warn_of_argument(name: str, others: str) -> None:
    note(f"warning: all users of this machine can see {name} in its list of processes. Use {others} or the profile")


def _warn_of_readers(path: Path) -> None:
    try:
        is_open = bool(path.stat().st_mode & stat.S_IROTH)
    except (OSError, ValueError):  # reading it says what is wrong
        return
    if is_open:
        note(f"warning: all users of this machine can read {path}, which holds a secret. Run: chmod 600 {path}")
