# SPDX-License-Identifier: Apache-2.0
"""Finds out whether retention removed messages of a range before a task had read them.

A broker passes over index entries whose data file is gone, and says nothing (see `first_message`). But it removes the
oldest data first. So the check comes after the last message: if a message before the unproven part of the range is
there then, all behind it was there while the task read it.

It costs nothing if each entry of the range gave its message. It costs one small request while the range is in the
broker's memory, because retention removes closed files only. Otherwise it looks for a message of the task's partition
shortly before the range, under the task's own claim. Only a partition without such a message is compared with others of
its store.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

from tubemq_spark.client.consumer.conversations import Conversation, DirectChannel, hold
from tubemq_spark.client.consumer.first_message import first_message, has_message_before
from tubemq_spark.client.consumer.probe import Prober, ProbeResult
from tubemq_spark.client.consumer.range_to_read import PartitionSnapshot
from tubemq_spark.client.consumer.task_claim import TaskClaim
from tubemq_spark.client.consumer.visitor import Visitor
from tubemq_spark.client.net.rpc import unwrap_reply
from tubemq_spark.errors import DataLossError, FencedError, PositionMovedError, TransportError
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.constants import READ_FILES
from tubemq_spark.protocol.data_loss import loss_of
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.exact_range import ExactRange
from tubemq_spark.protocol.log_fingerprint import Fingerprint
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb

# Entries before the range: most often the partition has a message in the first ones, or in four for each partition.
_LOOK_BACK, _FURTHER = 64, 4000


class _OwnVisitor(Visitor):
    """Visits the partition of a task under the task's own claim."""

    def __init__(self, claim: TaskClaim) -> None:
        super().__init__(claim.requests, lambda _: claim.located_broker(), claim.client_id, claim.filters)
        self._claim = claim

    def failed(self, partition: Partition, error: TransportError) -> None:
        if error.holder and not self._claim.is_sibling(error.holder):
            raise FencedError(f"{error}. What this task read so far is not used", holder=error.holder)
        self._claim.on_disconnect()  # a fetch may be running that nobody waits for
        super().failed(partition, error)


class RetentionCheck:
    """Checks what one task reads under `claim`."""

    def __init__(self, claim: TaskClaim, snapshot: PartitionSnapshot) -> None:
        partition = claim.partition
        others = [partition._replace(partition_id=one) for one in snapshot.store_ids if one != partition.partition_id]
        self._claim = claim
        self._look_group = snapshot.look_group
        self._members = [partition, *others]
        self._others = others  # a topic that was created anew may lack them
        self._first = snapshot.first

    def loss_in(self, exact: ExactRange) -> DataLossError | None:
        """Return the loss of messages in a range that was read to its end; None without one.

        If others share the store, nothing shows which of the lost messages the task had read before. Raise
        `FencedError` if another client took the partition over, else as `Prober.extents`.
        """
        begin = exact.unproven_from
        if begin is None:
            return None
        partition = exact.partition
        own = Prober(_OwnVisitor(self._claim))
        files = own.extents([partition], READ_FILES)[partition]
        if files.end <= begin:
            return None  # all is in memory
        for entries in (max(_LOOK_BACK, 4 * len(self._members)), _FURTHER):
            low = max(0, begin - entries * UNIT)
            if low < begin and own.have_messages([(partition, low, begin)]).get(partition):
                return None
        return self.gap_at(begin)

    def gap_at(self, position: int) -> DataLossError | None:
        """Return the loss of the messages from `position` on, of which the files have none; None if retention did not
        remove them. Raises as `loss_in`."""
        first = self._first_message(position)
        return None if first is None else self._loss(position, first)

    def explain(self, exact: ExactRange, error: DataLossError | PositionMovedError) -> DataLossError:
        """Return the loss of the beginning of the range if retention is the cause of `error`, else raise `error` again,
        or return it. Raises as `loss_in`."""
        delivered = exact.delivered.last
        if isinstance(error, DataLossError) and error.offered > error.asked:  # of the index, and perhaps of more data
            is_checked_later = delivered is None or delivered.end <= error.offered or exact.unproven_from is None
            first = None if is_checked_later else self._first_message(error.offered)
            return error if first is None else self._loss(error.asked, first)
        # A range that was read once more has other messages, too, if retention removed some of them meanwhile.
        begin = delivered.end if delivered is not None and exact.unproven_from is None else exact.start
        first = self._first_message(begin)
        if first is not None:
            return self._loss(begin, first)
        if isinstance(error, DataLossError):
            return error
        raise error

    def survives(self, mark: Fingerprint) -> bool:
        """Return True if the message of the fingerprint is still there: then no message before it was replaced. Also
        if retention removed it, because then it had been flushed. Raise `TransportError` if the broker does not say."""
        with self._looking() as prober:
            found = self._found_at(prober, mark)
            if found is None and mark.partition_id != self._claim.partition.partition_id:
                return False  # the broker lacks the partition: the topic was created anew, with fewer
            if found is None:
                where = self._claim.where
                raise TransportError(f"{where}: the broker does not say what is stored at {mark.position}")
            if found.begin != mark.position or found.is_behind_end:
                return found.begin > mark.position
            if mark.message_id in found.message_ids:
                return True
            return not self._has_message_before(prober, mark.position + UNIT)

    def _first_message(self, position: int) -> int | None:
        """Return the position of the store's first message from `position` on, or the end of the store's files; None if
        a message is there at `position` or before it, or the files end before that."""
        partition = self._claim.partition
        with self._looking() as prober:
            if self._first is not None and self._first.position <= position and self._has(prober, self._first):
                return None
            flushed_end = prober.flushed_ends([partition])[partition]
            if flushed_end <= position or self._has_message_before(prober, position + UNIT):
                return None
            if self._finds_new_partitions() and self._has_message_before(prober, position + UNIT):
                return None
            return first_message(prober, self._members, position, flushed_end, self._others)

    def _has_message_before(self, prober: Prober, position: int) -> bool:
        return has_message_before(prober, self._members, position, self._others)

    def _has(self, prober: Prober, message: Fingerprint) -> bool:
        found = self._found_at(prober, message)
        return found is not None and found.begin == message.position and message.message_id in found.message_ids

    def _found_at(self, prober: Prober, mark: Fingerprint) -> ProbeResult | None:
        """Return what is stored at a fingerprint, None without a clear answer, and if the broker lacks a partition
        that is not the task's own."""
        partition = self._claim.partition._replace(partition_id=mark.partition_id)
        place = partition, mark.position
        optional = () if partition == self._claim.partition else (partition,)
        return prober.probe([place], [place], optional).get(place)

    def _finds_new_partitions(self) -> bool:
        """Add the partitions that the store got after the plan, and return whether there are any. Raise
        `TransportError` if the broker does not answer."""
        known = len(self._members)
        what = f"asking for the partitions of {self._claim.where}"
        hold(DirectChannel(self._claim.requests.settings), {self._claim.partition: self._finding_members}, what)
        return len(self._members) > known

    def _finding_members(self) -> Conversation[None]:
        """A broker refuses a roll-back without a claim in another way than one in a partition that it does not have
        (wire: BrokerServiceServer.consumerCommitC2B)."""
        while True:
            number = 1 + max(one.partition_id for one in self._members)
            candidate = self._claim.partition._replace(partition_id=number)
            request = self._claim.requests.roll_back(self._claim.located_broker(), candidate, self._claim.client_id)
            ((_, outcome),) = yield [request]
            reply = unwrap_reply(outcome, broker_pb.CommitOffsetResponseB2C, request.what)
            if reply.errCode not in (ErrCode.SUCCESS, ErrCode.FORBIDDEN, ErrCode.UNAUTHORIZED):
                raise TransportError(f"{request.what}: {reply.errCode} {reply.errMsg}")
            if reply.errCode != ErrCode.UNAUTHORIZED:
                return
            self._members.append(candidate)

    @contextmanager
    def _looking(self) -> Iterator[Prober]:
        requests = replace(self._claim.requests, group=self._look_group)
        with closing(Visitor(requests, lambda _: self._claim.located_broker())) as visitor:
            yield Prober(visitor)

    def _loss(self, asked: int, offered: int) -> DataLossError:
        text = (
            f"{self._claim.partition}: retention removed the data of [{asked}, {offered}), and not yet their index (or "
            "producers wrote there what no broker delivers: attributes announced, and none there)"
        )
        return loss_of(self._claim.partition, text, asked=asked, offered=offered)
