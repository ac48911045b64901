# SPDX-License-Identifier: Apache-2.0
"""A seeded minute of schedules, and what the simulation itself promises: the same seed, the same log."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from unittest import mock

import pytest

from tests.simulation import world as worlds
from tests.simulation.choices import Choices
from tests.simulation.families import FAMILIES, play, stage
from tests.simulation.group_promises import Group
from tests.simulation.network import Network, Socket
from tests.simulation.promises import BrokenError
from tests.simulation.reduce import Reduction, fewest
from tests.simulation.run import play_chunk
from tests.simulation.story import reproduction, tell
from tests.simulation.world import Process, World

COUNT = 300  # schedules of each family, about a minute of one core together
SAME = 6  # schedules of each family whose logs are compared


def in_a_process(*command: str, **environment: str) -> str:
    """Return what this module prints in a process of its own: `simulated` changes the process that it is in."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation.test_simulation", *command],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("family", FAMILIES)
def test_no_schedule_breaks_a_promise(family: str) -> None:
    broken = in_a_process("broken", family)
    assert not broken, broken


@pytest.mark.parametrize("family", FAMILIES)
def test_a_seed_and_its_recorded_decisions_give_the_same_log_byte_for_byte(family: str) -> None:
    one = in_a_process("digests", family, PYTHONHASHSEED="1")
    other = in_a_process("digests", family, PYTHONHASHSEED="2")
    first, again = json.loads(one)
    assert first == again, "in one process"
    assert one == other, "in two processes"


def test_a_reduced_schedule_breaks_the_same_promise_with_fewer_decisions() -> None:
    in_a_process("reduced")


def test_the_fewest_items_are_found() -> None:
    assert fewest(list(range(40)), lambda left: {3, 17, 31} <= set(left)) == [3, 17, 31]


# -- a world without the connector ------------------------------------------------------------------------------------


class Server:
    """Records the bytes that reach it, and the end of its connection."""

    def __init__(self, name: str = "broker 1") -> None:
        self.name, self.is_open = name, True
        self.got: list[bytes] = []
        self.lost = False

    def connect(self) -> Server:
        return self

    def connection_made(self, transport: object) -> None:
        pass

    def data_received(self, data: bytes) -> None:
        self.got.append(data)

    def connection_lost(self, error: object) -> None:
        self.lost = True


@pytest.fixture
def world() -> Iterator[World]:
    made = World(1)
    made.network = Network()
    worlds.enter(made)
    yield made
    made.end()
    worlds.enter(None)


def test_a_killed_process_sends_nothing_more(world: World) -> None:
    server, process = Server(), Process(world, "worker 1", "host")
    done = []

    def send() -> None:
        socket = Socket(process, server)
        try:
            for number in range(100):
                socket.send(b"%d" % number)
                world.sleep(1.0)
        finally:
            done.append(world.now)
            socket.send(b"last words")

    call = process.start("sender", send)
    world.pass_time(2.5)
    process.kill()
    world.pass_time(60.0)
    assert server.got == [b"0", b"1", b"2"]
    assert server.lost
    assert done == [2.5]
    assert type(call.error).__name__ == "Killed"


def test_requests_outlive_their_senders(world: World) -> None:
    server, process = Server(), Process(world, "worker 1", "host")
    world.network.hangs["broker 1"] = 10.0

    def send() -> None:
        Socket(process, server).send(b"late")

    process.start("sender", send)
    world.pass_time(1.0)
    process.kill()
    world.pass_time(1.0)
    assert server.got == []
    world.pass_time(20.0)
    assert server.got == [b"late"]


# -- what the processes do --------------------------------------------------------------------------------------------


def digest(family: str, seed: int, choices: Choices | None = None) -> tuple[str, Choices]:
    """Return a digest of all that happened in a schedule, and its decisions as they are recorded."""
    played = play(family, seed, choices, records=True)
    log = [repr(entry) for entry in played.schedule.world.log]
    for one in played.schedule.exchanges or []:
        log.append(f"{one.at!r} {one.process} {one.server} {one.request!r} {one.reply!r}")
    decisions = Choices(played.schedule.world.decisions)
    recorded = Choices.from_json(decisions.to_json())
    assert recorded == decisions
    return sha256("\n".join(log).encode()).hexdigest(), recorded


def digests(family: str) -> None:
    """Print the digests of schedules, and of their recorded decisions."""
    first = [digest(family, seed) for seed in range(SAME)]
    again = [digest(family, seed, decisions) for seed, (_, decisions) in enumerate(first)]
    print(json.dumps([[one for one, _ in played] for played in (first, again)]))


def broken(family: str) -> None:
    """Print the breaches of the first schedules, each with its story."""
    played = play_chunk(family, range(COUNT), None)
    for found in played.found.values():
        choices = Reduction(family, found.seed, found.breach, 20.0).reduce(found.choices)
        print(tell(family, found.seed, choices, found.breach), end="\n\n")


def reduced() -> None:
    """Reduce a breach of a promise that nobody gives: no broker crashes behind the second batch."""

    def never_crashed(group: Group) -> None:
        if group.schedule.batches > 1 and "crash broker" in group.schedule.came:
            raise BrokenError("group_never_ahead", "a broker has crashed")

    with mock.patch.object(Group, "group_never_ahead", never_crashed):
        played = next(one for seed in itertools.count() if (one := play("reading", seed)).breaches)
        seed, breach = played.schedule.seed, played.breaches[0]
        before = Choices(played.schedule.world.decisions)
        reduction = Reduction("reading", seed, breach, 4.0)
        after = reduction.reduce(before)
        assert len(after.decisions) < len(before.decisions)
        found = reduction.find(Choices.from_json(after.to_json()))
        assert found is not None
        assert found.invariant == breach.invariant
        story = tell("reading", seed, after, breach)
        assert 10 <= len(story.splitlines()) <= 40
        assert "Broken: " + found.text in story
        assert story.endswith(reproduction("reading", seed, after))


if __name__ == "__main__":
    name, *given = sys.argv[1:]
    with stage():
        globals()[name](*given)
