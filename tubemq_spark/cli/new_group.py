# SPDX-License-Identifier: Apache-2.0
"""Whether a group exists, for commands that would create it: a mistyped name must not become a group in silence.

A broker creates a group when a client first reads in it. Only the brokers' HTTP APIs tell which groups there are.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Annotated

import typer

from tubemq_spark.cli.connection import Connection
from tubemq_spark.cli.lag import near_groups, states_by_group
from tubemq_spark.cli.output import confirm, note
from tubemq_spark.client.admin_api import AdminApi
from tubemq_spark.client.retries import Deadline
from tubemq_spark.errors import ConfigError, TubeMQError
from tubemq_spark.similar_names import proposal

_LOOK = 5.0  # seconds to look for the group

Create = Annotated[bool, typer.Option("--create", help="Create the group if no broker knows it.")]


def is_new(connection: Connection, group: str, *, create: bool, yes: bool, err: bool = False) -> bool:
    """Return True if no broker knows `group`, and the user wants to create it: says so with `create`, or if asked.

    Raise `ConfigError` for a group that is not to be created; with `yes` nobody is asked. Where brokers do not tell
    which groups they have, note that, and return False. `err`: the question goes to the standard error.
    """
    try:
        near = _unless_known(replace(connection.admin, deadline=Deadline(_LOOK)), group)
    except TubeMQError as error:
        if not create:
            note(f"it is not known whether there is a group {group}, because {error}")
        return False
    if near is None or create:
        return near is not None
    unknown = f"no broker knows group {group}{proposal(near) or '.'}"
    if yes:
        raise ConfigError(
            f"{unknown} For a new group give --create. Brokers show a group some seconds after its first use, and drop "
            "it when it was unused for weeks"
        )
    note(unknown)
    confirm(f"Create group {group}?", err=err, flag="--create")
    return True


def propose(admin: AdminApi, group: str) -> None:
    """Note which other groups the user may mean. A group that has not read yet is unknown to brokers."""
    with suppress(TubeMQError):  # of a broker, which the caller does not need
        if near := _unless_known(replace(admin, deadline=Deadline(_LOOK)), group):
            note(f"no broker knows group {group}{proposal(near)}")


def _unless_known(admin: AdminApi, group: str) -> list[str] | None:
    """Return None if a broker knows the group, else similar names. Raise `TubeMQError` if that cannot be told."""
    brokers = admin.brokers()
    problems: list[str] = []
    if group in states_by_group(admin, brokers, group, problems=problems):
        return None
    if problems:
        raise TubeMQError(problems[0])
    return near_groups(admin, brokers, group)
