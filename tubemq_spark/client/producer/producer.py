# SPDX-License-Identifier: Apache-2.0
"""Producer: sends records to TubeMQ and returns when all of them are stored (batching, retries, delivery guarantees).

Sends are pipelined over one connection to each broker. A record whose send fails is sent again, to another partition if
that is allowed, until `settings.retry_for` seconds have passed since its first failure. So a record may be stored
twice. With a `RecordLookup` no record is: one that a broker may have received is looked up in its partition first.

How a record travels: `SendQueue` → `Partitioner` (which partition) → `Sender` and `BrokerChannel` (the connection) →
outcome → stored, or back to the queue, or `UnresolvedSends`. `Producer.step` joins these parts.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType

from tubemq_spark.client.cluster.deployed_topics import AwayError
from tubemq_spark.client.cluster.session_pool import NO_FAILURES, SESSIONS
from tubemq_spark.client.producer.failure_handler import FailureHandler, SendErrors
from tubemq_spark.client.producer.partitioner import Partitioner
from tubemq_spark.client.producer.run_sender import RunSender
from tubemq_spark.client.producer.send_queue import (
    MAX_AROUND_BODY,
    MAX_BYTES,
    PendingRecord,
    RecordId,
    RecordMetadata,
    SendQueue,
)
from tubemq_spark.client.producer.send_targets import SendTargets
from tubemq_spark.client.producer.sender import Sender
from tubemq_spark.client.producer.unresolved_sends import RecordLookup, UnresolvedSends
from tubemq_spark.client.retries import OUTAGES
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import ConfigError, ProtocolError, TransportError, TubeMQError
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.lifecycle import Answer, SendEvent, SendState
from tubemq_spark.protocol.message import encode_content, encode_payload
from tubemq_spark.protocol.metadata import Partition

_log = logging.getLogger(__name__)

_SUCCESS = ErrCode.SUCCESS  # looked up for each record, which takes time


class Producer:
    """Sends for one thread.

    >>> with Producer(settings) as producer:  # doctest: +SKIP
    ...     producer.send("demo", b"hello")
    ...     producer.flush()

    An error ends the producer, except one about a record that `send` did not accept. Records that were accepted and not
    acknowledged until then may be stored or not.
    """

    def __init__(
        self,
        settings: ClientSettings,
        max_in_flight: int = 1000,
        rows_of: str = "",
        *,
        max_bytes: int = MAX_BYTES,
        lookup: RecordLookup | None = None,
        on_stored: Callable[[PendingRecord, RecordMetadata], None] | None = None,
    ) -> None:
        """At most `max_in_flight` records are in flight on each connection. Unacknowledged records take at most
        `max_bytes`, each with `send_queue.OVERHEAD`, except the last one. Errors call a record
        `row <number> <rows_of>`. `on_stored` is called for each record that is stored."""
        self._leases = ExitStack()
        self._session = self._leases.enter_context(SESSIONS().lease(settings))
        shared = SESSIONS().shared(settings)
        self._queue = SendQueue(max_bytes)
        self._lookup = lookup
        self._partitioner = Partitioner(self._session, shared.health, lookup)
        self._targets = SendTargets(self._session)
        self._sender = Sender(settings, shared.attempts, max_in_flight)
        self._stored: Counter[Partition] = Counter()
        self._errors = SendErrors(rows_of, lambda: (self.acknowledged, self._queue.accepted))
        self._failures = FailureHandler(self._session, self._partitioner, self._targets, self._errors)
        self._unresolved = UnresolvedSends(lookup, settings) if lookup is not None else None
        self._runs = RunSender(settings, self._queue, self._partitioner, self._targets, self._sender, max_in_flight)
        self._on_stored = on_stored
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        return f"<Producer {self.acknowledged} acknowledged, {self._queue.waiting} waiting, {self._sender}>"

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            self.close()

    @property
    def acknowledged(self) -> int:
        """The number of records that are stored."""
        return self._stored.total()

    @property
    def has_failed(self) -> bool:
        """Whether an error has ended the producer."""
        return self._error is not None

    def prepare(self, topic: str) -> None:
        """Start to connect to the brokers of `topic`, if a producer of this process has sent to it before."""
        if not self._session.cluster.missing([topic]):
            self._update_partitioner()
            self._connect_to({one.broker_id for one in self._session.cluster.partitions(topic)}, needed=False)

    def limit(self, topic: str) -> int:
        """Return how many bytes a message's body may have. Raise as `send` for an unknown topic."""
        known = self._targets.limits.get(topic)
        return self._learn_topic(topic, None) if known is None else known

    def send(
        self,
        topic: str,
        body: bytes,
        attributes: bytes = b"",
        msg_type: str | None = None,
        msg_time: str | None = None,
        row: int | None = None,
        *,
        key: bytes | None = None,
        target: tuple[int, int] | None = None,
        record_id: RecordId | None = None,
    ) -> None:
        """Accept a record. Wait while too many are not acknowledged (back-pressure).

        `attributes` are `encode_attributes`'s; `msg_type` and `msg_time` repeat theirs for the broker. Records of one
        `key` go to one partition in their order. `target` is an explicit partition: the ids of broker and partition.
        `record_id` is the record's id for the `RecordLookup`. Raise `ConfigError` if the topic or target is unknown or
        the message is too long for the topic, `TransportError` if the target's broker may be down. Any record accepted
        before may raise `ServerError`, `AuthError`, `TransportError`, `ProtocolError`; these name it.
        """
        limit = self._targets.limits.get(topic)
        if limit is None:
            limit = self._learn_topic(topic, row)
        payload, flag = encode_payload(body, attributes)
        if not payload or len(body) > limit or len(payload) > limit + MAX_AROUND_BODY:
            raise self._errors.wrong_size(row, topic, body, attributes, limit)
        content = encode_content(payload, flag, msg_type, msg_time)
        record = PendingRecord(topic, content, row, self._queue.accepted, record_id)
        queue = None
        if key is not None or target is not None:
            partition = None if target is None else Partition(target[0], topic, target[1])
            if partition is not None and partition not in self._targets.verified:
                self._verify_target(row, partition)
            queue = self._queue.ordered(topic, key, partition, self._partitioner.for_key)
        if self._queue.put(record, queue):
            self.step()
            while self._queue.is_full:
                if not self.step():
                    self._wait()

    def send_together(
        self,
        topic: str,
        bodies: Sequence[bytes],
        attributes: bytes = b"",
        msg_type: str | None = None,
        msg_time: str | None = None,
        first_row: int | None = None,
    ) -> int:
        """Accept the first of several records that differ only in their bodies, and return how many.

        They have no key, target and id; the rows are numbered from `first_row` on. Stop before a record that only
        `send` can take, or refuse; it takes more time for each. Parameters, waiting and errors are those of `send`.
        """
        runs, taken, tells = self._runs, 0, self._unresolved is not None or self._on_stored is not None
        frames = None if tells else runs.frames(topic, bodies, attributes, msg_type, msg_time)
        while frames is not None and taken < len(bodies):
            part = bodies[taken : taken + runs.count]
            moved = self.step()
            self._update_partitioner()
            if self._failures.timeout or not runs.is_usual(topic, frames, part):
                break
            if runs.send(topic, frames, part, None if first_row is None else first_row + taken):
                taken += len(part)
            elif not (moved or self._sender.any_in_flight):
                break
            elif not moved:
                self._wait()
        return taken

    def flush(self) -> Mapping[Partition, int]:
        """Wait until all records are stored, and return how many each partition has stored so far. Raise as `send`."""
        while self._queue.waiting or self._unresolved or self._sender.any_in_flight:
            if not self.step():
                self._wait()
        if self._error is not None:
            raise self._error
        return self._stored

    def close(self) -> None:
        """Release the connections without waiting for records that are not acknowledged."""
        self._sender.close()
        self._leases.close()

    def step(self) -> bool:
        """Receive outcomes, and send what may be sent, without waiting. Return True if any record moved."""
        if self._error is not None:
            raise self._error
        self._queue.begin_batch()
        self._failures.timeout.resume()
        try:
            moved = self._receive()
            self._failures.check_timeout()
            if self._unresolved:
                moved = self._resolve(self._unresolved) or moved
            return self._dispatch() or moved
        except BaseException as error:
            self._error = error  # the outcome of sends in flight is unknown now, so `flush` must fail
            raise
        finally:
            self._failures.timeout.suspend()

    def _wait(self) -> None:
        has_failures = self._failures.timeout or self._unresolved
        waits_for_breaker = self._queue.waiting and self._partitioner.breakers.any_open
        must_poll = has_failures or waits_for_breaker or self._sender.is_connecting or not self._sender.any_in_flight
        self._failures.timeout.resume()
        self._sender.wait(self._session.settings.timings.producer_poll if must_poll else None)
        self._failures.timeout.suspend()

    def _learn_topic(self, topic: str, row: int | None) -> int:
        try:
            problem = self._targets.learn_topic(topic)
        except AwayError as error:
            raise self._errors.cannot_send(row, "", error) from None
        if problem is not None:
            raise ConfigError(f"{self._errors.name(row)}: {problem}")
        self._update_partitioner()
        return self._targets.limits[topic]

    def _verify_target(self, row: int | None, partition: Partition) -> None:
        try:
            exists = self._targets.exists(partition)
        except TransportError as error:
            where = f" to partition {partition.partition_id} on broker {partition.broker_id}"
            raise self._errors.cannot_send(row, where, error) from None
        if not exists:
            raise self._errors.unknown_target(row, partition)
        self._partitioner.require(partition)
        self._targets.verified.add(partition)

    def _dispatch(self) -> bool:
        """Give records to the channels as far as these take them. Return True if there were any."""
        queue, choose = self._queue, self._partitioner.choose
        before = queue.waiting
        if not before:
            return False
        if self._lookup is not None:
            self._lookup.check_attempt()
        self._update_partitioner()
        self._targets.renew()
        self._connect()
        partitions = queue.partitions()
        while partitions:  # one record for each in turn
            partitions = [one for one in partitions if self._partitioner.accepts(one) and self._send_next(one)]
        if not self._sender.recently_connecting:
            for topic, records in queue.unordered():
                while records and (partition := choose(topic)) is not None:
                    self._submit(queue.pop_unordered(topic), partition)
        if queue.waiting == before:
            return False
        self._sender.flush()
        return True

    def _send_next(self, partition: Partition) -> bool:
        record = self._queue.pop(partition)
        if record is not None:
            self._submit(record, partition)
        return record is not None

    def _submit(self, record: PendingRecord, partition: Partition) -> None:
        channel = self._sender.connected[partition.broker_id]
        if self._unresolved is not None and record.record_id is not None:
            record.earliest_offset = self._unresolved.earliest_offset(partition)
        try:
            channel.submit(record, partition, self._targets[partition])
        except ProtocolError as cause:
            record.on(SendEvent.REFUSED)
            raise ConfigError(f"{self._errors.name(record.row)} is too long for {channel.broker}: {cause}") from None
        if channel.is_full or self._partitioner.breakers.any_open:
            self._partitioner.sent(record)

    def _update_partitioner(self) -> None:
        if self._partitioner.update(self._sender.connected):
            self._queue.reroute(self._partitioner.for_key)

    def _connect(self) -> None:
        """Open the connections that waiting records need."""
        self._sender.open_channels()
        self._connect_to({one.broker_id for one in self._queue.partitions()}, needed=True)
        for topic, _ in self._queue.unordered():
            brokers = self._partitioner.brokers(topic)
            self._connect_to(brokers, needed=False)
            if not self._sender.recently_connecting and self._partitioner.is_blocked(topic):
                self._connect_to(brokers, needed=True)
        for broker, error in self._sender.take_failures():
            self._failures.unreachable(broker, error, list(self._waiting_for(broker.broker_id)))

    def _connect_to(self, broker_ids: Iterable[int], *, needed: bool) -> None:
        partitioner, sender = self._partitioner, self._sender
        for broker_id in broker_ids:
            if not sender.has_channel(broker_id) and partitioner.may_connect(broker_id, needed=needed):
                broker = self._session.cluster.brokers[broker_id]
                sender.connect(broker, is_awaited=not partitioner.breakers.is_half_open(broker_id))

    def _waiting_for(self, broker_id: int) -> Iterable[tuple[PendingRecord, Partition]]:
        """Yield the first record for each partition, and for each topic, that can be sent to no other broker."""
        for partition in self._queue.partitions():
            if partition.broker_id == broker_id:
                yield self._queue.first(partition), partition
        for topic, records in self._queue.unordered():
            partitions = [one for one in self._partitioner.partitions(topic) if one.broker_id == broker_id]
            if partitions and not self._partitioner.brokers(topic) & self._sender.connected.keys():
                yield records[0], partitions[0]

    def _receive(self) -> bool:
        """Handle the outcomes of sends. Return True if there were any."""
        partitioner, rejecting = self._partitioner, self._failures.rejecting
        stored, release, health = self._stored, self._queue.release, partitioner.breakers.health
        tells = self._unresolved is not None or self._on_stored is not None
        received = 0
        failed: list[PendingRecord] = []
        refusal: TubeMQError | None = None
        for channel, outcomes in self._sender.poll():
            received += len(outcomes)
            is_acknowledged = bool(channel.acknowledged)
            if is_acknowledged:
                received += self._runs.take_stored(channel, stored)
                rejecting.discard(channel.broker.broker_id)
            if channel.is_broken and outcomes:  # a connection without sends may end; a new one is opened when needed
                partitioner.broker_failed(channel.broker.broker_id, "lost")
            for record, outcome in outcomes:
                if isinstance(outcome, Answer) and outcome.errCode == _SUCCESS:
                    record.acknowledged()
                    is_acknowledged = True
                    partition = record.partition
                    stored[partition] += 1
                    release(record)
                    if record.failures:
                        self._failures.stored(record)
                    if health.failures is not NO_FAILURES:
                        partitioner.succeeded(partition)
                    if rejecting:
                        rejecting.discard(partition.broker_id)
                    if tells:
                        where = partition, outcome.messageId, outcome.appendOffset, outcome.appendTime
                        self._tell(record, RecordMetadata(*where))
                else:
                    try:
                        store_once = self._unresolved is not None and record.record_id is not None
                        self._failures.handle(record, channel, outcome, store_once=store_once)
                    except TubeMQError as error:
                        refusal = refusal or error
                    failed.append(record)
            if is_acknowledged:
                OUTAGES().worked(_log, channel.broker)
            if channel.is_broken and self._unresolved is not None:
                self._unresolved.forget_offsets(channel.broker.broker_id)
        if refusal is not None:  # after all acknowledged records were counted
            raise self._errors.refused(refusal)
        for record in reversed(failed):
            if self._unresolved is not None and record.state is SendState.UNRESOLVED:
                self._unresolved.add(record)
            else:
                self._queue.requeue(record, self._partitioner.for_key)
        return received > 0

    def _tell(self, record: PendingRecord, stored: RecordMetadata) -> None:
        if self._unresolved is not None and stored.offset is not None:
            self._unresolved.stored_at(stored.partition, stored.offset)
        if self._on_stored is not None:
            self._on_stored(record, stored)

    def _resolve(self, unresolved: UnresolvedSends) -> bool:
        """Find out whether unresolved records are stored. Return True if that is known of any now."""
        self._update_partitioner()  # `_dispatch` does not, if no record waits
        may_connect, left = self._partitioner.may_connect, self._failures.timeout.left
        found, missing = unresolved.resolve(lambda one: may_connect(one.broker_id, needed=True), left)
        for record, stored in found:
            record.on(SendEvent.FOUND)
            self._stored[record.partition] += 1
            self._queue.release(record)
            self._failures.stored(record)
            self._tell(record, stored)
        for record in reversed(missing):
            record.on(SendEvent.NOT_FOUND)
            self._queue.requeue(record, self._partitioner.for_key)
        return bool(found or missing)
