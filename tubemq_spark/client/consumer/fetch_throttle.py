"""How fast one reader may fetch, by the rules that the master told and by what the broker answers.

It keeps count as the Java client does (wire: PartitionExt): a data limit is chosen for a minute at a time, for the lag
that the broker reported last, and what was read is counted from then on. Unlike there, no limit is chosen before the
first lag is known.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from tubemq_spark.protocol import flow_rules as flow
from tubemq_spark.protocol.flow_rules import LIMIT_PERIOD, LONGEST_WAIT, SHARE_PERIOD, DataLimit, FlowRule, FlowRules

_log = logging.getLogger(__name__)

_NEGLIGIBLE = 0.01  # seconds: a shorter wait is none (wire: RmtDataCache.releaseIdlePartition)
_LEAST_WAIT = 200  # ms after a 452: no rule has less; a broker whose limit is 0 says 0 to those that escape it
_MEBIBYTE = 1024 * 1024

_MOST_TOLD = 1000
_told: set[str] = set()  # what was logged: a query has a new reader for each range, and its limits are said once


class FetchThrottle:
    """When the reader of one partition may fetch next. It never sleeps; one thread uses it.

    `filtered` tells whether the reader has filters, `where` what it reads and for which group, for the log. `clock` is
    in seconds and never goes back, `wall` in seconds since the epoch.
    """

    def __init__(
        self,
        rules: FlowRules,
        filtered: bool,
        *,
        where: str = "a partition",
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._rules = rules
        self._filtered = filtered
        self._where = where
        self._clock = clock
        self._wall = wall
        self._pause = flow.fetch_pause(rules)
        self._has_limits = any(rule.limits.data for rule in rules)
        self._fetch_at = float("-inf")  # not before
        self._empty = 0  # fetches in a row that found nothing
        self._lag = -1  # bytes, as last reported
        self._limit: tuple[FlowRule, DataLimit] | None = None
        self._limit_ends = self._share_ends = float("-inf")
        self._in_minute = self._in_share = 0  # bytes

    def __repr__(self) -> str:
        return f"<Pacing of {self._where}: next fetch in {self.before_fetch():g} s>"

    @property
    def one_at_a_time(self) -> bool:
        """Whether the rules count on a client that sends a fetch only when the last one was answered."""
        slowest = self._pause[1].wait_ms(filtered=self._filtered, slow=True) if self._pause else 0
        return slowest > 0 or self._has_limits

    @property
    def esc_flow_ctrl(self) -> bool:
        """What the next fetch says as `escFlowCtrl`."""
        return flow.esc_flow_ctrl(self._rules, flow.time_of_day(self._wall()))

    def before_fetch(self) -> float:
        """Seconds to wait before the next fetch is sent, 0 for none."""
        wait = self._fetch_at - self._clock()
        return wait if wait > _NEGLIGIBLE else 0.0

    def heard(self, sizes: Iterable[int], data_lag: int, require_slow: bool) -> None:
        """A fetch succeeded, with messages or without: the bytes of each, which are added up only if there is a limit,
        and what the broker says of the lag in bytes (negative when it does not) and the pace."""
        now = self._clock()
        self._empty = 0
        size = sum(sizes) if self._has_limits else 0
        self._in_share += size
        self._in_minute += size
        if data_lag >= 0:
            self._lag = data_lag
        self._renew(now)
        if self._limit is not None and self._limit[1].is_used_up(self._in_minute, self._in_share):
            rule, limit = self._limit
            what = f"who lags by more than {limit.lag} B reads {limit.per_minute // _MEBIBYTE} MiB a minute at most"
            self._wait(now, limit.wait_ms, rule, what)
        elif self._pause is not None:
            rule, pause = self._pause
            wait_ms = pause.wait_ms(filtered=self._filtered, slow=require_slow)
            if wait_ms:
                self._wait(now, wait_ms, rule, "there is a pause after each fetch")

    def not_found(self) -> None:
        """A fetch found nothing (404). How long to wait if no rule says is the caller's business."""
        now = self._clock()
        self._empty += 1
        self._renew(now)
        found = flow.empty_wait(self._rules, self._empty)
        if found is not None:
            rule, (answers, wait_ms) = found
            what = f"there is a pause after fetches that find nothing, {answers} or more in a row"
            self._wait(now, wait_ms, rule, what, logging.INFO)

    def limited(self, min_limit_ms: int) -> None:
        """The broker refused a fetch as too fast (452), and wants that many milliseconds to go by."""
        now = self._clock()
        self._renew(now)
        self._wait(now, max(min_limit_ms, _LEAST_WAIT), self._rules.default, "the broker limits the speed (452)")

    def _renew(self, now: float) -> None:
        """Begins a minute, or a share of it, where the last one ended. What was just read belongs to the last one."""
        if now > self._limit_ends and self._lag >= 0:
            self._limit = flow.data_limit(self._rules, self._lag, flow.time_of_day(self._wall()))
            self._in_minute = self._in_share = 0
            self._limit_ends, self._share_ends = now + LIMIT_PERIOD, now + SHARE_PERIOD
        elif now > self._share_ends:
            self._in_share = 0
            self._share_ends = now + SHARE_PERIOD

    def _wait(self, now: float, wait_ms: int, rule: FlowRule, what: str, level: int = logging.WARNING) -> None:
        self._fetch_at = max(self._fetch_at, now + min(wait_ms, LONGEST_WAIT) / 1000)
        if wait_ms > LONGEST_WAIT:
            what += f", with waits of {wait_ms / 1000:.0f} s, of which {LONGEST_WAIT / 1000:.0f} s are obeyed at a time"
            level = logging.WARNING
        self._tell(rule, what, level)

    def _tell(self, rule: FlowRule, what: str, level: int) -> None:
        text = f"{self._where} is read more slowly, as the cluster wants it: {what}, by the {rule}"
        if text not in _told:
            if len(_told) >= _MOST_TOLD:
                _told.clear()
            _told.add(text)
            _log.log(level, "%s", text)
