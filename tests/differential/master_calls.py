# SPDX-License-Identifier: Apache-2.0
"""Generates random calls to the master."""

from __future__ import annotations

import random
from typing import Any

from tests.differential.odd_calls import BLANKS, odd, some
from tests.differential.script import Step


class Master:
    """Draws calls to the master: of producers, and of group members with client-side or server-side balance."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        # Most calls of a script use these values, so that most registrations succeed.
        self._topics = rng.choice((("calm1",), ("calm3",), ("calm1", "quick3"), ("quick1", "quick3", "calm1")))
        self._sources = rng.choice((0, -1, 1, 2, 3))
        self._conditions = rng.choice(((), (), (f"{self._topics[0]}#even,odd",)))
        self._session = rng.choice(("s", "key"))
        self._total = rng.choice((1, 2))
        self._members: list[dict[str, Any]] = []

    def calls(self, count: int) -> list[Step]:
        rng = self._rng
        kinds = (self._member, self._member, self._producer, self._balanced)
        main = rng.choice(kinds)
        return [rng.choice((main, main, main, rng.choice((*kinds, self._odd))))() for _ in range(count)]

    def _client(self, group: str, *, registers: bool = False) -> dict[str, Any]:
        """Return client and group, mostly of an earlier registration. The two kinds of balance mostly use different
        groups.
        """
        rng = self._rng
        members = [member for member in self._members if member["group"] == group]
        if members and not registers and rng.random() < 0.85:
            return dict(rng.choice(members))
        client = {"client": rng.choice("aaabbc"), "group": group if rng.random() < 0.85 else "h"}
        if registers:
            self._members.append(dict(client))
        if rng.random() < 0.04:
            client[rng.choice(("client", "group"))] = rng.choice(BLANKS)
        return client

    def _some_topics(self) -> tuple[str, ...]:
        rng = self._rng
        if rng.random() < 0.88:
            return self._topics
        own = (self._topics[:1], tuple(reversed(self._topics)))
        twice = ("calm3", "calm3")
        return rng.choice(
            (*own, (), ("nowhere",), ("calm1", "nowhere"), twice, (" calm1 ",), ("",), ("calm1", " "), ("quick1",))
            if rng.random() < 0.9
            else (("__offset_history__",),)
        )

    def _some_conditions(self) -> tuple[str, ...]:
        rng = self._rng
        if rng.random() < 0.92:
            return self._conditions
        first = self._topics[0]
        ends = ("#even", "#odd,even", "", "#", "#even,,odd", " # even , odd ", "#a#b")
        return (rng.choice((*(f"{first}{end}" for end in ends), "elsewhere#even", "#even", "")),)

    def _rep(self) -> dict[str, Any]:
        rng = self._rng
        if rng.random() < 0.3:
            return {}
        rep: dict[str, Any] = {"brokers": rng.choice((-2, -2, "last", 5)), "metas": rng.choice((-2, -2, "last", 5))}
        if rng.random() < 0.4:
            first = self._topics[0]
            rep["reported"] = rng.choice(((f"{first}#1:0",), (f"{first}#1:0,1:1",), (), (f"{first}:0",), ("x",)))
        if rng.random() < 0.4:
            rep["assigned"] = rng.choice((-2, 0, 1))
        return rep

    def _ops(self) -> dict[str, Any]:
        rng = self._rng
        if rng.random() < 0.6:
            return {}
        ops: dict[str, Any] = {}
        for name in ("groupFlowCheckId", "defFlowCheckId", "qryPriorityId", "csmFrmMaxOffsetCtrlId"):
            if rng.random() < 0.5:
                ops[name] = rng.choice((-2, 0, 1, 301))
        return {"ops": ops}

    def _host(self) -> dict[str, Any]:
        return {"host": self._rng.choice(("", " ", "10.1.2.3", "here"))} if self._rng.random() < 0.05 else {}

    def _member(self) -> Step:
        rng = self._rng
        call = rng.choices(("register", "heartbeat", "meta", "close"), (7, 5, 6, 2))[0]
        if call == "register":
            sources = self._sources if rng.random() < 0.9 else rng.choice((0, 1, 2, -1))
            node = rng.randrange(max(1, sources)) if rng.random() < 0.85 else rng.choice((-1, 1, 2, 3))
            lists = {"topics": self._some_topics(), "conditions": self._some_conditions()}
            step = {
                "call": "member_register",
                **self._client("g", registers=True),
                "sources": sources,
                "node": node,
                **lists,
            }
            return {**step, **self._rep(), **self._ops(), **self._host()}
        if call == "heartbeat":
            return {"call": "member_heartbeat", **self._client("g"), **self._rep(), **self._ops()}
        if call == "meta":
            ids = {"brokers": rng.choice((-2, "last", 5)), "metas": rng.choice((-2, "last", 5))}
            return {"call": "member_meta", **self._client("g"), **ids}
        return {"call": "member_close", **self._client("g")}

    def _balanced(self) -> Step:
        rng = self._rng
        call = rng.choices(("register", "heartbeat", "close"), (6, 4, 2))[0]
        if call == "close":
            return {"call": "member_close", **self._client("b")}
        flows = some(rng, def_flow=(None, None, -2, 0), group_flow=(None, None, -2, 0))
        if call == "heartbeat":
            return {"call": "balanced_heartbeat", **self._client("b"), **flows}
        lists = {"topics": self._some_topics(), "conditions": self._some_conditions()}
        step: dict[str, Any] = {"call": "balanced_register", **self._client("b", registers=True), **lists, **flows}
        step.update(self._host())
        step.update(some(rng, priority=(None, -2, 303), not_allocated=(None, True, False)))
        if rng.random() < 0.4:
            step.update({"bound": True, "session": self._session, "session_time": 1, "total": self._total})
            step.update(some(rng, select_big=(None, None, True, False)))
            required = (None, "", f"1:{self._topics[0]}:0=28", f"1:{self._topics[0]}:0=56", "nonsense", "1:a:b=c")
            step.update(some(rng, required=required))
            if rng.random() < 0.2:
                step.update(rng.choice(({"session": "other"}, {"session": ""}, {"total": 0}, {"total": 3})))
        return step

    def _producer(self) -> Step:
        rng = self._rng
        call = rng.choices(("register", "heartbeat", "close"), (6, 9, 1))[0]
        client = {"client": rng.choice("xxxy") if rng.random() < 0.96 else rng.choice(BLANKS)}
        if call == "close":
            return {"call": "producer_close", **client}
        ids = {"sum": rng.choice((-1, -1, "last", 5)), **some(rng, config=(None, -2, "last", 5))}
        return {"call": f"producer_{call}", **client, "topics": self._some_topics(), **ids, **self._host()}

    def _odd(self) -> Step:
        return odd(self._rng, "master")
