# SPDX-License-Identifier: Apache-2.0
"""Options that many commands share, and the decorator that adds the options of the connection to a command."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from tubemq_spark.cli.connection import TOKEN_VARIABLE, Connection
from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.constants import MASTER_PORT, MASTER_TLS_PORT, WEB_PORT
from tubemq_spark.source import option_parsers

_PANEL = "Connection"

Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def check_topic(name: str | None) -> str | None:
    """Return `name`; raise `ConfigError` for a name that no topic can have."""
    try:
        if name is not None and option_parsers.topics(name) != (name,):
            raise ValueError
    except ValueError:
        raise ConfigError(f"{name!r} is not the name of a topic") from None
    return name


def check_topics(names: list[str] | None) -> list[str] | None:
    """Return `names`; raise `ConfigError` for one that no topic can have."""
    for name in names or ():
        check_topic(name)
    return names


def check_group(name: str | None) -> str | None:
    """Return `name`; raise `ConfigError` for a name that no consumer group should have."""
    try:
        return None if name is None else option_parsers.group(name)
    except ValueError:
        raise ConfigError(f"{name!r} is not {option_parsers.GROUP_NAME}") from None


Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The name of the topic.", show_default=False, callback=check_topic)
]
OnlyTopic = Annotated[
    str | None,
    typer.Option("--topic", metavar="TOPIC", help="Only this topic.", show_default="all topics", callback=check_topic),
]
Group = Annotated[
    str,
    typer.Argument(metavar="GROUP", help="The name of the consumer group.", show_default=False, callback=check_group),
]

_CONNECTION = {
    "master": Annotated[
        str | None,
        typer.Option(
            "--master", "-m", envvar="TUBEMQ_MASTER", metavar="HOST:PORT", rich_help_panel=_PANEL, show_default=False,
            help="The masters: HOST:PORT, several separated by commas. The default port is "
            f"{MASTER_PORT}, or {MASTER_TLS_PORT} with TLS.",
        ),
    ],
    "config": Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", metavar="FILE", envvar="TUBEMQ_CONFIG", rich_help_panel=_PANEL, show_default=False,
            help="The profile: a TOML file with master, credentials and TLS. Default: tubemq-spark/config.toml in the "
            "folder ~/.config, if it can be read.",
        ),
    ],
    "assignments": Annotated[
        list[str] | None,
        typer.Option(
            "--set", "-X", metavar="NAME=VALUE", rich_help_panel=_PANEL, show_default=False,
            help="An option of the connection, as in Spark but without tubemq.: -X user=alice -X passwordFile=/run/pw. "
            "May be repeated. All users of this machine can read a -X password=… in the list of processes.",
        ),
    ],
    "verbose": Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", rich_help_panel=_PANEL, show_default=False,
            help="Say which profile is read, or why none is.",
        ),
    ],
}  # fmt: skip
_DEFAULTS = {"verbose": False}
_ADMIN = {
    "admin": Annotated[
        str | None,
        typer.Option(
            "--admin", envvar="TUBEMQ_ADMIN", metavar="HOST:PORT", rich_help_panel=_PANEL, show_default=False,
            help=f"The HTTP API of the masters (webPort in master.ini). Default: the masters' hosts, port {WEB_PORT}.",
        ),
    ],
}  # fmt: skip
_TOKEN = {
    "token": Annotated[
        str | None,
        typer.Option(
            "--token", metavar="TOKEN", envvar=TOKEN_VARIABLE, rich_help_panel=_PANEL, show_default=False,
            help="The token of the HTTP API for changes (confModAuthToken in master.ini). All users of this machine "
            "can read it in the list of processes, so prefer the variable, --token-file or the profile. Without any, "
            "a terminal asks for it. This API is plain HTTP, also with TLS.",
        ),
    ],
    "token_file": Annotated[
        Path | None,
        typer.Option(
            "--token-file", metavar="FILE", rich_help_panel=_PANEL, show_default=False,
            help="A file with the token in its first line.",
        ),
    ],
}  # fmt: skip


def connected(*, admin: bool = False, token: bool = False) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator for a command whose first parameter is a `Connection`; its other parameters are its options.

    With `admin` the command also has the option of the HTTP API's address, with `token` both of the API's.
    """
    extra = {**_CONNECTION, **(_ADMIN if admin or token else {}), **(_TOKEN if token else {})}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        # Not `get_type_hints`: before Python 3.11 it hides the annotation of a parameter whose default is None.
        parameters = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
        parameters += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_DEFAULTS.get(name), annotation=annotation)
            for name, annotation in extra.items()
        ]

        @functools.wraps(command)
        def run(**given: Any) -> None:
            connection = Connection(**{name: given.pop(name) for name in extra})
            if token and connection.admin.token is None and sys.stdin is not None and sys.stdin.isatty():
                typed = typer.prompt("Administration token (confModAuthToken in master.ini)", hide_input=True, err=True)
                connection.admin = replace(connection.admin, token=typed)
            command(connection, **given)

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate
