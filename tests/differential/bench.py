# SPDX-License-Identifier: Apache-2.0
"""Plays batches of scripts on a pair of servers and finds differences."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.differential.compare import Reply, differing
from tests.differential.play import Player
from tests.differential.requests import Names
from tests.differential.script import EXPIRE, FLUSH, STATELESS, Script
from tests.differential.servers import CLAIM_LIMIT, MAX_STORES, PARTITIONS, PHASE_LIMIT, Server, Store

_ATTEMPTS = 4  # plays of a script that a flush by a timer, or a slow machine, disturbs
_EMPTY = 8  # empty stores to keep, if scripts need them
_plays = itertools.count()


@dataclass(frozen=True)
class Difference:
    """Two different replies to a step, and the script up to that step."""

    script: Script
    step: int
    replies: tuple[Reply, Reply]
    from_empty: bool
    """True if the store was empty at the begin of the script."""

    @property
    def fields(self) -> list[str]:
        return differing(*self.replies)

    @property
    def step_shown(self) -> str:
        return str(dict(self.script.steps[self.step]))


@dataclass
class Results:
    played: int = 0
    calls: int = 0
    disturbed: int = 0
    """Plays that were stopped because a timer flushed the store or ended claims."""
    abandoned: int = 0
    """Scripts that were disturbed in each attempt, or found no store."""
    differences: list[Difference] = field(default_factory=list)

    def __iadd__(self, more: Results) -> Results:
        self.played += more.played
        self.calls += more.calls
        self.disturbed += more.disturbed
        self.abandoned += more.abandoned
        self.differences += more.differences
        return self


@dataclass
class _Play:
    script: Script
    store: Store
    players: tuple[Player, Player]
    attempt: int
    begun: float = 0.0
    differences: list[Difference] = field(default_factory=list)
    is_over: bool = False
    is_disturbed: bool = False


class Bench:
    """A pair of servers with the same history: each script is played on the same store of both.

    `stores` is the number of stores in use, for each topic. A store that differs between the servers is not used again.
    """

    def __init__(self, one: Server, other: Server, stores: int) -> None:
        self._servers = (one, other)
        self._free = {topic: deque(range(stores)) for topic in PARTITIONS}
        self._fresh = dict.fromkeys(PARTITIONS, stores)
        self._written: set[Store] = set()

    @property
    def stores(self) -> int:
        """The maximum number of stores that were opened."""
        return sum(self._fresh.values())

    def run(self, scripts: Iterable[Script], *, empty: bool = False) -> Results:
        """Play all scripts; if `empty`, on empty stores as long as there are any. Scripts with the same barriers wait
        together.
        """
        results = Results()
        waiting = deque((script, 1) for script in scripts)
        while waiting:
            if empty:
                self._put_empty_first(waiting[0][0].layout)
            batch = [self._start(script, attempt) for script, attempt in self._take(waiting, empty)]
            if not batch:
                results.abandoned += len(waiting)
                break
            self._play_batch(batch, results)
            for play in batch:
                self._settle(play, waiting, results)
        return results

    def _put_empty_first(self, needed: str) -> None:
        """Open empty stores of the topic `needed`, as long as the broker has memory for them."""
        while sum((needed, number) not in self._written for number in self._free[needed]) < _EMPTY:
            if not self._open(needed):
                break
        for topic, free in self._free.items():
            ordered = sorted(free, key=lambda number: (topic, number) in self._written)
            self._free[topic] = deque(ordered)

    def _take(self, waiting: deque[tuple[Script, int]], empty: bool) -> Iterator[tuple[Script, int]]:
        """Yield a batch: scripts on different stores, with the same barriers as the first one."""
        barriers = waiting[0][0].barriers
        room = {
            topic: sum((topic, number) not in self._written for number in free) if empty else len(free)
            for topic, free in self._free.items()
        }
        for _ in range(len(waiting)):
            script, attempt = waiting.popleft()
            if script.barriers == barriers and room[script.layout]:
                room[script.layout] -= 1
                yield script, attempt
            else:
                waiting.append((script, attempt))

    def _start(self, script: Script, attempt: int) -> _Play:
        store = (script.layout, self._free[script.layout].popleft())
        name = f"play{next(_plays)}"
        one, other = (self._player(server, store, name) for server in self._servers)
        return _Play(script, store, (one, other), attempt)

    def _player(self, server: Server, store: Store, name: str) -> Player:
        target = server.target
        return Player(target, Names(name, *store, broker=str(target.broker)))

    def _play_batch(self, batch: Sequence[_Play], results: Results) -> None:
        quick = [play.store for play in batch if play.store[0].startswith("quick")]
        self._flush(quick)
        barriers = batch[0].script.barriers
        for number, barrier in enumerate((*barriers, None)):
            for play in batch:
                if not play.is_over:
                    self._play_phase(play, number, results)
            if barrier == FLUSH:
                self._flush([play.store for play in batch if play.store in quick])
            elif barrier is not None:
                for server in self._servers:
                    server.expire()

    def _flush(self, stores: Sequence[Store]) -> None:
        if stores:
            for server in self._servers:
                server.flush(stores)

    def _play_phase(self, play: _Play, number: int, results: Results) -> None:
        steps = play.script.phases()[number]
        begun = time.monotonic()
        if number == 0:
            play.begun = begun
            for player in play.players:
                player.begin()
        before = [player.file_end() for player in play.players]
        one, other = (player.play(steps) for player in play.players)
        after = [player.file_end() for player in play.players]
        has_flushed = play.store[0].startswith("quick") and before != after
        if (has_flushed or _took_too_long(play, begun)) and not _has_bulk(play.script):
            play.is_disturbed = play.is_over = True
            return
        for index, step in steps:
            results.calls += 1
            if differing(one[index], other[index]):
                replies = (one[index], other[index])
                was_empty = play.players[0].began_at == 0
                play.differences.append(Difference(play.script.up_to(index), index, replies, was_empty))
                if step["call"] not in STATELESS:
                    play.is_over = True
                    return

    def _settle(self, play: _Play, waiting: deque[tuple[Script, int]], results: Results) -> None:
        topic, number = play.store
        ends = {(player.file_end(), player.end()) for player in play.players}
        if len(ends) == 1:
            self._free[topic].append(number)
        else:
            self._open(topic)
        if ends != {(0, 0)}:
            self._written.add(play.store)
        if not play.is_disturbed:
            results.played += 1
            results.differences += play.differences
            return
        results.disturbed += 1
        if play.attempt < _ATTEMPTS:
            waiting.append((play.script, play.attempt + 1))
        else:
            results.abandoned += 1

    def _open(self, topic: str) -> bool:
        """Open one more store. Return False if the broker has no memory for it."""
        if self.stores >= MAX_STORES:
            return False
        self._free[topic].append(self._fresh[topic])
        self._fresh[topic] += 1
        return True


def _took_too_long(play: _Play, begun: float) -> bool:
    """Return True if claims or members may have expired on the real server only. `begun` is the start of the phase."""
    now = time.monotonic()
    return now - begun > PHASE_LIMIT or (EXPIRE not in play.script.barriers and now - play.begun > CLAIM_LIMIT)


def _has_bulk(script: Script) -> bool:
    """Return True if the script fills the memory, which flushes it, too."""
    return any(step["call"] == "bulk" for step in script.steps)
