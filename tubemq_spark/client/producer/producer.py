"""Sends messages and says when all of them are stored.

Sends are pipelined over one connection to each broker. A message that meets trouble (no answer, a broken connection, an
answer that another partition or a later moment may not give) is sent again, elsewhere if it may go elsewhere, until
`settings.retry_for` seconds have gone by since its first failure. So a message may be stored twice, but none counts as
stored that no broker has acknowledged.

With a `RecordLookup` nothing is stored twice: a message whose send may have been heard is looked for in its partition
before it is sent again.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Protocol

from tubemq_spark.client.cluster.deployed_topics import AwayError
from tubemq_spark.client.cluster.session_pool import SESSIONS
from tubemq_spark.client.outage_log import OUTAGES
from tubemq_spark.client.producer.broker_channel import Answer, BrokerChannel, Outcome
from tubemq_spark.client.producer.channels import Channels
from tubemq_spark.client.producer.delivery_timeout import DeliveryTimeout
from tubemq_spark.client.producer.partitioner import Partitioner
from tubemq_spark.client.producer.pending_record import OrderedQueues, PendingRecord, QueueId, RecordId, RecordMetadata
from tubemq_spark.client.producer.send_targets import SendTargets
from tubemq_spark.client.producer.unresolved_sends import UnresolvedSends
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import ConfigError, ProtocolError, ServerError, TransportError, TubeMQError
from tubemq_spark.protocol.constants import MESSAGE_SIZE_SLACK, STORE_DATA_HEADER_LEN
from tubemq_spark.protocol.envelope import Failure
from tubemq_spark.protocol.errcode import ErrCode, error_for_code, error_for_failure, is_about_visit_token, is_elsewhere
from tubemq_spark.protocol.message import encode_payload
from tubemq_spark.protocol.metadata import Broker, Partition
from tubemq_spark.protocol.producer_lifecycle import SendEvent, may_be_stored, send_event
from tubemq_spark.protocol.send_request import encode_content

_log = logging.getLogger(__name__)

# Messages are put on the wire this many at a time, or when they are this long together: a system call for each would
# cost more than the message.
_BATCH = 128
_BATCH_BYTES = 1 << 20

MAX_BYTES = 64 << 20  # of messages that are not acknowledged, unless told otherwise
OVERHEAD = 1400  # bytes that a message takes besides its content, where it has a key of its own; measured
_SUCCESS, _ACKNOWLEDGED = ErrCode.SUCCESS, SendEvent.ACKNOWLEDGED  # looked up for each message, which takes time
_TICK = 0.02  # seconds between two looks at things that no socket tells of

# The broker takes some bytes more, and gives such a message out only when it is in a file: as long as it is in memory,
# readers are led past it (wire: MsgMemStore.getMessages compares the whole record with the limit of the payload).
_MOST_AROUND_A_BODY = MESSAGE_SIZE_SLACK - STORE_DATA_HEADER_LEN


class RecordLookup(Protocol):
    """Knows of messages that must not be stored twice; each has a mark that is its own."""

    def available(self, partitions: Sequence[Partition], *, needed: bool) -> Sequence[Partition]:
        """Those of `partitions` to which messages may go; asked before the first one does. `TransportError` where all
        are `needed` and one is not usable."""
        ...

    def ping(self, partitions: Sequence[Partition]) -> None:
        """Asks the broker of `partitions`, all of one, for a sign of life; `TransportError` without."""
        ...

    def find_stored(
        self, partition: Partition, start: int | None, record_ids: Collection[RecordId]
    ) -> Mapping[RecordId, RecordMetadata]:
        """Those of `marks` whose messages stand in the partition at or behind `floor`, None for anywhere the task may
        have written. Called when no send of them is under way. `TransportError` when that cannot be told now."""
        ...


class Producer:
    """Sends for one thread.

    >>> with Producer(settings) as producer:  # doctest: +SKIP
    ...     producer.send("demo", b"hello")
    ...     producer.flush()

    An error ends it, except that of a message that `send` did not take: what was taken and not acknowledged until then
    may be stored or not.
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
        """At most `max_in_flight` messages of each connection are unanswered, and not more than `max_bytes` of all
        messages taken are in memory, each counted with `OVERHEAD`, but for the last. Errors call a message
        `row <number> <rows_of>`. `on_stored` is told of each message that is stored."""
        self._settings = settings
        self._max_bytes = max_bytes
        self._rows_of = rows_of
        self._on_stored = on_stored
        self._tells = lookup is not None or on_stored is not None
        self._leases = ExitStack()
        self._session = self._leases.enter_context(SESSIONS.lease(settings))
        shared = SESSIONS.shared(settings)
        self._router = Partitioner(self._session, shared.troubles, lookup.available if lookup is not None else None)
        self._patience = DeliveryTimeout(settings.retry_for)
        self._doubts = None if lookup is None else UnresolvedSends(lookup, self._patience)
        self._targets = SendTargets(self._session)
        self._limits: dict[str, int] = {}  # bytes, by topic
        self._anywhere: dict[
            str, deque[PendingRecord]
        ] = {}  # waiting messages that may go to any partition of their topic
        self._lanes = OrderedQueues()
        self._named: set[Partition] = set()  # by targets, and found to be there
        self._waiting = 0  # messages, in lanes too
        self._bytes = 0  # of messages that are not stored yet
        self._fresh = self._fresh_bytes = 0  # since anything was done about messages
        self._taken = 0
        self._refusing: set[int] = set()  # brokers that have taken no token since the last one they took
        self._links = Channels(settings, self._session, self._router, shared.dials, max_in_flight, self._cannot_reach)
        self._stored: Counter[Partition] = Counter()
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        return f"<Producer {self._stored.total()} stored, {self._waiting} waiting, {self._links}>"

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
        """How many messages are stored for certain."""
        return self._stored.total()

    @property
    def has_failed(self) -> bool:
        """Whether an error has ended it."""
        return self._error is not None

    def prepare(self, topic: str) -> None:
        """Begins to connect to the brokers of `topic`, if any producer of this process has asked for it before."""
        if not self._session.cluster.missing([topic]):
            self._look_around()
            self._links.connect({one.broker_id for one in self._session.cluster.partitions(topic)}, needed=False)

    def limit(self, topic: str) -> int:
        """How many bytes a message's body may have; raises as `send` does for an unknown topic."""
        known = self._limits.get(topic)
        return self._learn_topic(topic, None) if known is None else known

    def has_partition(self, partition: Partition) -> bool:
        """Whether its topic, which must be known, has this partition."""
        return partition in self._session.cluster.partitions(partition.topic)

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
        """Takes a message over; waits while too many are on their way.

        `attributes` are `encode_attributes`'s; `msg_type` and `msg_time` are said once more, for the broker. Messages
        of one `key` go to one partition, in their order; `target` is the broker's and the partition's id. The lookup
        knows the message by its `record_id`. `ConfigError` when the topic or the target is unknown or the message is
        too long for the topic, `TransportError` when the target's broker may just be down. Any message taken before may
        be the cause of another error: `ServerError`, `AuthError`, `TransportError`, `ProtocolError`, which name it.
        """
        limit = self._limits.get(topic)
        if limit is None:
            limit = self._learn_topic(topic, row)
        payload, flag = encode_payload(body, attributes)
        if not payload or len(body) > limit or len(payload) > limit + _MOST_AROUND_A_BODY:
            raise ConfigError(f"{self._name(row)}: {_size_problem(topic, body, attributes, limit)}")
        message = PendingRecord(topic, encode_content(payload, flag, msg_type, msg_time), row, self._taken)
        message.record_id = record_id
        if key is None and target is None:
            self._anywhere.setdefault(topic, deque()).append(message)
        else:
            self._into_lane(message, key, target)
        size = len(message.content)
        self._taken += 1
        self._waiting += 1
        self._bytes += size + OVERHEAD
        self._fresh += 1
        self._fresh_bytes += size
        if self._fresh >= _BATCH or self._fresh_bytes >= _BATCH_BYTES:
            self._work()
        while self._bytes > self._max_bytes:
            if not self._work():
                self._wait()

    def flush(self) -> Mapping[Partition, int]:
        """Returns when all messages are stored, with how many each partition has stored so far. Raises as `send`."""
        while self._waiting or self._doubts or self._links.unanswered:
            if not self._work():
                self._wait()
        if self._error is not None:
            raise self._error
        return self._stored

    def close(self) -> None:
        """Lets the connections go; messages that are not acknowledged are not waited for."""
        self._links.close()
        self._leases.close()

    def _into_lane(self, message: PendingRecord, key: bytes | None, target: tuple[int, int] | None) -> None:
        partition = None
        if target is not None:
            partition = Partition(target[0], message.topic, target[1])
            if partition not in self._named:
                if (problem := self._no_such_target(message, partition)) is not None:
                    raise problem
                self._router.need(partition)
                self._named.add(partition)
        lane = self._lanes.get(QueueId(message.topic, key, partition))
        if lane.partition is None and key is not None:
            lane.partition = self._router.of_key(message.topic, key)
        message.lane = lane
        lane.waiting.append(message)
        self._lanes.changed(lane)

    def _no_such_target(self, message: PendingRecord, partition: Partition) -> TubeMQError | None:
        name, (broker_id, topic, number) = self._name(message.row), partition
        try:
            if self._targets.has(partition):
                return None
        except TransportError as error:
            return TransportError(
                f"{name} cannot be sent to partition {number} on broker {broker_id}, and {self._so_far()}: {error}"
            )
        return ConfigError(
            f"{name}: topic {topic} has no partition {number} on a broker {broker_id}; see which there are, or leave "
            "broker_id and partition out"
        )

    # Work: hear what was answered, then send what may go

    def _work(self) -> bool:
        """Does what can be done without waiting; whether that led to more."""
        if self._error is not None:
            raise self._error
        self._fresh = self._fresh_bytes = 0
        self._patience.resume()
        try:
            heard = self._listen()
            self._check_patience()
            settled = self._settle(self._doubts) if self._doubts else False
            sent = self._dispatch()
            return heard or settled or sent
        except BaseException as error:
            self._error = error  # messages are lost from sight now: this must not end as a success
            raise
        finally:
            self._patience.worked()

    def _wait(self) -> None:
        is_troubled = self._patience or self._doubts or (self._waiting and self._router.has_trouble)
        must_look = is_troubled or self._links.are_being_made or not self._links.unanswered
        self._patience.resume()
        self._links.wait(_TICK if must_look else None)
        self._patience.worked()

    def _dispatch(self) -> bool:
        """Hands messages to connections as far as these take them; whether any went."""
        if not self._waiting:
            return False
        self._look_around()
        self._targets.renew()
        before = self._waiting
        self._connect()
        self._dispatch_lanes()
        if not self._links.are_young:
            for topic, waiting in self._anywhere.items():
                while waiting and (partition := self._router.choose(topic)) is not None:
                    self._submit(waiting.popleft(), partition)
        if self._waiting < before:
            self._links.push()
        return self._waiting < before

    def _dispatch_lanes(self) -> None:
        able = self._lanes.partitions()
        while able:  # one message each in turn
            able = [one for one in able if self._router.takes(one) and self._leave(one)]

    def _leave(self, partition: Partition) -> bool:
        message = self._lanes.leave(partition)
        if message is not None:
            self._submit(message, partition)
        return message is not None

    def _look_around(self) -> None:
        if not self._router.begin(self._links.standing):
            return
        for lane in self._lanes.relist():
            if lane.id.target is None and lane.id.key is not None:
                lane.partition = self._router.of_key(lane.id.topic, lane.id.key)
            self._lanes.changed(lane)

    def _submit(self, message: PendingRecord, partition: Partition) -> None:
        link = self._links.standing[partition.broker_id]
        self._waiting -= 1
        if message.record_id is not None and self._doubts is not None:
            message.floor = self._doubts.floor(partition)
        try:
            link.submit(message, partition, self._targets[partition])
        except ProtocolError as cause:
            message.on(SendEvent.REFUSED)
            raise ConfigError(f"{self._name(message.row)} is too long for {link.broker}: {cause}") from None
        self._router.sent(message)

    def _listen(self) -> bool:
        """Hears what became of messages; whether anything did."""
        heard = 0
        failed: list[PendingRecord] = []
        refusal: TubeMQError | None = None
        for broker_id, link in list(self._links.standing.items()):
            outcomes, works = link.pump(), False
            heard += len(outcomes)
            if link.broken and outcomes:  # a connection that had nothing to do may end: another one is made
                self._router.broker_trouble(broker_id, "lost")
            for message, outcome in outcomes:
                if isinstance(outcome, Answer) and outcome.errCode == _SUCCESS:
                    message.on(_ACKNOWLEDGED)
                    works = True
                    self._router.success(message.partition)
                    self._refusing.discard(message.partition.broker_id)
                    self._note(message)
                    if self._tells:
                        where = message.partition, outcome.messageId, outcome.appendOffset, outcome.appendTime
                        self._tell(message, RecordMetadata(*where))
                else:
                    try:
                        self._fail(message, link, outcome)
                    except TubeMQError as error:
                        refusal = refusal or error
                    failed.append(message)
            if works:
                OUTAGES.worked(_log, link.broker)
            if link.broken:
                self._links.drop(broker_id)
                if self._doubts is not None:
                    self._doubts.forget_ends(broker_id)
        if refusal is not None:  # after all that is known to be stored was counted
            raise self._with_count(refusal)
        for message in reversed(failed):
            self._take_back(message)
        return heard > 0

    def _note(self, message: PendingRecord) -> None:
        """The message stands."""
        self._stored[message.partition] += 1
        self._bytes -= len(message.content) + OVERHEAD
        if message.tries:
            self._patience.stored(message)
            OUTAGES.worked(_log, message.partition)
        if (lane := message.lane) is not None:
            lane.arrived(message)
            self._lanes.changed(lane)

    def _tell(self, message: PendingRecord, stored: RecordMetadata) -> None:
        if self._doubts is not None and stored.offset is not None:
            self._doubts.stored_at(stored.partition, stored.offset)
        if self._on_stored is not None:
            self._on_stored(message, stored)

    def _take_back(self, message: PendingRecord) -> None:
        """One that failed: it waits again, or is looked for first."""
        if self._doubts is not None and self._doubts.concern(message):
            return
        self._waiting += 1
        lane = message.lane
        if lane is None:
            self._anywhere.setdefault(message.topic, deque()).appendleft(message)
            return
        lane.come_back(message)
        if lane.id.target is None and lane.id.key is not None and not lane.listed:
            lane.partition = self._router.of_key(lane.id.topic, lane.id.key)
        self._lanes.changed(lane)

    def _settle(self, doubts: UnresolvedSends) -> bool:
        """Finds out which messages in doubt are stored; whether that could be told of any."""
        self._look_around()  # it may be that nothing else is left to do
        found, missed = doubts.settle(self._rest_of)
        for message, stored in found:
            self._note(message)
            self._tell(message, stored)
        for message in reversed(missed):
            self._take_back(message)
        return bool(found or missed)

    def _rest_of(self, partition: Partition) -> bool:
        return self._router.may_dial(partition.broker_id, needed=True)

    # Connections

    def _connect(self) -> None:
        """Takes over the connections that were made, and has those made that messages need."""
        links = self._links
        links.take_over()
        links.connect(self._lanes.brokers(), needed=True)
        for topic, waiting in self._anywhere.items():
            if waiting:
                brokers = self._router.brokers(topic)
                links.connect(brokers, needed=False)
                if not links.are_young and self._router.is_stuck(topic):
                    links.connect(brokers, needed=True)

    def _cannot_reach(self, broker: Broker, error: TransportError | ProtocolError) -> None:
        waiting = self._waiting_for(broker.broker_id)
        for message in waiting:
            self._patience.failed(message, error)
        fate = f"{self._things} wait for it" if waiting else f"{self._things} go elsewhere meanwhile"
        left = self._patience.left if waiting else None
        OUTAGES.failed(_log, broker, lambda: f"{broker} cannot be reached, and {fate}: {error}", left)

    def _waiting_for(self, broker_id: int) -> list[PendingRecord]:
        """The first of those that cannot go on without the broker: one for each partition, and each topic."""
        found = []
        for partition in self._lanes.partitions():
            if partition.broker_id == broker_id:
                found.append(message := self._lanes.first(partition))
                message.partition = partition
        for topic, waiting in self._anywhere.items():
            partitions = [one for one in self._router.partitions(topic) if one.broker_id == broker_id]
            if waiting and partitions and not self._router.brokers(topic) & self._links.standing.keys():
                waiting[0].partition = partitions[0]
                found.append(waiting[0])
        return found

    # What to do about a failure

    def _fail(self, message: PendingRecord, link: BrokerChannel, outcome: Outcome) -> None:
        """Makes ready for another try; raises when the message is refused for good."""
        what = f"sending {self._name(message.row)} to {link.broker}, partition {message.partition},"
        code = outcome.errCode if isinstance(outcome, Answer) else None
        problem: TubeMQError
        if isinstance(outcome, Answer):
            problem = error_for_code(outcome.errCode, outcome.errMsg, what)
        elif isinstance(outcome, Failure):
            problem = error_for_failure(outcome, what)
        else:
            problem = outcome
        event = SendEvent.FAILED if code is None else send_event(code)
        if event is SendEvent.FAILED and self._doubts is not None and message.record_id is not None:
            is_certain = is_elsewhere(outcome) if isinstance(outcome, Failure) else code and not may_be_stored(code)
            event = SendEvent.FAILED if is_certain else SendEvent.DOUBTED
        message.was_silent = link.is_silent
        message.on(event)
        if event is SendEvent.REFUSED:
            raise problem
        self._patience.failed(message, problem)
        broker_id = message.partition.broker_id
        concerned: Broker | Partition = link.broker
        if code == ErrCode.CERTIFICATE_FAILURE:
            # The visit token of the master changes every few minutes. A broker knows the last ones, but not yet the
            # newest one of a master that has just taken over.
            is_of_token = isinstance(outcome, Answer) and is_about_visit_token(outcome.errCode, outcome.errMsg)
            if message.authorized_anew and not is_of_token:
                self._refusing.add(broker_id)
                if message.lane is not None or self._refusing >= self._router.brokers(message.topic):
                    raise problem
            message.authorized_anew = self._targets.refresh()
            self._router.broker_trouble(broker_id, "refused")
        elif code == ErrCode.SERVICE_UNAVAILABLE or (isinstance(outcome, Failure) and is_elsewhere(outcome)):
            self._router.broker_trouble(broker_id, "refused")
        elif code == ErrCode.SERVER_RECEIVE_OVERFLOW:
            self._router.broker_trouble(broker_id, "full")
        elif not link.broken:  # else the whole broker is left alone
            concerned = message.partition
            self._router.partition_trouble(message.partition)
            if code == ErrCode.FORBIDDEN:
                SESSIONS.inquire(self._settings)  # it may be closed for good
        self._warn(concerned, problem, link.silent_since)

    def _warn(self, what: Broker | Partition, problem: TubeMQError, since: float | None) -> None:
        OUTAGES.failed(
            _log, what, lambda: f"{self._things} for {what} are not acknowledged: {problem}", self._patience.left, since
        )

    def _check_patience(self) -> None:
        """Raises when a message has failed for too long."""
        if (exhausted := self._patience.exhausted()) is not None:
            self._give_up(*exhausted)

    def _give_up(self, message: PendingRecord, elapsed: float) -> None:
        problem = message.problem
        assert problem is not None
        message.on(SendEvent.REFUSED)
        where = "in its partition" if message.lane else "on all brokers of the topic that could be used"
        text = (
            f"{self._name(message.row)} for topic {message.topic} was not acknowledged within {elapsed:.1f} s of its "
            f"first failure, in {message.tries} tries {where}; the last one, to partition {message.partition}: "
            f"{problem}; {self._so_far()}. Check that the brokers run and take messages, or give them longer with "
            "option 'tubemq.retry.maxElapsedMs'"
        )
        if isinstance(problem, ServerError):
            raise ServerError(text, code=problem.code, name=problem.name, message=problem.message)
        raise type(problem)(text)

    def _with_count(self, problem: TubeMQError) -> TubeMQError:
        text = f"{problem}; {self._so_far()}"
        if isinstance(problem, ServerError):
            return ServerError(text, code=problem.code, name=problem.name, message=problem.message)
        return type(problem)(text)

    def _so_far(self) -> str:
        things = "rows" if self._rows_of else "messages"
        return f"{self._stored.total()} of {self._taken} {things} {self._rows_of or 'so far'} are acknowledged"

    @property
    def _things(self) -> str:
        return f"rows {self._rows_of}" if self._rows_of else "messages"

    def _learn_topic(self, topic: str, row: int | None) -> int:
        try:
            problem = self._targets.unknown(topic)
        except AwayError as error:
            raise TransportError(f"{self._name(row)} cannot be sent, and {self._so_far()}: {error}") from None
        if problem is not None:
            raise ConfigError(f"{self._name(row)}: {problem}")
        self._limits[topic] = self._session.message_limit(topic)
        self._look_around()
        return self._limits[topic]

    def _name(self, row: int | None) -> str:
        return "a message" if row is None else f"row {row} {self._rows_of}".rstrip()


def _size_problem(topic: str, body: bytes, attributes: bytes, limit: int) -> str:
    if not body and not attributes:
        return "value and attributes are empty, and TubeMQ takes no message without bytes; leave the row out"
    if len(body) > limit:
        return (
            f"value has {len(body)} bytes, and topic {topic} takes {limit} at most; split it, or have the limit raised"
        )
    return (
        f"value and attributes have {len(body) + len(attributes)} bytes, and topic {topic} takes {limit} and a few more"
    )
