# SPDX-License-Identifier: Apache-2.0
"""Tells a schedule that breaks a promise as a story: who did what, when, in ten to thirty lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tests.simulation.choices import Choices, flat, shape
from tests.simulation.families import play
from tests.simulation.schedule import Breach, Exchange, Setting
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.envelope import Response
from tubemq_spark.testing.dispatch import REPLIES, REQUESTS

_LINES = 30
_REQUESTS = 10  # around the breach
_TOLD = frozenset({"brokers", "masters", "partitions", "stores", "interval"})
_UNTOLD = ("weather.", "unrest.", "config.", "options.", "horizon", "knobs")
_HELD = 0.1  # seconds; a shorter way to the server is usual


class Event(NamedTuple):
    at: float
    who: str
    what: str


def tell(family: str, seed: int, choices: Choices | None, wanted: Breach | None = None) -> str:
    """Play the schedule once more, and return its story up to the breach `wanted`, the first one by default."""
    played = play(family, seed, choices, records=True)
    schedule = played.schedule
    used = choices or Choices(schedule.world.decisions)
    breach = next((one for one in played.breaches if wanted is None or same(one, wanted)), None)
    if breach is None and wanted is not None:  # a reduced schedule may break the promise at another place
        breach = next((one for one in played.breaches if one.invariant == wanted.invariant), None)
    end = breach.at if breach is not None else float("inf")
    events = [Event(*entry) for entry in schedule.world.log if entry[0] <= end and entry[1] != "promise"]
    head = [f"{family} {seed}: {breach.text if breach is not None else 'no promise was broken'}", ""]
    head += describe(schedule.setting)
    told = collapse(events)
    requests = collapse(list(requests_of(schedule.exchanges or [], breach)))
    if len(requests) > _REQUESTS:
        requests = requests[-_REQUESTS:]
    room = max(8, _LINES - len(head) - len(requests) - 3)
    if len(told) > room:
        left_out = Event(told[room // 3].at, "…", f"{len(told) - room} more events")
        told = [*told[: room // 3], left_out, *told[-(room - room // 3) :]]
    body = [f"{one.at:9.3f} s  {one.who} {one.what}" for one in sorted([*told, *requests], key=lambda one: one.at)]
    tail = [f"{breach.at:9.3f} s  Broken: {breach.text}"] if breach is not None else []
    return "\n".join([*head, *body, *tail, "", reproduction(family, seed, used)])


def same(one: Breach, other: Breach) -> bool:
    return one.invariant == other.invariant and shape(one.text) == shape(other.text)


def reproduction(family: str, seed: int, choices: Choices) -> str:
    """Return the command that plays the same schedule."""
    return f"python -m tests.simulation --family {family} --seed {seed} --only '{choices.to_json()}'"


def describe(setting: Setting) -> list[str]:
    """Return the setting in two or three lines."""
    values = flat(setting)
    plural = {name: f"{values[name]} {name if values[name] != 1 else name[:-1]}" for name in ("brokers", "masters")}
    trigger = f"each {setting.interval:g} s" if setting.interval else "as soon as it can"
    found = [
        f"{plural['brokers']}, {plural['masters']}; a topic has {setting.partitions} partition(s) in {setting.stores} "
        f"store(s) at each broker. Spark triggers {trigger}.",
        "Options: " + (", ".join(f"{key}={value}" for key, value in setting.options.items()) or "none") + ".",
    ]
    others = [
        f"{path.removeprefix('extra.')} {_short(value)}"
        for path, value in [*values.items(), *((f"{module}.{name}", value) for module, name, value in setting.knobs)]
        if path not in _TOLD and not path.startswith(_UNTOLD) and value not in ((), [], None)
    ]
    return [*found, "Also: " + "; ".join(others) + ".", ""] if others else [*found, ""]


def _short(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"({', '.join(_short(one) for one in value)})" if len(value) < 6 else f"({len(value)} entries)"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def collapse(events: Iterable[Event]) -> list[Event]:
    """Join events that repeat one of the last four, apart from its numbers."""
    found: list[list[Event]] = []
    for event in events:
        for group in found[-4:]:
            if group[0].who == event.who and shape(group[0].what) == shape(event.what):
                group.append(event)
                break
        else:
            found.append([event])
    return [
        group[0]
        if len(group) == 1
        else group[0]._replace(what=f"{group[0].what} (and {len(group) - 1} times more, until {group[-1].at:.3f} s)")
        for group in found
    ]


def requests_of(exchanges: Iterable[Exchange], breach: Breach | None) -> Iterator[Event]:
    """Yield the requests before a breach that concern its partition; all if it names none."""
    if breach is None:
        return
    named = re.search(r"(\d+):(\w+):(\d+)", breach.text)
    for exchange in exchanges:
        if exchange.at > breach.at:
            return
        if exchange.request.method not in REQUESTS:
            continue
        message = REQUESTS[Method(exchange.request.method)].FromString(exchange.request.data)
        fields = {field.name: value for field, value in message.ListFields()}
        if named is not None and (fields.get("topicName"), fields.get("partitionId"), exchange.server) != (
            named[2],
            int(named[3]),
            f"broker {named[1]}",
        ):
            continue
        yield Event(exchange.at, str(exchange.process), _sentence(exchange, fields))


def _sentence(exchange: Exchange, fields: Mapping[str, Any]) -> str:
    method = Method(exchange.request.method)
    name = method.name.lower()
    if method == Method.PARTITION_REGISTER:
        name = "partition_register" if fields.get("opType") == 31 else "partition_unregister"
    words = [f"sends {exchange.server} {name}"]
    if "topicName" in fields:
        words.append(f"of {fields['topicName'].strip()}:{fields.get('partitionId', '')}")
    if "groupName" in fields:
        words.append(f"in group {fields['groupName']}")
    if "currOffset" in fields:
        words.append(f"at {fields['currOffset']}")
    if method == Method.GET_MESSAGE and fields.get("lastPackConsumed"):
        words.append("and confirms what it got before")
    if exchange.held_for > _HELD:
        words.append(f"({exchange.held_for:.2f} s ago)")
    if not exchange.from_alive:
        words.append("(executed after its end)")
    return f"{' '.join(words)} → {_answer(exchange)}"


def _answer(exchange: Exchange) -> str:
    reply = exchange.reply
    if reply is None:
        return "no answer"
    if not isinstance(reply, Response):
        return f"refused: {reply}"[:80]
    found = REPLIES[Method(reply.method)].FromString(reply.data)
    values = {field.name: value for field, value in found.ListFields()}
    code = values.get("errCode")
    text = "OK" if code in (None, 200) else f"{code} {values.get('errMsg', '')}"[:70]
    if count := len(values.get("messages", ())):
        text += f", {count} message(s)"
    if "currOffset" in values:
        text += f", position {values['currOffset']}"
    return text
