# SPDX-License-Identifier: Apache-2.0
"""What makes a schedule, besides its seed: the decisions that disturb it, and changes of its setting; as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import lru_cache
from typing import Any

from tests.simulation.world import Decisions

_LEFT_OUT = frozenset({"kinds", "rate"})  # decide which disturbances come; those are decisions here


@dataclass(frozen=True)
class Choices:
    """`decisions` are all that are made: what is not among them stays quiet. `changes` are values of the setting by
    path, as `flat` returns them; None removes an option, and `weather: {}` means the usual values."""

    decisions: Decisions
    changes: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        decisions = [[what, number, _plain(value)] for (what, number), value in self.decisions.items()]
        return json.dumps([decisions, dict(self.changes)], separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Choices:
        decisions, changes = json.loads(text)
        return cls({(what, number): _value(value) for what, number, value in decisions}, changes)


def _plain(value: Any) -> Any:
    from tests.simulation.schedule import Disturbance

    if isinstance(value, Disturbance):
        moment = value.moment
        return {
            "do": value.kind,
            "at": [moment.kind, moment.value, moment.after],
            "n": value.number,
            "s": value.strength,
        }
    return value


def _value(value: Any) -> Any:
    from tests.simulation.schedule import Disturbance, Moment

    if isinstance(value, dict):
        kind, at, after = value["at"]
        return Disturbance(value["do"], Moment(kind, _tuples(at), after), value["n"], value["s"])
    return _tuples(value)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(one) for one in value) if isinstance(value, list | tuple) else value


def values(setting: Any) -> dict[str, Any]:
    """Return the values of a `Setting`, or of one of its parts, by name."""
    return {one.name: getattr(setting, one.name) for one in fields(setting) if one.name not in _LEFT_OUT}


def flat(setting: Any) -> dict[str, Any]:
    """Return the values of a `Setting` by path: `brokers`, `options.startingoffsets`, `weather.late`."""
    found: dict[str, Any] = {}
    for name, value in values(setting).items():
        inner = values(value) if is_dataclass(value) else value
        if isinstance(inner, Mapping):
            found.update({f"{name}.{key}": one for key, one in inner.items()})
        else:
            found[name] = value
    return found


def change(setting: Any, changes: Mapping[str, Any]) -> None:
    """Put `changes` into a `Setting`."""
    for path, value in changes.items():
        name, _, key = path.partition(".")
        before = getattr(setting, name)
        if not key and isinstance(value, Mapping):
            setattr(setting, name, type(before)(**{key: _tuples(inner) for key, inner in value.items()}))
        elif not key:
            setattr(setting, name, _as(before, value))
        elif isinstance(before, Mapping):
            after = {**before, key: _as(before.get(key), value)}
            if value is None:
                del after[key]
            setattr(setting, name, after)
        else:
            setattr(setting, name, replace(before, **{key: value}))


def _as(before: Any, value: Any) -> Any:
    """Return a value that comes from JSON with the types that it has in a setting."""
    return [_tuples(one) for one in value] if isinstance(before, list) else _tuples(value)


@lru_cache(maxsize=4096)
def shape(text: str) -> str:
    """Return `text` without its numbers, so that two breaches of one kind are equal."""
    text = re.sub(r"\bb\d+/t\d+/r\d+\S*", "ROW", text)
    text = re.sub(r"\d+:\w+:\d+", "P", text)
    text = re.sub(r"Partition\([^)]*\)", "P", text)
    text = re.sub(r"\b[a-z]?\d+(\.\d+)?\b", "#", text)
    text = re.sub(r"(P: #|P|#)(, (P: #|P|#))+", r"\1, …", text)
    return text[:200]
