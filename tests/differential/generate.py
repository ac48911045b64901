# SPDX-License-Identifier: Apache-2.0
"""Generates random scripts by family, the same ones for the same seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from tests.differential.broker_calls import TYPES, Broker
from tests.differential.master_calls import Master
from tests.differential.odd_calls import odd
from tests.differential.script import EXPIRE, FLUSH, Layout, Script, Step


def _layout(rng: random.Random, pace: str) -> Layout:
    layouts: Mapping[str, tuple[Layout, Layout]] = {"calm": ("calm1", "calm3"), "quick": ("quick1", "quick3")}
    return rng.choice(layouts[pace])


def memory(rng: random.Random) -> Script:
    """Return a script whose messages stay in memory; earlier messages may be flushed."""
    layout = _layout(rng, "calm")
    broker = Broker(rng, layout)
    return Script(layout, (*broker.sends(rng.randint(0, 6)), broker.claim(), *broker.calls(rng.randint(8, 24))))


def flushed(rng: random.Random) -> Script:
    """Return a script that flushes once; half of the scripts send more messages after it."""
    return _with_barriers(rng, "quick", (FLUSH,))


def half(rng: random.Random) -> Script:
    """Return a script with two flushes: the older block is only in files, the newer one in files and memory."""
    return _with_barriers(rng, "quick", (FLUSH, FLUSH))


def expiry(rng: random.Random) -> Script:
    """Return a script in which claims and members expire."""
    return _with_barriers(rng, "calm", (EXPIRE,))


def _with_barriers(rng: random.Random, pace: str, barriers: Sequence[str]) -> Script:
    layout = _layout(rng, pace)
    broker = Broker(rng, layout)
    steps = [*broker.sends(rng.randint(0, 8)), broker.claim(), *broker.calls(rng.randint(2, 8))]
    for barrier in barriers:
        steps.append({"call": barrier})
        steps += broker.sends(rng.choice((0, 0, rng.randint(1, 5))))
        steps += broker.calls(rng.randint(6, 14))
    return Script(layout, tuple(steps))


def master(rng: random.Random) -> Script:
    return Script(_layout(rng, "calm"), tuple(Master(rng).calls(rng.randint(6, 24))))


def master_expiry(rng: random.Random) -> Script:
    """Return a script in which members and producers expire."""
    draw = Master(rng)
    before, after = draw.calls(rng.randint(3, 12)), draw.calls(rng.randint(3, 12))
    return Script(_layout(rng, "calm"), (*before, {"call": EXPIRE}, *after))


def faults(rng: random.Random) -> Script:
    """Return a script with requests that no method handles, between ordinary ones."""
    broker = Broker(rng, "calm3")
    steps = [odd(rng, rng.choice(("master", "broker"))) for _ in range(rng.randint(4, 12))]
    steps += broker.calls(4)
    rng.shuffle(steps)
    return Script("calm3", tuple(steps))


def bulk(rng: random.Random) -> Script:
    """Return a script with thousands of messages: limits of a read, ends of blocks and segments."""
    layout = _layout(rng, rng.choice(("calm", "quick")))
    partitions = int(layout[-1])
    steps: list[Step] = []
    broker = Broker(rng, layout)
    for _ in range(rng.randint(2, 4)):
        size = rng.choice((10, 40, 100, 400, 1000))
        count = rng.randint(500, min(9000, 3_000_000 // (size + 52)))
        types = {"type": rng.choice(TYPES)} if rng.random() < 0.6 else {}
        step = {"call": "bulk", "client": "p", "partition": rng.randrange(partitions), "count": count, "size": size}
        steps.append({**step, **types})
        if rng.random() < 0.3:
            steps += broker.sends(2)
    if layout.startswith("quick") and rng.random() < 0.7:
        steps.append({"call": FLUSH})
    filters = {"filters": tuple(rng.sample(TYPES, 2))} if rng.random() < 0.4 else {}
    steps.append({"call": "register", "client": "a", "group": "g", "partition": rng.randrange(partitions)})
    steps[-1] = {**steps[-1], "status": 0, "at": ("base", 0), "priority": rng.choice((101, 202, 303, 303)), **filters}
    mode = rng.choice(({"manual": True}, {"last": True}))
    for _ in range(rng.randint(8, 30)):
        steps.append({"call": "get", "client": "a", "group": "g", "partition": steps[-1]["partition"], **mode})
    steps.append({"call": "commit", "client": "a", "group": "g", "partition": steps[-1]["partition"]})
    return Script(layout, tuple(steps))


FAMILIES: Mapping[str, tuple[Callable[[random.Random], Script], float]] = {
    "memory": (memory, 0.30),
    "flushed": (flushed, 0.18),
    "half": (half, 0.09),
    "expiry": (expiry, 0.08),
    "master": (master, 0.20),
    "master_expiry": (master_expiry, 0.05),
    "faults": (faults, 0.07),
    "bulk": (bulk, 0.03),
}
"""The function that draws a script of each family, and the family's share of a run."""


def scripts(seed: str, count: int, families: Sequence[str] = tuple(FAMILIES)) -> dict[str, list[Script]]:
    """Return about `count` scripts by family, at least one of each."""
    shares = {name: FAMILIES[name][1] for name in families}
    whole = sum(shares.values())
    return {
        name: [FAMILIES[name][0](random.Random(f"{seed} {name} {n}")) for n in range(max(1, round(count * s / whole)))]
        for name, s in shares.items()
    }
