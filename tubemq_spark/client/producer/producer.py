# SPDX-License-Identifier: Apache-2.0
"""Producer: sends records to TubeMQ and returns when all of them are stored (batching, retries, delivery guarantees).

Sends are pipelined over one connection to each broker. A record whose send fails is sent again, to another partition if
that is allowed, until `settings.retry_for` seconds have passed since its first failure. So a record may be stored
twice. With a `RecordLookup` no record is: one that a broker may have received is looked up in its partition first.

How a `RecordBatch` travels: `SendQueue` → `Partitioner` (which partition) → `Sender` and `BrokerChannel` (the
connection) → outcome → stored, or back to the queue, or `UnresolvedSends`. `Producer.step` joins these parts.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType

from tubemq_spark.client.cluster.deployed_topics import TopicUnavailableError
from tubemq_spark.client.cluster.session_pool import SESSIONS
from tubemq_spark.client.net.broker_identity import ExpectedBroker
from tubemq_spark.client.net.pool import POOL
from tubemq_spark.client.producer.failure_handler import FailureHandler, SendErrors
from tubemq_spark.client.producer.partitioner import Partitioner
from tubemq_spark.client.producer.record_batch import Record, RecordBatch, RecordId, RecordPlaces
from tubemq_spark.client.producer.send_queue import DEFAULT_LIMITS, SendLane, SendLimits, SendQueue
from tubemq_spark.client.producer.send_targets import SendTargets
from tubemq_spark.client.producer.sender import Sender
from tubemq_spark.client.producer.unresolved_sends import RecordLookup, UnresolvedSends
from tubemq_spark.client.retries import OUTAGES
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import ConfigError, ProtocolError, TransportError, TubeMQError
from tubemq_spark.protocol.constants import MESSAGE_SIZE_SLACK, STORE_DATA_HEADER_LEN
from tubemq_spark.protocol.message import encode_headers
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.send_acks import SendAck
from tubemq_spark.protocol.send_outcome import Fate

_log = logging.getLogger(__name__)

_PRODUCER_POLL = 0.02  # seconds; between two looks at conditions that no socket signals

# Attributes may make a payload longer than the limit by so many bytes. The broker accepts more, but delivers such a
# message only from a file: while it is in memory, consumers are led past it (wire: MsgMemStore.getMessages compares
# the whole record with the limit of the payload).
MAX_AROUND_BODY = MESSAGE_SIZE_SLACK - STORE_DATA_HEADER_LEN

OnStored = Callable[[Sequence[int | None], Sequence[RecordId | None], RecordPlaces], None]
"""Takes the rows, the ids and the places of records."""


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
        limits: SendLimits = DEFAULT_LIMITS,
        rows_of: str = "",
        *,
        lookup: RecordLookup | None = None,
        on_stored: OnStored | None = None,
        before_sending: Callable[[], None] | None = None,
    ) -> None:
        """Errors call a record `row <number> <rows_of>`. `on_stored` is called with records that are stored.

        `before_sending` is called whenever records are about to be sent, also during back-pressure and flush. An error
        that it raises ends the producer.
        """
        self._leases = ExitStack()
        self._session = self._leases.enter_context(SESSIONS().lease(settings))
        shared = SESSIONS().shared(settings)
        self._partitioner = Partitioner(self._session, shared.health, lookup)
        self._queue = SendQueue(self._partitioner.for_key, limits)
        self._targets = SendTargets(self._session, are_looked_up=lookup is not None)
        wants_answers = lookup is not None or on_stored is not None
        self._sender = Sender(settings, shared.attempts, limits.in_flight, wants_answers=wants_answers)
        self._stored: Counter[Partition] = Counter()
        self._errors = SendErrors(rows_of, lambda: (self.acknowledged, self._queue.accepted))
        self._failures = FailureHandler(self._session, self._partitioner, self._targets, self._errors)
        self._unresolved = UnresolvedSends(lookup, settings, self._ping, self._failures.timeout.left)
        self._on_stored = on_stored
        self._before_sending = before_sending
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
        return self._targets.limits.get(topic) or self._learn_topic(topic, None)

    def check(self, topic: str, target: Partition | None = None) -> None:
        """Raise as `send` if the topic or the partition is unknown."""
        self.limit(topic)
        if target is not None:
            self._verify_target(None, target)

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
        limit = self._targets.limits.get(topic) or self._learn_topic(topic, row)
        (header,) = encode_headers([attributes])
        size = len(header) + len(body)
        if not size or len(body) > limit or size > limit + MAX_AROUND_BODY:
            raise self._errors.wrong_size(row, topic, body, attributes, limit)
        partition = None if target is None else Partition(target[0], topic, target[1])
        if partition is not None and partition not in self._targets.verified:
            self._verify_target(row, partition)
        if self._queue.put(topic, partition, Record(header, body, (msg_type, msg_time), row, record_id, key)):
            self._step_while_full()

    def send_together(
        self,
        topic: str,
        bodies: Sequence[bytes],
        attributes: bytes | Sequence[bytes] = b"",
        msg_type: str | None = None,
        msg_time: str | None = None,
        first_row: int | None = None,
        *,
        keys: Sequence[bytes] | None = None,
    ) -> bool:
        """Accept several records of one type and time, which is faster than `send` for each.

        They have no target and id; the rows are numbered from `first_row` on. The attributes may be the same for all.
        Return False, and accept none, if there is a record that `send` may refuse. Other parameters, waiting and errors
        are those of `send`.
        """
        try:
            limit = self.limit(topic)
        except ConfigError:
            return False
        count = len(bodies)
        if isinstance(attributes, bytes):
            headers = encode_headers([attributes]) * count
        else:
            headers = encode_headers(attributes)
        longest, around = max(map(len, bodies)), max(map(len, headers))
        if not (all(headers) or all(bodies)) or longest > limit or longest + around > limit + MAX_AROUND_BODY:
            return False
        nothing: Sequence[None] = [None] * count
        rows = nothing if first_row is None else range(first_row, first_row + count)
        columns = headers, bodies, [(msg_type, msg_time)] * count, rows, nothing, keys or nothing
        start = 0
        while start < count:
            start = self._queue.put_together(topic, columns, start, by_key=keys is not None)
            if self._queue.is_due:
                self._step_while_full()
        return True

    def flush(self) -> Mapping[Partition, int]:
        """Wait until all records are stored, and return how many each partition has stored so far. Raise as `send`."""
        self._step_until(lambda: not (self._queue.waiting or self._unresolved or self._sender.any_in_flight))
        return self._stored

    def close(self) -> None:
        """Release the connections without waiting for records that are not acknowledged."""
        self._sender.close()
        self._leases.close()

    def step(self) -> bool:
        """Receive outcomes, and send what may be sent, without waiting. Return True if any record was sent."""
        if self._error is not None:
            raise self._error
        self._queue.begin_step()
        self._failures.timeout.resume()
        try:
            self._receive()
            if (expired := self._failures.timeout.expired(self._queue, self._unresolved)) is not None:
                raise self._errors.timed_out(*expired)
            self._resolve()
            return self._dispatch()
        except BaseException as error:
            self._error = error  # the outcome of sends in flight is unknown now, so `flush` must fail
            raise
        finally:
            self._failures.timeout.suspend()

    def _step_while_full(self) -> None:
        self.step()
        if self._queue.is_full:
            before = self._queue.bytes
            self._step_until(lambda: self._queue.has_room(before))

    def _step_until(self, is_done: Callable[[], bool]) -> None:
        while True:
            if self.step():
                continue  # what it has sent may have been answered
            if is_done():
                return
            self._wait()

    def _wait(self) -> None:
        has_failures = self._failures.timeout.any_failed or self._unresolved
        waits_for_backoff = self._queue.waiting and self._partitioner.any_failing
        must_poll = has_failures or waits_for_backoff or self._sender.is_connecting or not self._sender.any_in_flight
        self._sender.wait(_PRODUCER_POLL if must_poll else None)
        self._failures.timeout.suspend()

    def _learn_topic(self, topic: str, row: int | None) -> int:
        try:
            self._targets.learn_topic(topic)
        except TopicUnavailableError as error:
            raise self._errors.cannot_send(row, "", error) from None
        except ConfigError as error:
            raise ConfigError(f"{self._errors.name(row)}: {error}") from None
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
        before = self._queue.waiting
        if not before:
            return False
        self._update_partitioner()
        self._targets.renew()
        self._connect()
        if self._before_sending is not None:
            self._before_sending()  # after what may take long
        lanes = self._queue.lanes()
        while lanes:  # a batch for each in turn
            lanes = [lane for lane in lanes if self._send_next(lane)]
        if self._queue.waiting == before:
            return False
        self._sender.flush()
        return True

    def _send_next(self, lane: SendLane) -> bool:
        """Send the next batch of a lane if that is possible now."""
        if lane.partition is not None:
            room = self._partitioner.room_for_bound(lane.partition)
            batch = self._queue.take(lane, room) if room else None
            if batch is not None:
                self._submit(batch, lane.partition)
            return batch is not None
        if not lane.waiting or self._sender.recently_connecting:
            return False
        parts = self._partitioner.spread(lane.id.topic, len(lane.waiting[0]))
        batch = self._queue.take(lane, max(part.stop for _, part in parts)) if parts else None
        if batch is None:
            return False
        for partition, part in parts:
            self._submit(batch.cut(part) if len(parts) > 1 else batch, partition)
        return True

    def _submit(self, batch: RecordBatch, partition: Partition) -> None:
        channel = self._sender.connected[partition.broker_id]
        batch.partition = partition
        try:
            channel.submit(batch, self._targets[partition])
        except ProtocolError as cause:
            raise ConfigError(
                f"{self._errors.name(batch.rows[0])}, or one behind it, is too long for {channel.broker}: {cause}"
            ) from None
        if not channel.room or self._partitioner.any_failing:
            self._partitioner.sent(batch)

    def _update_partitioner(self) -> None:
        if self._partitioner.update(self._sender.connected):
            self._queue.reroute()

    def _connect(self) -> None:
        """Open the connections that waiting records need."""
        lanes = self._queue.lanes()
        self._connect_to({lane.partition.broker_id for lane in lanes if lane.partition is not None}, needed=True)
        topics = {lane.id.topic for lane in lanes if lane.partition is None}
        for topic in topics:
            self._connect_to(self._partitioner.brokers(topic), needed=False)
        for broker, error in list(self._sender.open_channels()):
            self._failures.unreachable(broker, error, list(self._waiting_for(broker.broker_id)))
        for topic in topics:
            if not self._sender.recently_connecting and self._partitioner.is_blocked(topic):
                self._connect_to(self._partitioner.brokers(topic), needed=True)

    def _connect_to(self, broker_ids: Iterable[int], *, needed: bool) -> None:
        partitioner, sender = self._partitioner, self._sender
        for broker_id in broker_ids:
            if not sender.has_channel(broker_id) and partitioner.may_connect(broker_id, has_choice=not needed):
                broker = self._session.cluster.brokers[broker_id]
                sender.connect(broker, is_awaited=not partitioner.has_failed(broker_id))

    def _waiting_for(self, broker_id: int) -> Iterator[tuple[RecordBatch, Partition]]:
        """Yield the first batch for each partition, and for each topic, that can be sent to no other broker."""
        for lane in self._queue.lanes():
            if lane.partition is not None:
                if lane.partition.broker_id == broker_id:
                    yield lane.first(), lane.partition
                continue
            topic = lane.id.topic
            partitions = [one for one in self._partitioner.partitions(topic) if one.broker_id == broker_id]
            if partitions and not self._partitioner.brokers(topic) & self._sender.connected.keys():
                yield lane.first(), partitions[0]

    def _receive(self) -> None:
        """Handle the outcomes of sends."""
        failures: list[tuple[RecordBatch, Fate]] = []
        refusal: TubeMQError | None = None
        for channel, stored, failed in self._sender.poll():
            for batch, start, end, answers in stored:
                self._count_stored(batch, start, end)
                if self._on_stored is not None:
                    self._report_stored(batch, start, answers)
            if stored:
                self._failures.rejecting.discard(channel.broker.broker_id)
                OUTAGES().worked(_log, channel.broker)
            if channel.is_broken and failed:  # a connection without sends may end; a new one is opened when needed
                self._partitioner.health.failed(channel.broker.broker_id)
            for one in failed:
                try:
                    failures.append((one.batch, self._failures.handle(one.batch, channel, one.outcome)))
                except TubeMQError as error:
                    refusal = refusal or error
        if refusal is not None:  # after all acknowledged records were counted
            raise self._errors.refused(refusal)
        for batch, fate in reversed(failures):
            if self._must_resolve(batch, fate):
                self._unresolved.add(batch)
            else:
                self._queue.put_back(batch)

    def _must_resolve(self, batch: RecordBatch, fate: Fate) -> bool:
        """Whether records must not be sent again before it is known if they are stored, or if they arrive later."""
        if fate is Fate.UNKNOWN and batch.lane.partition is not None and any(key is not None for key in batch.keys):
            return True
        return fate is not Fate.NOT_STORED and any(one is not None for one in batch.ids)

    def _count_stored(self, batch: RecordBatch, start: int, end: int) -> None:
        partition, count = batch.partition, end - start
        self._stored[partition] += count
        self._queue.release(batch, start, end)
        if batch.failure is not None:
            OUTAGES().worked(_log, partition)
        if self._partitioner.health.failing:
            self._partitioner.health.succeeded(partition)

    def _report_stored(self, batch: RecordBatch, start: int, answers: Sequence[SendAck]) -> None:
        """Tell where records are stored, the first of which is at `start` in the batch."""
        assert self._on_stored is not None
        part, message_ids = slice(start, start + len(answers)), [one.messageId for one in answers]
        offsets, times = [one.appendOffset for one in answers], [one.appendTime for one in answers]
        self._on_stored(batch.rows[part], batch.ids[part], RecordPlaces(batch.partition, message_ids, offsets, times))

    def _resolve(self) -> None:
        """Find out whether unresolved records are stored."""
        if not self._unresolved:
            return
        self._update_partitioner()  # `_dispatch` does not, if no record waits
        may_connect = self._partitioner.may_connect
        resolved = self._unresolved.resolve(
            lambda one: may_connect(one.broker_id, has_choice=False), self._partitioner.is_gone
        )
        for batch, stored in reversed(resolved):
            missing = [at for at, where in enumerate(stored) if where is None]
            for at, where in enumerate(stored):
                if where is not None:
                    self._count_stored(batch, at, at + 1)
                    if self._on_stored is not None:
                        self._on_stored([batch.rows[at]], [batch.ids[at]], where.places)
            if missing:
                self._queue.put_back(batch.only(missing))

    def _ping(self, broker_id: int) -> None:
        """Wait for an answer of a broker. Raise `TransportError` if it gives none."""
        settings = self._session.settings
        try:
            broker = self._session.known_broker(broker_id)
            if broker is None:
                raise TransportError("the masters do not list it")
            server = ExpectedBroker(broker, self._session.token)
            with POOL().lease(server, settings, settings.timings.broker_away_after) as connection:
                connection.ping(min(settings.rpc_timeout, settings.timings.broker_away_after))
        except ProtocolError as error:
            raise TransportError(f"broker {broker_id} does not answer: {error}") from None
