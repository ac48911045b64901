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
from functools import cached_property
from pathlib import Path
from typing import Any

from tubemq_spark.cli.output import note
from tubemq_spark.cli.words import of_options, of_profile
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
_NAMES = {option.name.lower(): option.name for option in CLIENT_OPTIONS}
_SECRETS = {PASSWORD.name, TLS_KEY_PASSWORD.name}
_SECRET_FILES = {PASSWORD_FILE.name, TLS_KEY.name}


class Connection:
    """`options` are the `tubemq.*` options, as Spark takes them: they may be wrong or incomplete.

    `assignments` are options as `NAME=VALUE`, with or without `tubemq.`. Making a connection raises `ConfigError` for a
    wrong profile or assignment, and warns of secrets that others can read.
    """

    def __init__(
        self,
        master: str | None = None,
        config: Path | None = None,
        assignments: Sequence[str] | None = None,
        admin: str | None = None,
        token: str | None = None,
        token_file: Path | None = None,
        verbose: bool | None = None,
    ) -> None:
        config, self._left_out = (config, "") if config is not None else _default_profile()
        if verbose:
            note(self._left_out or f"the profile is {config}")
        profile, self._profile_admin = ({}, {}) if config is None else _load_profile(config)
        self._places = {name: f"{name.removeprefix('tubemq.')} in the profile {config}" for name in profile}
        assigned = _assigned(assignments or ())
        for name in assigned.keys() & _SECRETS:
            short = name.removeprefix("tubemq.")
            _warn_of_argument(f"-X {short}", "-X passwordFile" if name == PASSWORD.name else "a key without password")
        self.options = {RETRY_MAX_ELAPSED_MS.name: _RETRY_MS, **profile, **assigned}
        for name, value, flag, variable in (
            (MASTER.name, master, "--master", "TUBEMQ_MASTER"),
            (ADMIN_ADDRESS.name, admin, "--admin", "TUBEMQ_ADMIN"),
        ):
            if value is None and name not in assigned:  # a command without the flag
                value = os.environ.get(variable) or None
            if value is not None:
                self.options[name] = value
                self._places[name] = variable if os.environ.get(variable) == value else flag
        self._places |= {name: f"-X {name.removeprefix('tubemq.')}" for name in assigned if name in self._places}
        for name in _SECRET_FILES & self.options.keys():
            _warn_of_readers(Path(self.options[name]))
        self._token, self._token_file = token, token_file

    @cached_property
    def settings(self) -> ClientSettings:
        """The values of the options. Raise `ConfigError` for a missing master and for wrong options."""
        if MASTER.name not in self.options:
            raise ConfigError(
                "no master is named. Use --master HOST:PORT, the variable TUBEMQ_MASTER or the profile's master"
                + (f"; {self._left_out}" if self._left_out else "")
            )
        try:
            check_names(self.options, CLIENT_OPTIONS)
            return ClientSettings.from_options(self.options)
        except ConfigError as error:
            raise ConfigError(of_options(str(error), self._places)) from None

    @cached_property
    def admin(self) -> AdminApi:
        """The HTTP API, with the token if there is one. Raise `ConfigError` as `settings`, and for a wrong token."""
        token = self._token
        if token is None:
            token = self._stored_token()
        elif self._token_file is not None:
            raise ConfigError(f"give one token: --token (or {TOKEN_VARIABLE}) or --token-file, not both")
        elif token != os.environ.get(TOKEN_VARIABLE):
            _warn_of_argument("--token", f"{TOKEN_VARIABLE}, --token-file")
        return AdminApi(self.settings.admin_addresses, token)

    def _stored_token(self) -> str | None:
        """Return the token in the first line of a file, or the profile's; None without one."""
        file = self._token_file or self._profile_admin.get("tokenFile")
        if file is None:
            return self._profile_admin.get("token")
        try:
            token = first_line(str(file)).strip()
        except (OSError, ValueError) as error:
            raise ConfigError(f"the file {file} gives no token ({error})") from None
        _warn_of_readers(Path(file))
        return token


def _default_profile() -> tuple[Path | None, str]:
    """Return the default path of the profile, or None and why there is none that can be read.

    Nobody has asked for this file. So a user without a home folder, as in containers, or with that of another user
    goes on without it.
    """
    try:
        folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        path = folder / "tubemq-spark" / "config.toml"
    except RuntimeError:
        return None, "no profile is read, because HOME is not set, and the system knows no home folder of this user"
    try:
        path.open("rb").close()
    except (FileNotFoundError, NotADirectoryError):
        return None, f"there is no profile {path}"
    except OSError as error:
        return None, f"the profile {path} is left out, because it cannot be read: {error.strerror}"
    return path, ""


def _load_profile(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return the options and the table `[admin]` of the profile at `path`.

    Raise `ConfigError` if the file cannot be read, is not TOML, or has unknown keys.
    """
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MAX_PROFILE + 1)
        if len(text) > _MAX_PROFILE:
            raise ConfigError("it is too long")
        content = tomllib.loads(text)
        table = content.pop("admin", {})
        if not isinstance(table, dict):
            raise ConfigError("admin is a table: write [admin], and below it address = …")
        admin, options = dict(_options(table, "")), dict(_options(content, "tubemq."))
        if unknown := sorted(set(admin) - set(_ADMIN_KEYS)):
            raise ConfigError(f"the table [admin] takes {', '.join(_ADMIN_KEYS)} only, not {', '.join(unknown)}")
        if "address" in admin:
            options[ADMIN_ADDRESS.name] = admin["address"]
        check_names(options, CLIENT_OPTIONS)
    except OSError as error:
        raise ConfigError(f"the profile {path} cannot be read: {error.strerror}. Check --config") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the profile {path} is not TOML: {error}") from None
    except ConfigError as error:
        raise ConfigError(f"the profile {path}: {of_profile(str(error))}") from None
    if options.keys() & _SECRETS or "token" in admin:
        _warn_of_readers(path)
    return options, admin


def _options(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _options(value, f"{prefix}{key}.")
        elif not isinstance(value, str | int | float):
            name = f"{prefix}{key}".removeprefix("tubemq.")
            raise ConfigError(f"{name} is a {type(value).__name__}; expected a text, a number, true or false")
        else:
            yield _full_name(prefix + key), str(value).lower() if isinstance(value, bool) else str(value)


def _assigned(assignments: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in assignments:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise ConfigError("-X takes NAME=VALUE, for example -X user=alice")  # what was given may be a secret
        name = name.strip()
        full = name if name.lower().startswith("tubemq.") else f"tubemq.{name}"
        found[_full_name(full)] = value
    return found


def _full_name(name: str) -> str:
    """Return the name of an option as it is defined, whatever its case is here; other names as they are."""
    return _NAMES.get(name.lower(), name)


def _warn_of_argument(name: str, others: str) -> None:
    note(f"warning: all users of this machine can see {name} in its list of processes. Use {others} or the profile")


def _warn_of_readers(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # reading it says what is wrong
        return
    if mode & stat.S_IROTH and not stat.S_ISDIR(mode):  # reading a folder says that it is one
        note(f"warning: all users of this machine can read {path}, which holds a secret. Run: chmod 600 {path}")
