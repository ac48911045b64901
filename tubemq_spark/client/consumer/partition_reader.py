# SPDX-License-Identifier: Apache-2.0
"""The partition consumer of a task: it reads an exact range of offsets in a working group.

A message passes `FetchLoop` (requests in flight) and `PartitionReader` (exactness, data loss). All requests run under a
`TaskClaim`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from tubemq_spark.client.consumer.broker_requests import GroupRequests
from tubemq_spark.client.consumer.fetch_loop import FetchLoop
from tubemq_spark.client.consumer.fetch_throttle import FetchThrottle
from tubemq_spark.client.consumer.loss_policy import FAIL, LossPolicy
from tubemq_spark.client.consumer.range_to_read import PartitionSnapshot, RangeToRead
from tubemq_spark.client.consumer.retention_check import RetentionCheck
from tubemq_spark.client.consumer.task_claim import TaskClaim
from tubemq_spark.client.heartbeat import HEARTBEAT
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.client.visit_token import NO_TOKEN, VisitToken
from tubemq_spark.errors import DataLossError, PositionMovedError
from tubemq_spark.protocol.claim_id import ClaimId
from tubemq_spark.protocol.data_loss import may_be_replaced, remaining_range, replaced_error, unverified_error
from tubemq_spark.protocol.exact_range import ExactRange
from tubemq_spark.protocol.fetched_batch import FetchedBatch
from tubemq_spark.protocol.metadata import Broker

DEPTH = 4  # fetches in flight
_MAX_LOSSES = 20  # in a row, without a message in between; a store does not lose its beginning so often


class PartitionReader:
    """Reads one range as `claim` in `group`."""

    def __init__(
        self,
        settings: ClientSettings,
        group: str,
        claim: ClaimId,
        wanted: RangeToRead,
        snapshot: PartitionSnapshot,
        *,
        token: VisitToken = NO_TOKEN,
        claim_timeout: float = 45.0,
        loss_policy: LossPolicy = FAIL,
        find_broker: Callable[[Broker], Broker] = lambda broker: broker,
    ) -> None:
        """`group` is a working group. `claim_timeout` is in seconds. `find_broker` is as for
        `TaskClaim`."""
        self._wanted = wanted
        self._loss_policy = loss_policy
        requests = GroupRequests(settings, group, token)
        self._claim = TaskClaim(requests, claim, wanted, snapshot.broker, find_broker, claim_timeout)
        self._retention = RetentionCheck(self._claim, snapshot)
        where = f"{wanted.partition} for group {group}"
        throttle = FetchThrottle(snapshot.flow_rules, bool(wanted.filters), where=where, clock=settings.clock)
        self._loop = FetchLoop(self._claim, throttle)
        self._exact: ExactRange | None = None  # what the reader reads now
        self._depth = 1 if throttle.one_at_a_time else DEPTH

    def __repr__(self) -> str:
        return f"<PartitionReader {self._claim.client_id}: {self._exact!r}>"

    def batches(self) -> Generator[FetchedBatch, None, None]:
        """Yield the range's messages in order, a few thousand at a time.

        The range was read only if the iteration ends without an error. Raise `PartitionOccupiedError` if another
        consumer holds the partition for longer than `claim_timeout` (the wait for siblings has no limit, see
        `ClaimConflict`), `FencedError` if a newer attempt took it over, `DataLossError` or `PositionMovedError` if the
        range is not whole, `TransportError` or `ServerError` if the broker does not answer, or refuses, for longer than
        the settings' `retry_for`.
        """
        heartbeat_period = self._claim.requests.settings.timings.heartbeat_period
        stop_heartbeat = HEARTBEAT().keep(self._claim.send_heartbeat, heartbeat_period)
        start, end = self._wanted.start, self._wanted.end
        losses = 0
        stops_at_gap = True
        try:
            while start < end:
                exact = self._exact = ExactRange(
                    self._wanted.partition,
                    start,
                    end,
                    owns_store=self._wanted.owns_store,
                    stops_at_gap=stops_at_gap,
                    depth=self._depth,
                )
                loss = removed = None
                cut: list[FetchedBatch] = []  # the last batches, which may have messages behind `end`
                try:
                    for batch in self._loop.read(exact):
                        if exact.cut_from is None or batch.begin < exact.cut_from:
                            yield batch
                        else:
                            cut.append(batch)
                    removed = self._retention.loss_in(exact)
                    may_have_missed_cut = removed is not None and removed.offered > exact.end
                    if not may_have_missed_cut:
                        yield from self._loop.read(exact, cut)
                        cut.clear()
                except (DataLossError, PositionMovedError) as error:
                    loss, losses = self._retention.explain(exact, error), 1 if exact.delivered.last else losses + 1
                    if losses > _MAX_LOSSES or (cut and loss.offered <= exact.end):  # `cut` counts as delivered
                        raise self._loss_policy.error(loss) from None
                    self._loss_policy.report(loss, end)
                if removed is not None:
                    self._loss_policy.report(removed, exact.end)
                if loss is None or loss.offered < loss.asked:  # what retention removes had been flushed
                    self._check_replaced(exact, is_whole=removed is None)
                if loss is not None:
                    is_unverified = self._claim.is_doubtful or exact.delivered.is_whole or exact.may_repeat
                    if is_unverified and exact.delivered.last is not None:
                        raise unverified_error(self._wanted.partition, exact.start, end)
                    start, end = remaining_range(start, end, loss, exact.delivered)  # smaller each time: the loop ends
                elif exact.ends_at_gap and (gap := self._retention.gap_at(exact.end)) is not None:
                    self._loss_policy.report(gap, end)
                    start = min(gap.offered, end)
                else:
                    stops_at_gap = stops_at_gap and not exact.ends_at_gap  # else entries that no broker delivers
                    start = exact.end  # before `end` if the range ended early
        finally:
            stop_heartbeat()
            self._claim.release()

    def _check_replaced(self, exact: ExactRange, *, is_whole: bool) -> None:
        """Raise `PositionMovedError` if messages of `exact` took the places of those that were planned. `is_whole`:
        retention removed none of them."""
        wanted, ids, last = self._wanted, self._wanted.ids, exact.delivered.last
        if ids.mark is None or (last is None and not exact.done):
            return
        end = exact.end if exact.done or last is None else last.end  # before a loss, a part was delivered
        # If the tail was lost, the store may have got other messages before its new end.
        known = ids if end == wanted.end and is_whole else ids._replace(last=None)
        last_id = None if last is None else last.key[0]
        is_empty = last_id is None and wanted.owns_store  # all planned entries are of others now
        if (is_empty or may_be_replaced(known, last_id)) and not self._retention.survives(ids.mark):
            raise replaced_error(wanted.partition, exact.start, end)
