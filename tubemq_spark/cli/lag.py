# SPDX-License-Identifier: Apache-2.0
"""`tubemq-spark lag`: how far a group is behind, once or live, as the brokers' HTTP APIs report it.

wire: BrokerAdminServlet. `admin_query_offset` lists the groups that have a record; release 2.1 and later list a new one
after some seconds. `admin_query_broker_all_consumer_info` lists the clients that hold partitions.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Annotated

import typer
from rich.console import Console
from rich.console import Group as Stack
from rich.live import Live
from rich.text import Text

from tubemq_spark.cli.connection import Connection
from tubemq_spark.cli.moments import place_of
from tubemq_spark.cli.output import console, is_wide_terminal, note, print_json, print_line, print_table
from tubemq_spark.cli.parameters import Group, Json, OnlyTopic, connected
from tubemq_spark.cli.tables import fitted, whole
from tubemq_spark.cli.topics import existing
from tubemq_spark.client.admin_api import AdminApi, AdminError, Answer, checked_rows, joined, rows_of
from tubemq_spark.client.consumer.working_group import own_groups
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.constants import NO_POSITION
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.similar_names import near, proposal

_SIMILAR = 0.75  # ratio: names of groups often begin alike
_BARS = "▁▂▃▄▅▆▇█"
_HISTORY = 60  # values of the sparkline
_SPARE = ("end", "position", "client")  # the lag is their difference
_FOOTNOTE = (
    "* Partitions with the same mark share a store. The lag of each counts all entries of the store; the total counts "
    "them once."
)

Brokers = Mapping[int, Answer]
"""The run status of all brokers, by id."""


@dataclass(frozen=True)
class GroupState:
    """A group in one partition. `position` is None without a record; positions are bytes of the index.

    `lag` counts the entries of the store behind the position. Partitions of one store share its entries, so it is the
    most messages that the group can lack. It is None without a position, unless the store is empty.
    """

    partition: Partition
    position: int | None
    end: int
    holder: str | None = None

    @property
    def lag(self) -> int | None:
        if self.position is None:
            return None if self.end else 0
        return max(0, self.end - self.position) // UNIT

    def as_json(self) -> dict[str, object]:
        values = {"position": self.position, "end": self.end, "lag": self.lag, "holder": self.holder}
        return {**place_of(self.partition), "store_id": self.partition.store_id, **values}


def states_by_group(
    admin: AdminApi,
    brokers: Brokers,
    group: str | None = None,
    topic: str | None = None,
    *,
    problems: list[str] | None = None,
) -> dict[str, list[GroupState]]:
    """Return the states of all groups, or of one, in each partition of the topics that they have read, or of one topic.
    `brokers` is the answer of `AdminApi.brokers`. Why brokers may know more groups is added to `problems`.

    Raises as `AdminApi`, and `ConfigError` for an unknown topic.
    """
    problems = [] if problems is None else problems
    found: defaultdict[str, dict[Partition, GroupState]] = defaultdict(dict)
    which = {} if group is None else {"groupName": group}
    for broker_id, status in sorted(brokers.items()):
        if _is_down(status):
            problems.append(f"broker {broker_id} is down")
            continue
        claims = rows_of(admin.ask_broker(status, "admin_query_broker_all_consumer_info", **which))
        try:
            positions = rows_of(admin.ask_broker(status, "admin_query_offset", **which))
        except AdminError as error:  # release 1.2 fails for some groups; the claims show something at least
            problems.append(str(error))
            positions = []
        with checked_rows():
            for row in claims:
                one = Partition(broker_id, str(row["topicName"]), int(row["partitionId"]))
                confirmed = row.get("zkOffset")
                position = None if confirmed is None else int(confirmed)
                end, client = max(0, int(row.get("maxOffset", 0))), str(row["consumerId"])
                found[str(row["groupName"])][one] = GroupState(one, position, end, client)
            for name, info in ((str(row["groupName"]), info) for row in positions for info in row["subInfo"]):
                for at in info["offsets"]:
                    one = Partition(broker_id, str(info["topicName"]), int(at["partitionId"]))
                    position = None if at["curOffset"] == NO_POSITION else int(at["curOffset"])
                    holder = found[name][one].holder if one in found[name] else None
                    found[name][one] = GroupState(one, position, max(0, int(at["offsetMax"])), holder)
    known = {name: wanted for name, states in found.items() if (wanted := _of_known_topics(states.values(), topic))}
    if topic is not None and not known:
        existing(admin, topic)
    return known


def near_groups(admin: AdminApi, brokers: Brokers, group: str) -> list[str]:
    """Return the users' groups that `group` may stand for. Raises as `AdminApi`."""
    known = states_by_group(admin, brokers)
    return near(group, sorted(known.keys() - own_groups(known).keys() - {group}), _SIMILAR)


def missing(brokers: Brokers) -> str:
    """Return a warning of brokers that are down, because `states_by_group` lacks their partitions."""
    down = sorted(broker_id for broker_id, status in brokers.items() if _is_down(status))
    return f"warning: broker {joined(down)} is down, and its partitions are missing here" if down else ""


def _beyond_the_end(states: Iterable[GroupState]) -> str:
    """Return a warning of positions that no message can have, where the lag of 0 would look as if all were read."""
    # A client that reads may have moved the group after the broker looked for the end. An end of 0 may also be that of
    # a topic that was removed.
    beyond = [str(one.partition) for one in states if one.position and not one.holder and 0 < one.end < one.position]
    if not beyond:
        return ""
    return (
        f"warning: the group stands beyond the end of {', '.join(beyond)}: a broker lost messages, or the topic was "
        "created anew"
    )


def _is_down(status: Answer) -> bool:
    return str(status.get("isBrokerOnline")) == "false" and str(status.get("runStatus")) != "running"


def _of_known_topics(states: Iterable[GroupState], topic: str | None) -> list[GroupState]:
    wanted = [state for state in states if topic in (None, state.partition.topic)]
    known = {state.partition.topic for state in wanted if state.position is not None or state.holder}
    return sorted((state for state in wanted if state.partition.topic in known), key=lambda state: state.partition)


def total_lag(states: Iterable[GroupState]) -> int:
    """Return how many entries the group has not read, as far as it has positions; those of a store that several
    partitions share count once."""
    stores: defaultdict[object, int] = defaultdict(int)
    for state in states:
        stores[state.partition.store] = max(stores[state.partition.store], state.lag or 0)
    return sum(stores.values())


def _lag_text(states: Sequence[GroupState]) -> str:
    count = sum(one.lag is None for one in states)
    more = f", and the messages of {count} partitions without a position" if count else ""
    return f"lag {total_lag(states)}{more}"


@connected(admin=True)
def lag(
    connection: Connection,
    group: Group,
    topic: OnlyTopic = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show the lag again and again until Ctrl-C.")] = False,
    interval: Annotated[
        float,
        typer.Option("--interval", metavar="SECONDS", min=0.1, max=86_400, help="Seconds between two looks at it."),
    ] = 2.0,
    as_json: Json = False,
) -> None:
    """Show how far a group is behind in each partition, and which client reads there. Nothing moves.

    The lag counts index entries. Partitions of one store share its entries, so it is the most messages that are left.
    Such partitions have the same mark, and the total counts their store once. Uses the HTTP APIs of master and brokers.
    """
    if not watch:
        states, warning = _look(connection.admin, group, topic)
        if warning:
            note(warning)
        if as_json:
            print_json(*(state.as_json() for state in states))
        else:
            columns, rows, footnote = _shown(states)
            print_table(columns, rows, _SPARE)
            print_line(f"total {_lag_text(states)}")
            if footnote:
                print_line(footnote)
        return
    with suppress(KeyboardInterrupt):
        _watch(connection, group, topic, interval, as_json)


def _watch(connection: Connection, group: str, topic: str | None, interval: float, as_json: bool) -> None:
    history: deque[int] = deque(maxlen=_HISTORY)
    told = ""
    states, warning = _look(connection.admin, group, topic)
    is_live = is_wide_terminal(console()) and not as_json
    with Live(console=Console(), auto_refresh=False) if is_live else nullcontext() as live:
        while True:
            history.append(total_lag(states))
            if warning and warning != told and live is None:
                note(warning)
            told = warning
            if live is not None:
                title = Text.assemble(f"group {group}: {_lag_text(states)}  ", (sparkline(history), "cyan"))
                columns, rows, footnote = _shown(states)
                below = [Text(footnote, "dim")] if footnote else []
                below += [Text(warning, "yellow")] if warning else []
                made = fitted(columns, rows, live.console.width, _SPARE)
                below += [Text(made.note, "dim")] if made is not None and made.note else []
                shown = whole(columns, rows) if made is None else made.table
                live.update(Stack(title, shown, *below), refresh=True)
            elif as_json:
                partitions = [state.as_json() for state in states]
                print_json({"time": _now(), "group": group, "lag": history[-1], "partitions": partitions})
            else:
                print_line(f"{_now()} group {group}: {_lag_text(states)}")
            problem = ""
            while True:
                time.sleep(interval)
                try:
                    states, warning = _look(connection.admin, group, topic)
                    break
                except (TransportError, AdminError) as error:  # a server may be restarting
                    if problem != str(error):
                        problem = str(error)
                        note(problem)


def _look(admin: AdminApi, group: str, topic: str | None) -> tuple[list[GroupState], str]:
    """Return the states of one group, and warnings. Raise `AdminError` if no broker knows it, else as `AdminApi`."""
    brokers = admin.brokers()
    warning = missing(brokers)
    try:
        states = states_by_group(admin, brokers, group, topic).get(group)
        if states is None:
            what = "" if topic is None else f" in topic {topic}"
            proposed = proposal(near_groups(admin, brokers, group))
            raise AdminError(
                f"no broker has a position of group {group}{what}{proposed or '. Check the name.'} A new group appears "
                "after some seconds, and an unused one is dropped after weeks"
            )
    except (AdminError, TransportError) as error:
        raise type(error)(f"{error}. {warning}" if warning else str(error)) from None
    return states, "; ".join(filter(None, (warning, _beyond_the_end(states))))


def _shown(states: Sequence[GroupState]) -> tuple[Sequence[str], list[tuple[object, ...]], str]:
    """Return columns, rows and a footnote, which is empty if no partitions share a store."""
    counts = Counter(one.partition.store for one in states)
    shared = [store for store, count in counts.items() if count > 1]
    marks = {store: f"*{number}" if len(shared) > 1 else "*" for number, store in enumerate(shared, 1)}
    columns, rows = ["partition", "position", "end", "lag"], []
    for one in states:
        mark = (marks.get(one.partition.store, ""),) if shared else ()
        rows.append((str(one.partition), one.position, one.end, one.lag, *mark, one.holder))
    return [*columns, *([""] if shared else []), "client"], rows, _FOOTNOTE if shared else ""


def sparkline(values: Sequence[int]) -> str:
    """Return one bar for each value; the highest has the full height."""
    most = max(values, default=0) or 1
    return "".join(_BARS[round((len(_BARS) - 1) * value / most)] for value in values)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")
