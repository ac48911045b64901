"""What to do about a partition that somebody else holds: take it over, wait for it, or give up.

Tasks and drivers decide this in the same way. A broker's 410 names the holder, and `ClaimId.relation` tells what the
holder is to the client that asks.

* A predecessor is told to go. That does not cancel a fetch which the broker handles at that moment: the fetch moves the
  cursor of the next owner, who skips messages and cannot know (wire: DefaultOffsetManager.bookOffset). So whoever reads
  after a takeover reads twice and compares, see `RangeToRead.verify`.
* A sibling, another scan of the same micro-batch or application, gives the partition back when it has read its range.
  The wait for it has no limit; a dead one's claim expires at the broker. Who waits for a sibling must hold nothing that
  a sibling may wait for.
* Anybody else is waited for up to `tubemq.claim.timeoutMs`.
"""

from __future__ import annotations

import logging
import random
import time
from collections import Counter

from tubemq_spark.client.backoff import Deadline, delays
from tubemq_spark.errors import FencedError, PartitionOccupiedError, TubeMQError
from tubemq_spark.protocol.claim_id import ClaimId, Relation

_log = logging.getLogger(__name__)

_FIRST_PAUSE = 0.02  # seconds: a sibling may need no longer for a short range
_LONGEST_PAUSE = 0.5  # seconds
_SIBLING_SAID_AFTER = 10.0  # seconds: to take turns is nothing to tell of
_SAID_AGAIN_AFTER = 60.0  # seconds


class ClaimConflict:
    """One wait of `claim` for one partition or several. It begins when it is made and ends when they are had."""

    def __init__(self, claim: ClaimId, group: str, claim_timeout: float, retry_for: float) -> None:
        """`claim_timeout` is how many seconds to wait for others than siblings, `retry_for` for how many seconds a
        broker may go on naming predecessors that were told to go."""
        self._claim = claim
        self._group = group
        self._claim_timeout = claim_timeout
        self._retry_for = retry_for
        self._began = time.monotonic()
        self._occupied: Deadline | None = None  # since the first holder that is no sibling
        self._fencing: Deadline | None = None  # since the first predecessor
        self._fenced: Counter[str] = Counter()  # how many holders were told to go, by place
        self._delays = delays(_FIRST_PAUSE, _LONGEST_PAUSE)
        self._unsure: set[str] = set()
        self._must_pause = False
        self._limits: list[float] = []  # seconds that may still be waited for holders of this round
        self._say_at: dict[str, float] = {}  # when the next line about a holder is due

    def __repr__(self) -> str:
        return f"<Waiting of {self._claim} since {time.monotonic() - self._began:.1f} s>"

    def meet(self, where: str, holder: str, *, was_ours: bool = False) -> bool:
        """The partition at `where` is held by the client `holder`. True when the caller has to take it from that one
        now; False when the caller has to try again, after a `pause` in either case. `was_ours` says that the caller's
        run had the partition before: then a run that looks newer is no dead one.

        `FencedError` when the holder replaces the caller, or a run that looks newer keeps the partition for too long.
        `PartitionOccupiedError` when any other does, but for siblings.
        """
        held_by = ClaimId.parse(holder)
        relation = Relation.FOREIGN if held_by is None else self._claim.relation(held_by)
        if relation is not Relation.SIBLING:
            self._unsure.add(where)
        if relation is Relation.PREDECESSOR:
            self._fence(where, holder)
            return True
        if relation is Relation.UNCLEAR and was_ours:
            raise FencedError(
                f"{where}: a newer run of this query, {holder}, has taken the partition over. Check that the query "
                "does not run twice",
                holder=holder,
            )
        if relation is Relation.SUCCESSOR:
            raise FencedError(
                f"{where}: {self._claim} is too late, the newer attempt {holder} has the partition", holder=holder
            )
        if relation is not Relation.SIBLING:
            self._occupied = self._occupied or Deadline(self._claim_timeout)
            if self._occupied.passed:
                raise self._gave_up(where, holder, relation)
            self._limits.append(self._occupied.left)
        self._must_pause = True
        self._say(where, holder, relation)
        return False

    def is_unsure(self, where: str) -> bool:
        """Whether a holder was met at `where` who may have gone with fetches under way: anybody but a sibling, which
        gives a partition back when all its fetches are answered, or never."""
        return where in self._unsure

    def pause(self) -> None:
        """Sleeps before the next try, if that is to wait at all. The pauses of two who wait differ, so that each of
        them has its turn some time."""
        if not self._must_pause:
            return
        seconds = min([next(self._delays) * random.uniform(0.5, 1.0), *self._limits])
        self._must_pause, self._limits = False, []
        time.sleep(max(seconds, 0.01))

    def _fence(self, where: str, holder: str) -> None:
        told = self._fenced[where]
        self._fencing = self._fencing or Deadline(self._retry_for)
        if told == 0:
            _log.info("%s: taking over from the earlier attempt %s", where, holder)
        elif self._fencing.passed:
            raise PartitionOccupiedError(
                f"{where}: an earlier attempt holds the partition, although the broker was told {told} times in "
                f"{self._retry_for:g} s to end such claims: {holder}. Check the broker's log for what it refuses",
                holder=holder,
            )
        self._fenced[where] += 1
        self._must_pause = told > 0

    def _gave_up(self, where: str, holder: str, relation: Relation) -> TubeMQError:
        if relation is Relation.UNCLEAR:
            return FencedError(
                f"{where}: a run of this query that began later, {holder}, keeps the partition for more than "
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
            f"{self._claim_timeout:g} s: {_named(holder)}. Stop it, or use another tubemq.group",
            holder=holder,
        )

    def _say(self, where: str, holder: str, relation: Relation) -> None:
        """A line at times, so that nobody wonders why nothing happens. A holder may be dead: its claim ends soon."""
        now = time.monotonic()
        due = self._say_at.get(holder, self._began + _SIBLING_SAID_AFTER if relation is Relation.SIBLING else 0.0)
        if now < due:
            return
        self._say_at[holder] = now + _SAID_AGAIN_AFTER
        if relation is Relation.SIBLING:
            _log.warning(
                "%s: another scan of the same data reads the partition, %s; waiting for its end, for %.0f s now",
                where, _named(holder), now - self._began,
            )  # fmt: skip
        else:
            _log.warning(
                "%s: another consumer of group %s holds the partition, %s; waiting for it up to %g s",
                where, self._group, _named(holder), self._claim_timeout,
            )  # fmt: skip


def _named(holder: str) -> str:
    """The client id, and what it tells people."""
    held_by = ClaimId.parse(holder)
    if held_by is None or not held_by.label:
        return holder
    return f"{holder} (of a Spark query on {', '.join(held_by.label.split('+'))})"
