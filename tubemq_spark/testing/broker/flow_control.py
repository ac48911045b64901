# SPDX-License-Identifier: Apache-2.0
"""Rate limit of reads by the data limits of the default flow rule (wire: ConsumerNodeInfo).

Clients apply the other types of rules, and all rules of groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tubemq_spark.errors import ConfigError, ProtocolError
from tubemq_spark.protocol.flow_rules import LIMIT_PERIOD, SHARE_PERIOD, DataLimit, Limits, time_of_day
from tubemq_spark.testing.clock import Clock

_NO_LIMIT = 1 << 62
_UNLIMITED = DataLimit(0, 2400, 0, _NO_LIMIT, 0)
FIRST_READ = 327_680  # bytes of the first read of a claim


@lru_cache(maxsize=16)  # a broker asks before each read
def parse_data_limits(text: str) -> tuple[DataLimit, ...]:
    """Return the data limits in `text`; `ConfigError` when the admin API would refuse it."""
    if not text.strip():
        raise ConfigError("a flow rule is a JSON list, not blank")
    try:
        return Limits.parse(text).data
    except ProtocolError as error:
        raise ConfigError(str(error)) from error


class ReadQuota:
    """How many bytes one claim may read. Counting starts with the claim's second read."""

    def __init__(self, clock: Clock, transfer_size: int) -> None:
        self._clock = clock
        self._transfer_size = transfer_size
        self._limit = _UNLIMITED
        self._limit_ends = self._share_ends = float("-inf")
        self._read_of_share = self._read_of_limit = 0
        self._share = 0
        self._read_size = FIRST_READ
        self.read_to = -2  # end of the last read in the data file

    def allowed(self, limits: Sequence[DataLimit], max_data_offset: int, escape: bool) -> int:
        """Return the bytes that the next read may return; 0 or less: wait that many milliseconds."""
        if self.read_to < 0:
            return self._read_size
        now = self._clock.now()
        if now > self._limit_ends:
            self._limit = self._limit_for(limits, max_data_offset - self.read_to)
            self._read_of_share = self._read_of_limit = 0
            self._limit_ends, self._share_ends = now + LIMIT_PERIOD, now + SHARE_PERIOD
            self._share = self._limit.per_share
            self._read_size = min(self._share, self._transfer_size)
        elif now > self._share_ends:
            self._read_of_share = 0
            self._share_ends = now + SHARE_PERIOD
        if escape or (self._share > self._read_of_share and self._limit.per_minute > self._read_of_limit):
            return self._read_size
        return -self._limit.wait_ms

    def count(self, size: int, read_to: int) -> None:
        """Add a read of `size` bytes that ended at `read_to` in the data file."""
        self.read_to = read_to
        self._read_of_share += size
        self._read_of_limit += size

    def _limit_for(self, limits: Sequence[DataLimit], lag: int) -> DataLimit:
        at = time_of_day(self._clock.wall_ms() / 1000)
        fitting = (limit for limit in limits if lag > limit.lag and limit.start <= at <= limit.end)
        return next(fitting, _UNLIMITED)
