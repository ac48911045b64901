# SPDX-License-Identifier: Apache-2.0
"""Sends many records together that differ only in their bodies, as long as nothing unusual happens.

The plain path makes several objects for each record and asks for each where it may go, which takes three times as long
as to encode and send it. So `RunSender` decides once for some hundred records. It sends only what the plain path would
send at once and without a doubt: no record waits or has failed, and all brokers of the topic are connected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tubemq_spark.client.producer.partitioner import Partitioner
from tubemq_spark.client.producer.record_run import RecordRun
from tubemq_spark.client.producer.send_queue import MAX_AROUND_BODY, SendQueue
from tubemq_spark.client.producer.send_targets import SendTargets
from tubemq_spark.client.producer.sender import BrokerChannel, Sender
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.send_frames import SendFrames

_MAX_RECORDS = 256  # that are sent together: written with one system call
_MIN_RECORDS = 16  # fewer are not worth a system call; the plain path collects them
_AROUND = 1024  # bytes of a frame besides body and attributes, at most


class RunSender:
    """The runs of one producer, whose parts are the parameters."""

    def __init__(
        self,
        settings: ClientSettings,
        queue: SendQueue,
        partitioner: Partitioner,
        targets: SendTargets,
        sender: Sender,
        max_in_flight: int,
    ) -> None:
        self.count = min(_MAX_RECORDS, max_in_flight // 4)  # records that are sent together
        self._timeout = settings.rpc_timeout
        self._queue = queue
        self._partitioner = partitioner
        self._targets = targets
        self._sender = sender
        self._frames: SendFrames | None = None  # the last

    def frames(
        self, topic: str, bodies: Sequence[bytes], attributes: bytes, msg_type: str | None, msg_time: str | None
    ) -> SendFrames | None:
        """Return the encoder of such records, or None if `Producer.send` has to check each of them."""
        limit = self._targets.limits.get(topic)
        if limit is None or min(self.count, len(bodies)) < _MIN_RECORDS or not (attributes or all(bodies)):
            return None
        longest = max(map(len, bodies))
        if longest > limit or len(attributes) + longest + 4 > limit + MAX_AROUND_BODY:
            return None
        frames = self._frames
        if frames is None or (frames.attributes, frames.msg_type, frames.msg_time) != (attributes, msg_type, msg_time):
            timeout_ms = max(1, int(self._timeout * 1000))
            frames = self._frames = SendFrames(attributes, msg_type, msg_time, timeout_ms)
        return frames

    def is_usual(self, topic: str, frames: SendFrames, bodies: Sequence[bytes]) -> bool:
        """Whether the plain path would send these records at once, to any partition of `topic`."""
        if self._queue.waiting or self._partitioner.has_failures:
            return False
        brokers = self._partitioner.brokers(topic)
        if not brokers or not brokers <= self._sender.connected.keys():
            return False
        if not all(self._sender.connected[one].connection.can_submit_run(len(bodies)) for one in brokers):
            return False
        self._targets.renew()
        longest = max(map(len, bodies))
        return all(frames.fits(self._targets[one], longest) for one in self._partitioner.partitions(topic))

    def send(self, topic: str, frames: SendFrames, bodies: Sequence[bytes], first_row: int | None) -> bool:
        """Send at most `count` records. Return False if they must wait for answers."""
        count, around = len(bodies), len(frames.attributes) + _AROUND
        if not self._queue.fits(sum(map(len, bodies)) + around * count, count):
            return False
        partitions = self._partitioner.spread(topic, count)
        if not partitions:
            return False
        rows = [None] * count if first_row is None else range(first_row, first_row + count)
        all_of_them = RecordRun(frames, partitions, bodies, rows, self._queue.numbers(count))
        brokers = {one.broker_id for one in partitions}
        for broker_id in brokers:
            run = all_of_them
            if len(brokers) > 1:
                run = run.only([one.broker_id == broker_id for one in partitions])
            self._sender.connected[broker_id].submit_run(run, [self._targets[one] for one in run.partitions])
            self._queue.add_run(run.left_size, len(run))
        self._sender.flush()
        return True

    def take_stored(self, channel: BrokerChannel, stored: Counter[Partition]) -> int:
        """Count the records that the last `poll` of `channel` found acknowledged, also in `stored`; return how many."""
        received = 0
        for partitions, size in channel.acknowledged:
            received += len(partitions)
            stored.update(partitions)
            self._queue.release_run(size, len(partitions))
            if self._partitioner.has_failures:
                for partition in set(partitions):
                    self._partitioner.succeeded(partition)
        return received
