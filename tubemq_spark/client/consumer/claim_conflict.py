"""Claim conflicts: another client holds a partition, and this module decides whether to fence it, wait, or give up.

Tasks and drivers decide in the same way. A broker's reply 410 names the holder, and `ClaimId.relation` says what the
holder is to the client that wants the partition:

* A predecessor is fenced: its claim is released. This does not cancel a fetch that the broker is already running. Such
  a fetch advances the next owner's cursor, and that owner skips messages without notice (wire:
  DefaultOffsetManager.bookOffset). So the reader that follows reads twice and compares, see `PartitionSnapshot.verify`.
* A sibling is another scan of the same micro-batch or application. It releases the partition when it has read its
  range. The wait for it has no limit; a dead sibling's claim expires at the broker. A client that waits for a sibling
  must hold nothing that a sibling may wait for.
* Any other holder is waited for up to option `tubemq.claim.timeoutMs`.
"""

from __future__ import annotations

import logging
import math
import random
from collections import Counter

from tubemq_spark.client.backoff import Deadline, delays
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import FencedError, PartitionOccupiedError, TubeMQError
from tubemq_spark.protocol.claim_id import ClaimId, Relation

_log = logging.getLogger(__name__)

_SHORTEST_PAUSE = 0.01  # seconds


class ClaimConflict:
    """The wait of `claim` for one or more partitions. It starts when the object is created."""

    def __init__(self, settings: ClientSettings, group: str, claim: ClaimId, claim_timeout: float) -> None:
        """`claim_timeout` limits the wait for holders that are no siblings, in seconds. A broker may name fenced
        predecessors again for the settings' `retry_for`."""
        self._settings = settings
        self._group = group
        self._claim = claim
        self._claim_timeout = claim_timeout
        self._started = settings.clock.monotonic()
        self._wait_ends: Deadline | None = None  # set by the first holder that is neither sibling nor predecessor
        self._fencing_ends: Deadline | None = None  # set by the first predecessor
        self._fenced: Counter[str] = Counter()  # how many holders were fenced, by `where`
        self._doubtful: set[str] = set()
        self._delays = delays(settings.timings.claim_first_pause, settings.timings.claim_max_pause)
        self._longest_pause = 0.0  # seconds; 0 if no holder of this attempt must be waited for
        self._next_log: dict[str, float] = {}  # by holder, on the monotonic clock

    def __repr__(self) -> str:
        return f"<ClaimConflict of {self._claim} for {self._settings.clock.monotonic() - self._started:.1f} s>"

    def must_fence(self, where: str, holder: str, *, was_ours: bool = False) -> bool:
        """Return True if the caller must release the claim of `holder` on the partition at `where` now, False to wait.

        Either way the caller calls `pause` and tries again. With `was_ours` this run held the partition before, so a
        run that looks newer cannot be a dead one.

        Raise `FencedError` if the holder replaces the caller, or a run that looks newer holds the partition for too
        long. Raise `PartitionOccupiedError` if any other holder but a sibling does.
        """
        holder_id = ClaimId.parse(holder)
        relation = Relation.FOREIGN if holder_id is None else self._claim.relation(holder_id)
        if relation is not Relation.SIBLING:
            self._doubtful.add(where)
        if relation is Relation.PREDECESSOR:
            self._count_fenced(where, holder)
            return True
        if relation is Relation.UNCLEAR and was_ours:
            raise FencedError(
                f"{where}: a newer run of this query, {holder}, has taken the partition over. Check that the query "
                "does not run twice",
                holder=holder,
            )
        if relation is Relation.SUCCESSOR:
            raise FencedError(
                f"{where}: {self._claim} is too late, the newer attempt {holder} holds the partition", holder=holder
            )
        limit = math.inf
        if relation is not Relation.SIBLING:
            self._wait_ends = self._wait_ends or Deadline(self._claim_timeout, self._settings.clock)
            if self._wait_ends.passed:
                raise self._timeout_error(where, holder, relation)
            limit = self._wait_ends.left
        self._limit_pause(limit)
        self._log_wait(where, holder, relation)
        return False

    def is_doubtful(self, where: str) -> bool:
        """Return True if a holder at `where` may have left while one of its fetches was running.

        Any holder but a sibling may do so: a sibling releases a partition only after all its fetches were answered.
        """
        return where in self._doubtful

    def pause(self) -> None:
        """Sleep before the next attempt, if a holder must be waited for. The length is random, so that each of two
        waiting clients gets its turn."""
        if not self._longest_pause:
            return
        seconds = min(next(self._delays) * random.uniform(0.5, 1.0), self._longest_pause)
        self._longest_pause = 0.0
        self._settings.clock.sleep(max(seconds, _SHORTEST_PAUSE))

    def _limit_pause(self, seconds: float) -> None:
        seconds = max(seconds, _SHORTEST_PAUSE)
        self._longest_pause = min(seconds, self._longest_pause) if self._longest_pause else seconds

    def _count_fenced(self, where: str, holder: str) -> None:
        count = self._fenced[where]
        self._fencing_ends = self._fencing_ends or Deadline(self._settings.retry_for, self._settings.clock)
        if count == 0:
            _log.info("%s: taking over from the earlier attempt %s", where, holder)
        elif self._fencing_ends.passed:
            raise PartitionOccupiedError(
                f"{where}: an earlier attempt holds the partition, although the broker was told {count} times in "
                f"{self._settings.retry_for:g} s to end such claims: {holder}. Check the broker's log for what it "
                "refuses",
                holder=holder,
            )
        else:
            self._limit_pause(math.inf)
        self._fenced[where] += 1

    def _timeout_error(self, where: str, holder: str, relation: Relation) -> TubeMQError:
        if relation is Relation.UNCLEAR:
            return FencedError(
                f"{where}: a run of this query that began later, {holder}, holds the partition for more than "
                f"{self._claim_timeout:g} s. Check that the query does not run twice",
                holder=holder,
            )
        if relation is Relation.ITSELF:
            return PartitionOccupiedError(
                f"{where}: this very task reads the partition already, for more than {self._claim_timeout:g} s: "
                f"{holder}. A task that reads the same rows twice at once (rdd.zip, rdd.cartesian) waits for itself; "
                "call cache() on one side",
                holder=holder,
            )
        return PartitionOccupiedError(
            f"{where}: another consumer of group {self._group} holds the partition for more than "
            f"{self._claim_timeout:g} s: {_described(holder)}. Stop it, or use another tubemq.group",
            holder=holder,
        )

    def _log_wait(self, where: str, holder: str, relation: Relation) -> None:
        """Log at times what the client waits for. Siblings take turns all the time, so only a long turn is logged."""
        timings, now = self._settings.timings, self._settings.clock.monotonic()
        first = self._started + timings.claim_wait_first_log if relation is Relation.SIBLING else now
        if now < self._next_log.get(holder, first):
            return
        self._next_log[holder] = now + timings.claim_wait_next_log
        if relation is Relation.SIBLING:
            _log.warning(
                "%s: another scan of the same data reads the partition, %s; this one has waited for it for %.0f s",
                where, _described(holder), now - self._started,
            )  # fmt: skip
        else:
            _log.warning(
                "%s: another consumer of group %s holds the partition, %s; waiting for it up to %g s",
                where, self._group, _described(holder), self._claim_timeout,
            )  # fmt: skip


def _described(holder: str) -> str:
    """Return the client id, with the host and application that it names."""
    holder_id = ClaimId.parse(holder)
    if holder_id is None or not holder_id.label:
        return holder
    return f"{holder} (of a Spark query on {', '.join(holder_id.label.split('+'))})"
