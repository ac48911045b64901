"""Which brokers and partitions are left alone after trouble, and for how long: one rule, of counted outcomes.

What had trouble rests for a moment, longer each time, and is then tried with a single message before it is trusted
again. That holds for every message. Messages that may go anywhere stay away for longer, as in TubeMQ's Java client:
from a broker that refuses for 50 s, from one that cannot be reached for 15 s and more, from one that owes answers as
long as it does. But only from a part of the cluster: if everybody left every broker that is slow for once, the others
would be next. (wire: ProducerManager, DefaultBrokerRcvQltyStats, TubeClientConfig; there at most 30 % of the brokers.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

MOST_SHARE = 0.3  # of the brokers that may be shielded at a time
SLOW = 1.0  # seconds for which a broker may owe an answer before it counts as slow

_REST, _LONGEST_REST = 0.1, 3.0  # seconds after the first trouble, doubled by each further one
_UNREACHABLE, _LONGEST_UNREACHABLE = 15.0, 120.0
_REFUSED = 50.0
_FULL, _LONGEST_FULL = 3.0, 50.0
_PARTITION = 3.0


class FailureStats(NamedTuple):
    """The trouble with a broker, or a partition, since its last success.

    `lost` counts connections that broke, were not made, or stayed without an answer; `refused` answers of a broker
    that is not in service (503); `full` those of one whose memory is (419); `failed` those that concern a partition.
    `last` is when the last of them came. `owing` is since when the broker has owed an answer, None when it owes none.
    Times are seconds on one clock.
    """

    lost: int = 0
    refused: int = 0
    full: int = 0
    failed: int = 0
    last: float = 0.0
    owing: float | None = None

    @property
    def total(self) -> int:
        return self.lost + self.refused + self.full + self.failed


class BreakerState(NamedTuple):
    """Nothing is sent before `rest_until`; messages that may go elsewhere do so before `shielded_until`. Afterwards one
    message at a time is tried when `on_trial`."""

    rest_until: float
    shielded_until: float
    on_trial: bool


def judge(brokers: Mapping[int, FailureStats], known: int, now: float) -> dict[int, BreakerState]:
    """What to do about each of `brokers`; those without trouble are left out. `known` is how many the cluster has."""
    troubled = {broker_id: counts for broker_id, counts in brokers.items() if counts.total or _is_slow(counts, now)}
    avoided = [one for one, counts in troubled.items() if _shielded_until(counts, now) > now]
    worst_first = sorted(avoided, key=lambda one: (-troubled[one].total, -_owed(troubled[one], now), one))
    shielded = set(worst_first[: most_shielded(known)])
    return {
        broker_id: BreakerState(
            rest := _rest_until(counts),
            max(rest, _shielded_until(counts, now)) if broker_id in shielded else rest,
            on_trial=counts.total > 0,
        )
        for broker_id, counts in troubled.items()
    }


def judge_partition(counts: FailureStats) -> BreakerState:
    """As `judge`, for one partition that had trouble: it may always be left for others."""
    return BreakerState(_rest_until(counts), counts.last + _PARTITION, on_trial=counts.total > 0)


def most_shielded(known: int) -> int:
    """How many of `known` brokers may be shielded at a time: none if there is no other."""
    return max(1, int(known * MOST_SHARE)) if known > 1 else 0


def _rest_until(counts: FailureStats) -> float:
    return counts.last + _doubled(_REST, counts.total, _LONGEST_REST) if counts.total else 0.0


def _shielded_until(counts: FailureStats, now: float) -> float:
    pauses = (
        _doubled(_UNREACHABLE, counts.lost, _LONGEST_UNREACHABLE),
        _REFUSED if counts.refused else 0.0,
        _doubled(_FULL, counts.full, _LONGEST_FULL),
    )
    until = counts.last + max(pauses) if counts.total else 0.0
    return max(until, now + SLOW) if _is_slow(counts, now) else until


def _doubled(first: float, count: int, ceiling: float) -> float:
    return min(first * 2.0 ** min(count - 1, 30), ceiling) if count else 0.0


def _is_slow(counts: FailureStats, now: float) -> bool:
    return _owed(counts, now) > SLOW


def _owed(counts: FailureStats, now: float) -> float:
    return 0.0 if counts.owing is None else now - counts.owing
