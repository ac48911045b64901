"""The partition consumer of a task: it reads an exact range of offsets and leaves the group where it found it.

A message passes `FetchLoop` (requests in flight), `RangeVerifier` (exactness) and `PartitionReader` (data loss). All
requests run under a `TaskClaim`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from tubemq_spark.client.consumer.broker_locator import BrokerLocator
from tubemq_spark.client.consumer.broker_requests import GroupRequests
from tubemq_spark.client.consumer.fetch_loop import FetchLoop
from tubemq_spark.client.consumer.fetch_throttle import FetchThrottle
from tubemq_spark.client.consumer.loss_policy import FAIL, LossPolicy
from tubemq_spark.client.consumer.range_to_read import PartitionSnapshot, RangeToRead
from tubemq_spark.client.consumer.range_verifier import RangeVerifier
from tubemq_spark.client.consumer.task_claim import TaskClaim
from tubemq_spark.client.heartbeat import HEARTBEAT
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.client.visit_token import NO_TOKEN, VisitToken
from tubemq_spark.errors import DataLossError
from tubemq_spark.protocol.claim_id import ClaimId
from tubemq_spark.protocol.data_loss import remaining_range
from tubemq_spark.protocol.fetched_batch import DeliveredLog, FetchedBatch
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
        is_first: bool = True,
        loss_policy: LossPolicy = FAIL,
        find_broker: Callable[[Broker], Broker] = lambda broker: broker,
    ) -> None:
        """`claim_timeout` is in seconds. `is_first` is True if no earlier attempt of this task can have moved the
        group. `find_broker` returns the new address of a broker that cannot be reached."""
        self._wanted = wanted
        self._loss_policy = loss_policy
        self._heartbeat_period = settings.timings.heartbeat_period
        requests = GroupRequests(settings, group, token)
        locator = BrokerLocator(settings, wanted.partition, snapshot.broker, find_broker)
        throttle = FetchThrottle(
            snapshot.flow_rules,
            bool(wanted.filters),
            where=f"{wanted.partition} for group {group}",
            clock=settings.clock,
        )
        self._claim = TaskClaim(
            requests, claim, wanted, snapshot, locator, claim_timeout=claim_timeout, is_first=is_first
        )
        self._loop = FetchLoop(requests, wanted.filters, self._claim, locator, throttle)
        depth = 1 if throttle.one_at_a_time else DEPTH
        self._verifier = RangeVerifier(requests, wanted, self._claim, locator, self._loop, depth)

    def __repr__(self) -> str:
        return f"<PartitionReader {self._claim.client_id}: {self._loop!r}>"

    def batches(self) -> Generator[FetchedBatch, None, None]:
        """Yield the range's messages in order, a few thousand at a time.

        The range was read only if the iteration ends without an error. Raise `PartitionOccupiedError` if another
        consumer holds the partition for longer than `claim_timeout` (the wait for siblings has no limit, see
        `ClaimConflict`), `FencedError` if a newer attempt took it over, `DataLossError` or `PositionMovedError` if the
        range is not whole, `TransportError` or `ServerError` if the broker does not answer, or refuses, for longer than
        the settings' `retry_for`.
        """
        stop_heartbeat = HEARTBEAT.keep(self._claim.send_heartbeat, self._heartbeat_period)
        start, end = self._wanted.start, self._wanted.end
        losses = 0
        try:
            while start < end:
                delivered = DeliveredLog()
                try:
                    yield from self._verifier.read(start, end, delivered)
                    return
                except DataLossError as loss:
                    losses = 1 if delivered.last else losses + 1
                    if losses > _MAX_LOSSES:
                        raise self._loss_policy.error(loss) from None
                    self._loss_policy.report(loss)
                    start, end = remaining_range(start, end, loss, delivered)  # smaller each time, so the loop ends
        finally:
            stop_heartbeat()
            self._claim.release(self._loop.known_position)
