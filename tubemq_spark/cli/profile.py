# SPDX-License-Identifier: Apache-2.0
"""The profile: a TOML file with the master, credentials and TLS settings for all commands.

Keys are the names of the connection's options without `tubemq.`; a table `[tls]` holds `tubemq.tls.…`, and so on. The
table `[admin]` has the `address` and the `token` of the master's HTTP API.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tubemq_spark.client.settings import CLIENT_OPTIONS
from tubemq_spark.errors import ConfigError
from tubemq_spark.option_definition import check_names

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_ADMIN_KEYS = ("address", "token")


@dataclass(frozen=True)
class Profile:
    """`options` are `tubemq.*` options; `admin` and `token` belong to the master's HTTP API."""

    options: Mapping[str, str] = field(default_factory=dict)
    admin: str | None = None
    token: str | None = field(default=None, repr=False)


def load_profile(path: Path | None) -> Profile:
    """Return the profile at `path`, or at the default path if a file is there, or an empty one.

    Raise `ConfigError` if a file that was named does not exist, is not TOML, or has unknown keys.
    """
    found = path or _default_path()
    if found is None:
        return Profile()
    try:
        content = tomllib.loads(found.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the profile {found} cannot be read: {error.strerror}. Check --config") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the profile {found} is not TOML: {error}") from None
    admin = content.pop("admin", {})
    if not isinstance(admin, dict) or (unknown := sorted(set(admin) - set(_ADMIN_KEYS))):
        names = ", ".join(_ADMIN_KEYS)
        raise ConfigError(f"the profile {found}: the table [admin] takes {names} only, not {', '.join(unknown)}")
    options = dict(_options(content, "tubemq."))
    try:
        check_names(options, CLIENT_OPTIONS)
    except ConfigError as error:
        raise ConfigError(f"the profile {found}: {error}") from None
    return Profile(options, *(str(admin[key]) if key in admin else None for key in _ADMIN_KEYS))


def _default_path() -> Path | None:
    """Return the path of the file in the user's folder for configuration, None if there is none."""
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    path = folder / "tubemq-spark" / "config.toml"
    return path if path.exists() else None


def _options(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _options(value, f"{prefix}{key}.")
        else:
            yield prefix + key, str(value).lower() if isinstance(value, bool) else str(value)
