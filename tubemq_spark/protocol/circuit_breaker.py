# SPDX-License-Identifier: Apache-2.0
"""Circuit breaker for brokers and partitions: when records avoid one that failed, and when it is tried again.

A broker or partition that failed gets nothing during a backoff, which doubles with each failure. After the backoff it
is half open: one record at a time is tried until one is stored. This holds for every record.

Records that may go to any partition avoid the broker for longer, as in TubeMQ's Java client: 50 s if it refused,
15 s and more if it was unreachable, and while it does not answer sends. Only a part of the
cluster is avoided: if all records left every broker that is slow once, the other brokers would be slow next.
(wire: ProducerManager, DefaultBrokerRcvQltyStats, TubeClientConfig; at most 30 % of the brokers there.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tubemq_spark.protocol.metadata import Partition

MAX_AVOIDED_SHARE = 0.3  # of the brokers
SLOW_AFTER = 1.0  # seconds that a send is in flight before its broker counts as slow

_BACKOFF, _MAX_BACKOFF = 0.1, 3.0  # seconds after the first failure, doubled by each further one
_AVOID_LOST, _MAX_AVOID_LOST = 15.0, 120.0
_AVOID_REFUSED = 50.0
_AVOID_FULL, _MAX_AVOID_FULL = 3.0, 50.0
_AVOID_PARTITION = 3.0


class FailureStats(NamedTuple):
    """Failures of a broker, or of a partition, since its last success.

    `lost` counts connections that broke, could not be opened, or got no answer; `refused` answers of a broker that is
    not in service (503); `full` answers of a broker without memory (419); `failed` failures of a partition. `last` is
    the time of the last failure. `in_flight_since` is the time of the broker's oldest unanswered send, or None.
    Times are seconds on one clock.
    """

    lost: int = 0
    refused: int = 0
    full: int = 0
    failed: int = 0
    last: float = 0.0
    in_flight_since: float | None = None

    @property
    def total(self) -> int:
        return self.lost + self.refused + self.full + self.failed

    @property
    def backoff_until(self) -> float:
        return self.last + _doubled(_BACKOFF, self.total, _MAX_BACKOFF) if self.total else 0.0


class BreakerState(NamedTuple):
    """Nothing is sent before `backoff_until`. Records that may go to any partition are not sent before `avoid_until`.
    Later, one record at a time is tried if `half_open`."""

    backoff_until: float
    avoid_until: float
    half_open: bool


Endpoint = int | Partition
"""The id of a broker, or a partition."""


def breaker_states(endpoints: Mapping[Endpoint, FailureStats], known: int, now: float) -> dict[Endpoint, BreakerState]:
    """Return the state of each broker and partition that failed or is slow. `known` is the number of brokers in the
    cluster, of which a part may be avoided at a time. Any number of partitions may be."""
    failing = {one: stats for one, stats in endpoints.items() if stats.total or _is_slow(stats, now)}
    candidates = [one for one, stats in failing.items() if isinstance(one, int) and _avoid_until(stats, now) > now]
    worst_first = sorted(candidates, key=lambda one: (-failing[one].total, -_oldest_age(failing[one], now), one))
    tolerated = set(candidates).difference(worst_first[: max_avoided(known)])
    return {
        one: BreakerState(
            backoff := stats.backoff_until,
            backoff if one in tolerated else max(backoff, _avoid_until(stats, now)),
            half_open=stats.total > 0,
        )
        for one, stats in failing.items()
    }


def max_avoided(known: int) -> int:
    """Return how many of `known` brokers may be avoided at a time: none if there is only one."""
    return max(1, int(known * MAX_AVOIDED_SHARE)) if known > 1 else 0


def _avoid_until(stats: FailureStats, now: float) -> float:
    seconds = (
        _doubled(_AVOID_LOST, stats.lost, _MAX_AVOID_LOST),
        _AVOID_REFUSED if stats.refused else 0.0,
        _doubled(_AVOID_FULL, stats.full, _MAX_AVOID_FULL),
        _AVOID_PARTITION if stats.failed else 0.0,
    )
    until = stats.last + max(seconds) if stats.total else 0.0
    return max(until, now + SLOW_AFTER) if _is_slow(stats, now) else until


def _doubled(first: float, count: int, ceiling: float) -> float:
    return min(first * 2.0 ** min(count - 1, 30), ceiling) if count else 0.0


def _is_slow(stats: FailureStats, now: float) -> bool:
    return _oldest_age(stats, now) > SLOW_AFTER


def _oldest_age(stats: FailureStats, now: float) -> float:
    return 0.0 if stats.in_flight_since is None else now - stats.in_flight_since
