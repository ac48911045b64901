# SPDX-License-Identifier: Apache-2.0
"""Generates random calls to a broker."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.differential.odd_calls import BLANKS, GROUPS, odd, some
from tests.differential.script import Layout, Step

_UNIT = 28
_MAX_DATA = 1024 * 1024 + 10240  # bytes that a broker accepts
TYPES = ("even", "odd", "Aa", "BB", "none")  # Aa and BB have the same hash
_PRIORITIES = (None, None, None, 101, 202, 301, 303, 303, 1, 0, -2, 203, 300, 102)
_CLIENTS = ("a", "a", "a", "a", "b")


class Broker:
    """Draws calls to a broker for one store. It remembers claims and messages, so that most calls are meaningful."""

    def __init__(self, rng: random.Random, layout: Layout) -> None:
        self._rng = rng
        self._partitions = int(layout[-1])
        self._sent = 0
        self._claims: list[dict[str, Any]] = []

    def calls(self, count: int) -> list[Step]:
        steps: list[Step] = []
        while len(steps) < count:
            steps += self._some()
        return steps[:count]

    def sends(self, count: int) -> list[Step]:
        return [self._send() for _ in range(count)]

    def claim(self) -> Step:
        return self._register(usual=True)

    def _some(self) -> list[Step]:
        weights: dict[Callable[[], list[Step]], int] = {
            lambda: self.sends(self._rng.randint(1, 4)): 22,
            lambda: [self._register()]: 18,
            lambda: [self._get() for _ in range(self._rng.randint(1, 3))]: 32,
            lambda: [self._commit()]: 12,
            lambda: [self._heartbeat()]: 6,
            lambda: [self._unregister()]: 8,
            lambda: [self._odd()]: 3,
        }
        (chosen,) = self._rng.choices(list(weights), list(weights.values()))
        return chosen()

    def _partition(self) -> int:
        return self._rng.choice((0, 0, self._rng.randrange(self._partitions)))

    def _client(self) -> dict[str, Any]:
        """Return client, group and partition, mostly of an earlier register."""
        rng = self._rng
        if self._claims and rng.random() < 0.88:
            return dict(rng.choice(self._claims))
        return {"client": rng.choice(_CLIENTS), "group": rng.choice(GROUPS), "partition": self._partition()}

    def _send(self) -> Step:
        rng = self._rng
        step: dict[str, Any] = {"call": "send", "client": "p", "partition": self._partition()}
        step["size"] = rng.choice((1, 3, 10, 40, rng.randint(1, 200), rng.randint(200, 6000)))
        flag = rng.choice((0, 0, 0, "attributes", "attributes", 2))
        if flag:
            step["flag"] = flag
        if rng.random() < 0.5:
            step["type"] = rng.choice(TYPES)
        if rng.random() < 0.1:
            step["sum"] = "none"
        if rng.random() < 0.05:
            step["service"] = 2
        if rng.random() < 0.12:
            step.update(self._invalid(step))
        self._sent += 1
        return step

    def _invalid(self, step: Step) -> dict[str, Any]:
        rng = self._rng
        return rng.choice(
            (
                {"sum": "wrong"},
                {"size": 0, "flag": 0},
                {"flag": 1},
                {"flag": 1, "size": rng.randint(1, 4)},
                {"flag": 3},
                {"topic": "nowhere"},
                {"topic": rng.choice(BLANKS)},
                {"partition": rng.choice((self._partitions, self._partitions + 7, 9999))},
                {"client": rng.choice(BLANKS)},
                {"type": rng.choice((" even ", "", " "))},
                {"time": rng.choice(("202601020304", "soon"))},
                {"size": rng.choice((_MAX_DATA, _MAX_DATA + 1, 1024 * 1024)), "flag": 0}
                if rng.random() < 0.1
                else {"size": rng.randint(6000, 20000)},
            )
        )

    def _position(self) -> tuple[str, int]:
        rng = self._rng
        entry = _UNIT * rng.randint(0, self._sent + 2)
        return rng.choice(
            [("base", n) for n in (entry, entry, 0, entry + rng.randint(1, _UNIT - 1), -_UNIT, -rng.randint(1, 300))]
            + [("abs", n) for n in (0, -1, -5, 10**9)]
        )

    def _register(self, *, usual: bool = False) -> Step:
        rng = self._rng
        claim = self._client()
        self._claims.append(claim)
        step: dict[str, Any] = {"call": "register", **claim}
        step["status"] = rng.choice((0, 0, 0, 0, 1, 1, 2))
        if rng.random() < 0.5:
            step["at"] = self._position()
        priority = rng.choice(_PRIORITIES)
        if priority is not None:
            step["priority"] = priority
        if rng.random() < 0.3:
            step["filters"] = tuple(rng.sample(TYPES, rng.randint(1, 2)))
        if not usual and rng.random() < 0.08:
            step.update(
                rng.choice(
                    (
                        {"topic": "nowhere"},
                        {"topic": ""},
                        {"client": rng.choice(BLANKS)},
                        {"group": rng.choice(BLANKS)},
                        {"partition": self._partitions + 1},
                        {"op": 33},
                        {"op": 0},
                        {"status": rng.choice((3, -1, 7))},
                        {"filters": ("", " even ", "even")},
                        {"filters": (" ",)},
                    )
                )
            )
        return step

    def _unregister(self) -> Step:
        claim = self._client()
        self._claims = [one for one in self._claims if one != claim]
        return self._sometimes_blank({"call": "unregister", **claim, "status": self._rng.choice((0, 0, 1, 1, 2))})

    def _get(self) -> Step:
        rng = self._rng
        step: dict[str, Any] = {"call": "get", **self._client()}
        step.update(some(rng, last=(None, True, True, False), manual=(None, True, True, False), escape=(None, True)))
        return self._sometimes_blank(step)

    def _commit(self) -> Step:
        rng = self._rng
        return self._sometimes_blank({"call": "commit", **self._client(), **some(rng, last=(None, True, False))})

    def _heartbeat(self) -> Step:
        rng = self._rng
        step: dict[str, Any] = {"call": "heartbeat", "partition": 0, **self._client()}
        own = (step.pop("partition"),) * (rng.random() < 0.7)
        step["partitions"] = own + tuple(rng.choices(range(self._partitions + 1), k=rng.choice((0, 0, 1, 2))))
        priority = rng.choice(_PRIORITIES)
        if priority is not None:
            step["priority"] = priority
        if rng.random() < 0.1:
            step["shape"] = rng.choice(("colons", "short", "word"))
        return self._sometimes_blank(step, "topic")

    def _sometimes_blank(self, step: dict[str, Any], *more: str) -> Step:
        rng = self._rng
        if rng.random() < 0.04:
            step[rng.choice(("client", "group"))] = rng.choice(BLANKS)
        elif rng.random() < 0.02:
            step["topic"] = rng.choice(("nowhere",) if more else ("nowhere", ""))
        return step

    def _odd(self) -> Step:
        return odd(self._rng, "broker")
