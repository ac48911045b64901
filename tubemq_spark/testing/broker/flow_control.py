"""How fast a broker lets a claim read, by the data limits of the default flow rule (wire: ConsumerNodeInfo).

The other types of rules, and all rules of groups, are the clients' business.
"""

from __future__ import annotations

from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol.flow_rules import LIMIT_PERIOD, SHARE_PERIOD, DataLimit, Limits, time_of_day
from tubemq_spark.testing.clock import Clock

__all__ = ["FIRST_READ", "DataLimit", "ReadQuota", "parse_data_limits"]

_NO_LIMIT = 1 << 62
_UNLIMITED = DataLimit(0, 2400, 0, _NO_LIMIT, 0)
FIRST_READ = 327_680  # bytes of the first read of a claim


def parse_data_limits(text: str) -> list[DataLimit]:
    """The data limits in `text`; `ValueError` when the admin API would refuse it."""
    if not text.strip():
        raise ValueError("a flow rule is a JSON list, not blank")
    try:
        return list(Limits.parse(text).data)
    except ProtocolError as error:
        raise ValueError(str(error)) from error


class ReadQuota:
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
            self._limit_ends, self._share_ends = now + LIMIT_PERIOD, now + SHARE_PERIOD
            self._share = self._limit.per_share
            self._unit = min(self._share, self._transfer_size)
        elif now > self._share_ends:
            self._read_of_share = 0
            self._share_ends = now + SHARE_PERIOD
        if escape or (self._share > self._read_of_share and self._limit.per_minute > self._read_of_limit):
            return self._unit
        return -self._limit.wait_ms

    def took(self, size: int, read_to: int) -> None:
        self.read_to = read_to
        self._read_of_share += size
        self._read_of_limit += size

    def _look_up(self, limits: list[DataLimit], lag: int) -> DataLimit:
        at = time_of_day(self._clock.wall_ms() / 1000)
        fitting = (limit for limit in limits if lag > limit.lag and limit.start <= at <= limit.end)
        return next(fitting, _UNLIMITED)
