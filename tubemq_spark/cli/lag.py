# SPDX-License-Identifier: Apache-2.0
"""`tubemq-spark lag`: how far a group is behind, once or live."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Annotated

import typer
from rich.console import Console
from rich.console import Group as Stack
from rich.live import Live
from rich.text import Text

from tubemq_spark.cli.connection import Connection
from tubemq_spark.cli.groups import GroupState, group_states, total_lag
from tubemq_spark.cli.output import console, print_json, print_table, table
from tubemq_spark.cli.parameters import Group, Json, connected, ends_with_interrupt

_BARS = "▁▂▃▄▅▆▇█"
_HISTORY = 60  # values of the sparkline
_COLUMNS = ("partition", "position", "end", "lag", "client")


@connected(admin=True)
def lag(
    connection: Connection,
    group: Group,
    topic: Annotated[str | None, typer.Option("--topic", help="Only this topic.", show_default="all topics")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show the lag again and again until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option("--interval", min=0.1, help="Seconds between two looks at it.")] = 2.0,
    as_json: Json = False,
) -> None:
    """Show how far a group is behind in each partition, and which client reads there. Nothing moves.

    The lag counts index entries. Partitions of one store share its entries, so it is the most messages that are left.
    """
    if not watch:
        states = group_states(connection.admin, group, topic)
        if as_json:
            print_json(*(state.as_json() for state in states))
        else:
            print_table(_COLUMNS, _rows(states))
            print(f"total lag {total_lag(states)}")
        return
    with ends_with_interrupt():
        _watch(connection, group, topic, interval, as_json)


def _watch(connection: Connection, group: str, topic: str | None, interval: float, as_json: bool) -> None:
    out = console()
    history: deque[int] = deque(maxlen=_HISTORY)
    live = Live(console=Console(), auto_refresh=False) if out.is_terminal and not as_json else None
    states = group_states(connection.admin, group, topic)
    if live is not None:
        live.start()
    try:
        while True:
            history.append(total_lag(states))
            if live is not None:
                title = Text.assemble(f"group {group}: lag {history[-1]}  ", (sparkline(history), "cyan"))
                live.update(Stack(title, table(_COLUMNS, _rows(states))), refresh=True)
            elif as_json:
                partitions = [state.as_json() for state in states]
                print_json({"time": _now(), "group": group, "lag": history[-1], "partitions": partitions})
            else:
                print(f"{_now()} group {group}: lag {history[-1]}", flush=True)
            time.sleep(interval)
            states = group_states(connection.admin, group, topic)
    finally:
        if live is not None:
            live.stop()


def _rows(states: Sequence[GroupState]) -> list[tuple[object, ...]]:
    return [(str(one.partition), one.position, one.end, one.lag, one.holder) for one in states]


def sparkline(values: Sequence[int]) -> str:
    """Return one bar for each value; the highest has the full height."""
    most = max(values, default=0) or 1
    return "".join(_BARS[round((len(_BARS) - 1) * value / most)] for value in values)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
