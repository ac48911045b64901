# SPDX-License-Identifier: Apache-2.0
"""Group offsets after retention, crashes and stops; tests/differential compares those of a running broker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.testing.master.calls import StoppedClock
from tubemq_spark.protocol.constants import ReadStatus
from tubemq_spark.testing.broker.group_offsets import GroupOffsets, Key
from tubemq_spark.testing.broker.store import NO_CODE, Store
from tubemq_spark.testing.catalog import TopicLayout
from tubemq_spark.testing.config import Release, ServerConfig

KEY = Key("g", "demo", 0)
MIN, MAX = 280, 560  # of the store of `Bench`
NORMAL, FROM_MAX = ReadStatus.NORMAL, ReadStatus.FROM_MAX
V1_2, V2_5 = Release.V1_2, Release.V2_5


class Bench:
    """The offsets of a broker and one store, with entries 10 to 19."""

    def __init__(self, release: Release = V2_5, **settings: float) -> None:
        self.clock = StoppedClock()
        config = replace(ServerConfig(release=release), **settings)  # type: ignore[arg-type]  # all of them are times
        self.offsets = GroupOffsets(config, self.clock)
        self.store = Store(TopicLayout(1, 1), config, self.clock)
        self.append(20)
        self.store.keep(10)
        assert (self.store.min_offset, self.store.max_offset) == (MIN, MAX)

    def append(self, count: int) -> None:
        for n in range(count):
            self.store.append(0, NO_CODE, n, 0, 0, b"x")

    def load(self, status: int = NORMAL, asked: int = -1) -> int:
        return self.offsets.load(KEY, self.store, status, asked)

    def next_read(self, *, manual: bool, consumed: bool = True) -> int | None:
        return self.offsets.next_read(KEY, self.store, manual, consumed)

    def advance(self, advance: int, *, manual: bool, empty: bool = False) -> None:
        self.offsets.advance(KEY, advance, manual, empty)

    def pass_time(self, seconds: float) -> None:
        """Advance the clock in steps and run the timers."""
        for _ in range(round(seconds * 2)):
            self.clock.advance(0.5)
            self.offsets.tick()

    def confirmed(self) -> int | None:
        return self.offsets.confirmed(KEY)


@pytest.mark.parametrize(
    ("stored", "status", "asked", "answer"),
    [
        (None, NORMAL, -1, MIN),
        (None, NORMAL, 0, MIN),
        (None, FROM_MAX, 10**9, MAX),
        (420, FROM_MAX, 0, MIN),
        (420, NORMAL, -1, 420),
    ],
)
def test_a_register_finds_positions_in_the_store(stored: int | None, status: int, asked: int, answer: int) -> None:
    bench = Bench()
    if stored is not None:
        bench.load(asked=stored)
    assert bench.load(status, asked) == answer == bench.confirmed()


@pytest.mark.parametrize("manual", [False, True])
def test_a_reader_beyond_the_end_is_moved_back_to_it(manual: bool) -> None:
    """A crash has removed the tail. The get reports the end, and the next one reads there."""
    bench = Bench()
    bench.append(3)
    bench.load(asked=MAX + 84)
    bench.store.crash()
    assert bench.load() == MAX + 84
    assert bench.next_read(manual=manual) is None
    if manual:
        assert bench.offsets.commit(KEY, True) == MAX
    assert bench.confirmed() == MAX
    bench.append(1)
    assert bench.next_read(manual=manual) == MAX


@pytest.mark.parametrize("manual", [False, True])
def test_a_reader_below_the_minimum_continues_at_the_minimum(manual: bool) -> None:
    bench = Bench()
    bench.load(asked=MIN)
    bench.store.keep(5)
    assert bench.next_read(manual=manual) == MIN + 140 == bench.confirmed()


def test_a_manual_reader_below_the_minimum_counts_in_flight_bytes_twice() -> None:
    bench = Bench()
    bench.load(asked=MIN)
    bench.advance(56, manual=True)
    bench.store.keep(5)
    assert bench.next_read(manual=True) == MIN + 84  # the cursor was 56 bytes below the minimum


def test_an_administrator_moves_a_group() -> None:
    bench = Bench()
    bench.load(asked=MIN)
    bench.advance(56, manual=True)
    bench.offsets.move(KEY, 363)
    assert bench.confirmed() == 336
    assert bench.next_read(manual=True) == 336


def test_a_removed_group_has_no_position() -> None:
    bench = Bench()
    bench.load(asked=420)
    bench.pass_time(12)
    bench.offsets.remove("g")
    assert bench.confirmed() is None
    assert bench.next_read(manual=False) == MIN  # a held claim starts at 0 and skips deleted messages
    bench.offsets.restart()
    assert bench.confirmed() is None


# -- restarts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("release", "seconds", "kept"),
    [
        (V1_2, 4.5, False),
        (V1_2, 5, True),  # ZooKeeper has it
        (V2_5, 5.5, False),  # in the table, but not in the file
        (V2_5, 6, True),
    ],
)
def test_a_crash_loses_positions_that_were_not_written(release: Release, seconds: float, kept: bool) -> None:
    bench = Bench(release)
    bench.load(asked=420)
    bench.pass_time(seconds)
    bench.offsets.restart()
    assert bench.confirmed() == (420 if kept else None)


def test_a_crash_brings_an_older_position_back() -> None:
    bench = Bench()
    bench.load(asked=336)
    bench.pass_time(12)
    bench.load(asked=420)
    bench.offsets.restart()
    assert bench.confirmed() == 336
    assert bench.load(FROM_MAX) == 336


@pytest.mark.parametrize("release", [V1_2, V2_5])
@pytest.mark.parametrize("manual", [True, False])
def test_an_orderly_stop_confirms_what_is_in_flight(release: Release, manual: bool) -> None:
    bench = Bench(release)
    bench.load(asked=MIN)
    bench.advance(56, manual=manual)
    bench.offsets.stop()
    bench.offsets.restart()
    assert bench.confirmed() == MIN + 56
    assert bench.next_read(manual=True) == MIN + 56


def test_a_claim_on_a_negative_partition_breaks_an_orderly_stop() -> None:
    bench = Bench()
    bench.load(asked=336)
    bench.pass_time(12)
    bench.load(asked=420)
    bench.offsets.load(Key("g", "demo", -1), bench.store, NORMAL, -1)
    bench.offsets.stop()
    bench.offsets.restart()
    assert bench.confirmed() == 336


# -- unused groups --------------------------------------------------------------------------------------------------

EXPIRY = 3600.0


def test_an_unused_group_expires_at_the_next_check() -> None:
    bench = Bench(group_offset_expiry=EXPIRY)
    bench.load(asked=420)
    bench.pass_time(EXPIRY - 10)
    assert bench.confirmed() == 420
    bench.pass_time(610)
    assert bench.confirmed() is None
    bench.offsets.restart()
    assert bench.confirmed() is None


def test_registers_without_a_position_do_not_prevent_expiry() -> None:
    bench = Bench(group_offset_expiry=EXPIRY)
    bench.load(asked=420)
    for _ in range(8):
        bench.pass_time(600)
        bench.load()
    assert bench.confirmed() == MIN


def test_commits_prevent_expiry() -> None:
    bench = Bench(group_offset_expiry=EXPIRY)
    bench.load(asked=MIN)
    for _ in range(8):
        bench.pass_time(600)
        bench.advance(28, manual=True)
        bench.offsets.commit(KEY, True)
    assert bench.confirmed() == MIN + 8 * 28


def test_release_1_2_never_expires_groups() -> None:
    bench = Bench(V1_2, group_offset_expiry=EXPIRY)
    bench.load(asked=420)
    bench.pass_time(3 * EXPIRY)
    assert bench.confirmed() == 420
