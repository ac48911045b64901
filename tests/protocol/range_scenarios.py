# SPDX-License-Identifier: Apache-2.0
"""Random scenarios: a store, a range, and faults while the range is read.

A random number of the session's steps (send, handle a request, receive a reply) lies between two faults.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from tests.protocol.range_session import OURS, Row, Session
from tests.protocol.simulated_store import UNIT, Limits, SimulatedStore
from tubemq_spark.errors import DataLossError, PositionMovedError

HARMLESS = ("append", "append", "flush", "swap", "stale", "busy", "race", "disconnect")
HARMFUL = ("expire", "move", "drop", "crash")


@dataclass
class Scenario:
    """`script` has, for each disturbance, the number of steps before it, its name and its numbers."""

    session: Session
    script: list[tuple[int, str, tuple[int, ...]]]

    def play(self) -> list[Row]:
        for steps, disturbance, numbers in self.script:
            for _ in range(steps):
                if not self.session.reader.done:
                    self.session.step()
            disturb(self.session, disturbance, numbers)
        return self.session.run()

    @property
    def disturbances(self) -> set[str]:
        return {disturbance for _, disturbance, _ in self.script}


def disturb(session: Session, disturbance: str, numbers: tuple[int, ...]) -> None:
    store = session.store
    match disturbance:
        case "append":
            store.append(*numbers)
        case "flush":
            store.flush()
        case "swap":
            store.swap_blocks()
        case "stale":
            store.stale = 1
        case "busy":
            store.busy = 2
        case "race":
            store.racing += numbers
        case "disconnect":
            session.disconnect()
        case "expire":
            store.expire(numbers[0])
        case "move":
            store.move_group(numbers[0])
        case "drop":
            store.move_group(None)
        case "crash":
            keep, confirmed, *refill = numbers
            session.crash(keep, confirmed)
            store.append(*refill)


def scenario(rng: random.Random, kinds: Sequence[str]) -> Scenario:
    owns_store = rng.random() < 0.4
    filtered = not owns_store and rng.random() < 0.4
    limits = Limits(rng.randint(1, 8), rng.randint(1, 8), rng.randint(1, 4), rng.randint(1, 6))
    store = SimulatedStore(limits, filtered)
    # A store with one partition may still have entries of removed partitions.
    own, shared = [[OURS], [OURS, OURS, OURS, 8]], [[OURS, OURS, 8], [OURS, 8, 9], [OURS, 8, 8, 8, 8, 8]]
    partitions = rng.choice(own if owns_store else shared)
    size = rng.randint(2, 40)
    for _ in range(size):
        unreadable, matches, too_long = (rng.random() < share for share in (0.15, 0.7, 0.1 if owns_store else 0))
        store.append(rng.choice(partitions), unreadable=unreadable, matches=matches, too_long=too_long)
        if rng.random() < 0.05:
            store.swap_blocks()
    if rng.random() < 0.5:
        store.flush()
    store.expire(rng.choice([0, 0, 1, 3]))
    start = rng.randint(store.minimum, size - 1)
    end = rng.choice([size, rng.randint(start + 1, size)])

    def numbers(kind: str) -> tuple[int, ...]:
        entries = tuple(rng.choice(partitions) for _ in range(rng.randint(1, 6)))
        match kind:
            case "append" | "race":
                return entries
            case "expire" | "move":
                return (rng.choice([start, end, 0, size + 10, rng.randint(0, size)]),)
            case "crash":
                refill = tuple(rng.choice(partitions) for _ in range(rng.choice([0, 3, size, size + 5])))
                return (rng.randint(max(0, start - 2), size), rng.randint(0, start), *refill)
        return ()

    script = [(rng.randint(0, 14), kind, numbers(kind)) for kind in rng.choices(kinds, k=rng.randint(0, 6))]
    session = Session(store, start * UNIT, end * UNIT, owns_store, rng.randint(1, 4), rng.randint(0, 1 << 30))
    return Scenario(session, script)


scenarios = st.randoms(use_true_random=False)


def check(played: Scenario, *, crashed: bool = False) -> str:
    """Return how the scenario ends, and check the result. `crashed`: the test crashed the broker, not the script."""
    session = played.session
    try:
        rows = played.play()
    except DataLossError as error:
        assert crashed or played.disturbances & {"expire", "crash"}
        check_loss(session, error, moved=bool(played.disturbances & {"move", "drop"}))
        return "lost"
    except PositionMovedError:
        assert played.disturbances & {"move", "drop"}
        return "moved"
    assert rows == session.expected
    assert session.group == session.start
    return "done"


def check_loss(session: Session, error: DataLossError, *, moved: bool) -> None:
    """Check that the error is true. After a move and a crash, the reader can only guess where the loss begins."""
    store, asked, offered = session.store, error.asked, error.offered
    assert (error.topic, error.broker_id, error.partition) == ("demo", 3, OURS)
    if offered > asked:
        assert asked == session.start
        assert offered in (minimum * UNIT for minimum in store.minima)
        return
    session.take()
    gone = [store.numbers[message] * UNIT for _, message in session.rows if message not in store.messages]
    if asked == session.end:
        assert offered in (end * UNIT for end in store.ends)
    elif not moved:
        assert gone
        assert all(offered <= position < asked for position in gone)
