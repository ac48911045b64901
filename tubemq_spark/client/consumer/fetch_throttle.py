# SPDX-License-Identifier: Apache-2.0
"""Rate limit and back-pressure of one reader: when it may fetch next, by the master's rules and the broker's replies.

It counts as the Java client does (wire: PartitionExt): a data limit is chosen for a minute at a time, by the lag that
the broker reported last. Unlike the Java client, it chooses no limit before the first lag is known.
"""

from __future__ import annotations

import logging
from functools import lru_cache

from tubemq_spark.client.clock import SYSTEM_CLOCK, Clock
from tubemq_spark.client.counters import COUNTERS, Count
from tubemq_spark.client.runtime import PerProcess
from tubemq_spark.protocol import flow_rules as flow
from tubemq_spark.protocol.flow_rules import (
    LEAST_DATA_WAIT,
    LIMIT_PERIOD,
    LONGEST_WAIT,
    SHARE_PERIOD,
    DataLimit,
    FlowRule,
    FlowRules,
)

_log = logging.getLogger(__name__)

_NEGLIGIBLE = 0.01  # seconds: a shorter wait is skipped (wire: RmtDataCache.releaseIdlePartition)
_MEBIBYTE = 1024 * 1024


def _log_limit(level: int, text: str) -> None:
    _log.log(level, "[flow-limit] %s", text)


# Logs each limit once, because a query has a new reader for each range.
_log_once = PerProcess(lambda: lru_cache(maxsize=1000)(_log_limit))


class FetchThrottle:
    """Says when the reader of one partition may fetch next. It never sleeps; one thread uses it.

    `filtered` is True if the reader has filters. `where` names the partition and the group in log lines.
    """

    def __init__(
        self, rules: FlowRules, filtered: bool, *, where: str = "a partition", clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._rules = rules
        self._filtered = filtered
        self._where = where
        self._clock = clock
        self._next_fetch = float("-inf")  # not before this moment, on the monotonic clock
        self._empty_fetches = 0  # in a row
        self._pause = flow.fetch_pause(rules)
        self._budget = _DataBudget(rules, clock)

    def __repr__(self) -> str:
        return f"<FetchThrottle of {self._where}: next fetch in {self.seconds_to_wait():g} s>"

    @property
    def one_at_a_time(self) -> bool:
        """Return True if the rules expect a client that sends a fetch only after the reply to the last one."""
        pause = self._pause[1] if self._pause else None
        pauses = pause is not None and any(pause.wait_ms(filtered=self._filtered, slow=slow) for slow in (False, True))
        return pauses or self._budget.has_limits

    @property
    def esc_flow_ctrl(self) -> bool:
        return self._budget.has_limits and flow.esc_flow_ctrl(self._rules, flow.time_of_day(self._clock.time()))

    def seconds_to_wait(self) -> float:
        """Return the seconds to wait before the next fetch is sent, 0 for none."""
        wait = self._next_fetch - self._clock.monotonic()
        return wait if wait > _NEGLIGIBLE else 0.0

    def on_fetched(self, size: int, data_lag: int, require_slow: bool) -> None:
        """Record a successful fetch, with messages or without.

        `size` are the bytes of the messages. `data_lag` is the lag that the broker reported, in bytes, negative for
        none. With `require_slow` the broker asks for the slow pause.
        """
        now = self._clock.monotonic()
        self._empty_fetches = 0
        if exhausted := self._budget.spend(now, size, data_lag):
            rule, limit = exhausted
            what = f"a reader that lags by more than {limit.lag} B reads {limit.per_minute // _MEBIBYTE} MiB a minute"
            self._wait(now, limit.wait_ms, rule, what)
        elif self._pause is not None:
            rule, pause = self._pause
            if wait_ms := pause.wait_ms(filtered=self._filtered, slow=require_slow):
                self._wait(now, wait_ms, rule, "there is a pause after each fetch")

    def on_not_found(self) -> None:
        """Record a fetch that found nothing (404). If no rule names a wait, the caller decides."""
        now = self._clock.monotonic()
        self._empty_fetches += 1
        self._budget.renew(now)
        if found := flow.empty_wait(self._rules, self._empty_fetches):
            rule, (answers, wait_ms) = found
            what = f"there is a pause after fetches that find nothing, {answers} or more in a row"
            self._wait(now, wait_ms, rule, what, logging.INFO)

    def on_limited(self, min_limit_ms: int) -> None:
        """Record that the broker refused a fetch as too fast (452) and demands a wait of that many milliseconds."""
        now = self._clock.monotonic()
        self._budget.renew(now)
        # A broker whose limit is 0 reports 0 to clients that escape it.
        self._wait(now, max(min_limit_ms, LEAST_DATA_WAIT), self._rules.default, "the broker limits the speed (452)")

    def _wait(self, now: float, wait_ms: int, rule: FlowRule, what: str, level: int = logging.WARNING) -> None:
        COUNTERS().add(Count.RATE_LIMITS)
        self._next_fetch = max(self._next_fetch, now + min(wait_ms, LONGEST_WAIT) / 1000)
        if wait_ms > LONGEST_WAIT:
            what += f", with waits of {wait_ms / 1000:.0f} s, of which {LONGEST_WAIT / 1000:.0f} s are obeyed at a time"
            level = logging.WARNING
        _log_once()(level, f"{self._where} is read more slowly, as the cluster demands: {what}, by the {rule}")


class _DataBudget:
    """The bytes that may be read in the present minute, and in the present share of it."""

    def __init__(self, rules: FlowRules, clock: Clock) -> None:
        self.has_limits = any(rule.limits.data for rule in rules)
        self._rules = rules
        self._clock = clock
        self._lag = -1  # bytes, as the broker reported it last
        self._limit: tuple[FlowRule, DataLimit] | None = None
        self._minute_ends = self._share_ends = float("-inf")
        self._in_minute = self._in_share = 0  # bytes

    def spend(self, now: float, size: int, data_lag: int) -> tuple[FlowRule, DataLimit] | None:
        """Count the bytes. Return the limit if it is used up."""
        if not self.has_limits:
            return None
        self._in_share += size
        self._in_minute += size
        if data_lag >= 0:
            self._lag = data_lag
        self.renew(now)
        limit = self._limit
        return limit if limit and limit[1].is_used_up(self._in_minute, self._in_share) else None

    def renew(self, now: float) -> None:
        """Start the next minute, or share, if the last one is over. It does not count what was read before."""
        if not self.has_limits:
            return
        is_over = now > self._minute_ends and self._lag >= 0
        if is_over:
            self._limit = flow.data_limit(self._rules, self._lag, flow.time_of_day(self._clock.time()))
            self._in_minute, self._minute_ends = 0, now + LIMIT_PERIOD
        if is_over or now > self._share_ends:
            self._in_share, self._share_ends = 0, now + SHARE_PERIOD
