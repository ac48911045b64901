"""How fast a broker lets a claim read, by the flow rules of type 0 (wire: FlowCtrlRuleHandler, ConsumerNodeInfo).

A rule is JSON: `[{"type":0,"rule":[{"start":"08:00","end":"17:59","dltInM":1024,"limitInM":20,"freqInMs":1000}]}]`.
Types 1 and 3 are the clients' business.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

from tubemq_spark.testing.clock import Clock

_ZONE = timezone(timedelta(hours=8))  # the rules' times are in GMT+8, wherever the broker is
_LIMITING = 60.0  # seconds a limit holds before it is looked up again
_SAMPLING = 5.0  # seconds of one share of it
_SHARES = 12
_NO_LIMIT = 1 << 62
FIRST_READ = 327_680  # bytes of the first read of a claim


class DataLimit(NamedTuple):
    """A claim that lags by more than `lag` bytes between `start` and `end` (as hours * 100 + minutes) reads at most
    `per_minute` bytes, and waits `wait_ms` where it would read more. The rule's `dltInM` is taken as bytes."""

    start: int
    end: int
    lag: int
    per_minute: int
    wait_ms: int


_UNLIMITED = DataLimit(0, 2400, 0, _NO_LIMIT, 0)


def parse_data_limits(text: str) -> list[DataLimit]:
    """The rules of type 0 in `text`; `ValueError` when the admin API would refuse it."""
    limits: list[DataLimit] = []
    try:
        for record in json.loads(text):
            if record["type"] == 0:
                limits = [_data_limit(rule) for rule in record["rule"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{text!r} is no flow rule: {error}") from error
    return sorted(limits, key=lambda limit: limit.start)


def _data_limit(rule: dict[str, str | int]) -> DataLimit:
    lag, limit, wait_ms = (int(rule[name]) for name in ("dltInM", "limitInM", "freqInMs"))
    if lag <= 20 or limit < 0 or wait_ms < 200:
        raise ValueError(f"a rule wants dltInM > 20, limitInM >= 0 and freqInMs >= 200, not {rule}")
    return DataLimit(_time(str(rule["start"])), _time(str(rule["end"])), lag, limit * 1024 * 1024, wait_ms)


def _time(text: str) -> int:
    hours, _, minutes = text.partition(":")
    return int(hours) * 100 + int(minutes)


class Pace:
    """What one claim may read. It is counted from the claim's second read on."""

    def __init__(self, clock: Clock, transfer_size: int) -> None:
        self._clock = clock
        self._transfer_size = transfer_size
        self._limit = _UNLIMITED
        self._limit_ends = self._share_ends = float("-inf")
        self._read_of_share = self._read_of_limit = 0
        self._share = 0
        self._unit = FIRST_READ
        self.read_to = -2  # end of the last read in the data file

    def allowed(self, limits: list[DataLimit], max_data_offset: int, escape: bool) -> int:
        """Bytes the next read may have; 0 or less: wait so many milliseconds."""
        if self.read_to < 0:
            return self._unit
        now = self._clock.now()
        if now > self._limit_ends:
            self._limit = self._look_up(limits, max_data_offset - self.read_to)
            self._read_of_share = self._read_of_limit = 0
            self._limit_ends, self._share_ends = now + _LIMITING, now + _SAMPLING
            self._share = self._limit.per_minute // _SHARES
            self._unit = min(self._share, self._transfer_size)
        elif now > self._share_ends:
            self._read_of_share = 0
            self._share_ends = now + _SAMPLING
        if escape or (self._share > self._read_of_share and self._limit.per_minute > self._read_of_limit):
            return self._unit
        return -self._limit.wait_ms

    def took(self, size: int, read_to: int) -> None:
        self.read_to = read_to
        self._read_of_share += size
        self._read_of_limit += size

    def _look_up(self, limits: list[DataLimit], lag: int) -> DataLimit:
        moment = datetime.fromtimestamp(self._clock.wall_ms() / 1000, _ZONE)
        time = moment.hour * 100 + moment.minute
        fitting = (limit for limit in limits if lag > limit.lag and limit.start <= time <= limit.end)
        return next(fitting, _UNLIMITED)
