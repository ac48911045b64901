"""Exactness of a range: deliver its messages, detect replaced ones, and read again where a fetch may be lost."""

from __future__ import annotations

from collections.abc import Iterator

from tubemq_spark.client.consumer.broker_locator import BrokerLocator
from tubemq_spark.client.consumer.broker_requests import GroupRequests
from tubemq_spark.client.consumer.fetch_loop import FetchLoop
from tubemq_spark.client.consumer.probe import has_message_at
from tubemq_spark.client.consumer.range_to_read import RangeToRead
from tubemq_spark.client.consumer.task_claim import TaskClaim
from tubemq_spark.errors import PositionMovedError, TransportError
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE
from tubemq_spark.protocol.data_loss import ReplacedMessageCheck
from tubemq_spark.protocol.exact_range import ExactRange
from tubemq_spark.protocol.fetched_batch import DeliveredLog, FetchedBatch


class RangeVerifier:
    """Delivers ranges of one partition and verifies that each is exact. `depth` is how many fetches are in flight."""

    def __init__(
        self,
        requests: GroupRequests,
        wanted: RangeToRead,
        claim: TaskClaim,
        locator: BrokerLocator,
        loop: FetchLoop,
        depth: int,
    ) -> None:
        self._requests = requests
        self._wanted = wanted
        self._claim = claim
        self._locator = locator
        self._loop = loop
        self._depth = depth

    def read(self, start: int, end: int, delivered: DeliveredLog) -> Iterator[FetchedBatch]:
        """Yield the batches of [start, end), a part of the wanted range, and record them in `delivered`.

        Raise `DataLossError` or `PositionMovedError` if the range is not whole, else as `FetchLoop.read`.
        """
        check = self._new_check(start, end)
        for batch in self._loop.read(self._new_range(start, end)):
            check.add(batch)
            delivered.add(batch)
            yield batch
        self._raise_if_replaced(check, start, end)
        while self._claim.is_doubtful:
            self._read_again(start, end, delivered)

    def _read_again(self, start: int, end: int, delivered: DeliveredLog) -> None:
        """Read the range once more, and raise `PositionMovedError` if it differs from what was delivered."""
        self._claim.is_doubtful = False
        delivered.restart()
        check = self._new_check(start, end)
        is_same = True
        try:
            for batch in self._loop.read(self._new_range(start, end)):
                check.add(batch)
                is_same = not delivered.add(batch) and is_same
        except ValueError:
            is_same = False
        else:
            self._raise_if_replaced(check, start, end)
        if not is_same or delivered.awaited is not None:
            raise PositionMovedError(
                f"{self._locator.where}: two readings of [{start}, {end}) differ, because a fetch of an earlier "
                "attempt moved the group's position. Run the batch again"
            )

    def _new_range(self, start: int, end: int) -> ExactRange:
        wanted = self._wanted
        return ExactRange(wanted.partition, start, end, owns_store=wanted.owns_store, depth=self._depth)

    def _new_check(self, start: int, end: int) -> ReplacedMessageCheck:
        ids = self._wanted.ids
        if end != self._wanted.end:
            ids = ids._replace(last=None)
        return ReplacedMessageCheck(self._wanted.partition, start, end, ids)

    def _raise_if_replaced(self, check: ReplacedMessageCheck, start: int, end: int) -> None:
        """A broker that has not restarted has replaced no messages."""
        if not self._claim.same_broker and check.finds_replacement and not self._has_last_message(start, end):
            raise check.error()

    def _has_last_message(self, start: int, end: int) -> bool:
        """Return True if the last entry of the range still has the message that it had when the range was planned."""
        last = self._wanted.ids.last if end == self._wanted.end else None
        if last is None:
            return False
        place = self._locator.broker, self._wanted.partition, self._claim.client_id, end - INDEX_MSG_UNIT_SIZE
        try:
            return has_message_at(self._requests, *place, last, back_to=start)
        except TransportError:
            self._claim.on_disconnect()
            raise
