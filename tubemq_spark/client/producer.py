"""Sends messages and says when all of them are stored.

Sends are pipelined over one connection to each broker. A message that meets trouble (no answer, a broken connection, an
answer that another partition or a later moment may not give) is sent again elsewhere, until `settings.retry_for`
seconds have gone by since its first failure. So a message may be stored twice, but none counts as stored that no broker
has acknowledged.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType

from tubemq_spark.client.link import Answer, Link, Outcome, Outgoing, wait_for
from tubemq_spark.client.routing import FAILING_PARTITION, REFUSING_BROKER, UNREACHABLE_BROKER, Router
from tubemq_spark.client.sessions import SESSIONS
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.client.targets import Targets
from tubemq_spark.errors import ConfigError, ProtocolError, ServerError, TransportError, TubeMQError
from tubemq_spark.protocol.constants import MESSAGE_SIZE_SLACK, STORE_DATA_HEADER_LEN
from tubemq_spark.protocol.envelope import Failure
from tubemq_spark.protocol.errcode import ErrCode, error_for_code, error_for_failure, is_elsewhere
from tubemq_spark.protocol.message import encode_payload
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.produce import SendEvent, send_event
from tubemq_spark.protocol.send import encode_content

_log = logging.getLogger(__name__)

# Messages are put on the wire this many at a time, or when they are this long together: a system call for each would
# cost more than the message.
_BATCH = 128
_BATCH_BYTES = 1 << 20

# The broker takes some bytes more, and gives such a message out only when it is in a file: as long as it is in memory,
# readers are led past it (wire: MsgMemStore.getMessages compares the whole record with the limit of the payload).
_MOST_AROUND_A_BODY = MESSAGE_SIZE_SLACK - STORE_DATA_HEADER_LEN


class Producer:
    """Sends for one thread.

    >>> with Producer(settings) as producer:  # doctest: +SKIP
    ...     producer.send("demo", b"hello")
    ...     producer.flush()

    An error ends it, except that of a message that `send` did not take: what was taken and not acknowledged until then
    may be stored or not.
    """

    def __init__(self, settings: ClientSettings, max_in_flight: int = 1000, rows_of: str = "") -> None:
        """At most `max_in_flight` messages of each connection are unanswered. Errors call a message
        `row <number> <rows_of>`."""
        self._settings = settings
        self._max_in_flight = max_in_flight
        self._rows_of = rows_of
        self._leases = ExitStack()
        self._session = self._leases.enter_context(SESSIONS.lease(settings))
        self._router = Router(self._session)
        self._targets = Targets(self._session)
        self._limits: dict[str, int] = {}  # bytes, by topic
        self._waiting: deque[Outgoing] = deque()
        self._waiting_bytes = 0
        self._links: dict[int, Link] = {}
        self._stored: Counter[Partition] = Counter()
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        return (
            f"<Producer {sum(self._stored.values())} stored, {len(self._waiting)} waiting, {[*self._links.values()]}>"
        )

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

    def send(
        self,
        topic: str,
        body: bytes,
        attributes: bytes = b"",
        msg_type: str | None = None,
        msg_time: str | None = None,
        row: int | None = None,
    ) -> None:
        """Takes a message over; waits while too many are on their way.

        `attributes` are `encode_attributes`'s; `msg_type` and `msg_time` are said once more, for the broker.
        `ConfigError` when the topic is unknown or the message longer than it takes. Any message taken before may be the
        cause of another error: `ServerError`, `AuthError`, `TransportError`, `ProtocolError`, which name it.
        """
        limit = self._limits.get(topic)
        if limit is None:
            limit = self._learn_topic(topic, row)
        payload, flag = encode_payload(body, attributes)
        if not payload or len(body) > limit or len(payload) > limit + _MOST_AROUND_A_BODY:
            raise ConfigError(f"{self._name(row)}: {_size_problem(topic, body, attributes, limit)}")
        message = Outgoing(topic, encode_content(payload, flag, msg_type, msg_time), row)
        self._waiting.append(message)
        self._waiting_bytes += len(message.content)
        while len(self._waiting) >= _BATCH or self._waiting_bytes >= _BATCH_BYTES:
            if not self._work():
                self._wait()

    def flush(self) -> Mapping[Partition, int]:
        """Returns when all messages are stored, with how many each partition has stored so far. Raises as `send`."""
        while self._waiting or any(link.unanswered for link in self._links.values()):
            if not self._work():
                self._wait()
        if self._error is not None:
            raise self._error
        return self._stored

    def close(self) -> None:
        """Lets the connections go; messages that are not acknowledged are not waited for."""
        links, self._links = self._links, {}
        for link in links.values():
            link.close()
        self._leases.close()

    def _work(self) -> bool:
        """Does what can be done without waiting; whether that led to more."""
        if self._error is not None:
            raise self._error
        try:
            self._dispatch()
            return self._listen()
        except BaseException as error:
            self._error = error  # messages are lost from sight now: this must not end as a success
            raise

    def _wait(self) -> None:
        busy = [link for link in self._links.values() if link.unanswered]
        moments = [link.silent_after() for link in busy]
        if self._router.paused_until is not None:
            moments.append(self._router.paused_until)
        seconds = max(0.0, min(moments, default=0.0) - time.monotonic())
        if busy:
            wait_for(busy, seconds)
        else:
            time.sleep(seconds)

    def _dispatch(self) -> None:
        """Hands messages to connections as far as these take them."""
        self._router.begin(broker_id for broker_id, link in self._links.items() if link.full)
        self._targets.renew()
        while self._waiting:
            message = self._waiting[0]
            if message.failing_since is not None:
                self._check_patience(message)
            partition = self._router.choose(message.topic)
            if partition is None:
                return
            link = self._links.get(partition.broker_id) or self._connect(partition, message)
            if link is None:
                continue
            self._waiting.popleft()
            self._waiting_bytes -= len(message.content)
            try:
                link.submit(message, partition, self._targets[partition])
            except ProtocolError as cause:
                message.on(SendEvent.REFUSED)
                raise ConfigError(f"{self._name(message.row)} is too long for {link.broker}: {cause}") from None
            if link.full:
                self._router.filled(partition.broker_id)

    def _listen(self) -> bool:
        """Hears what became of messages; whether anything did."""
        heard = 0
        failed: list[Outgoing] = []
        for broker_id, link in list(self._links.items()):
            outcomes = link.pump()
            heard += len(outcomes)
            for message, outcome in outcomes:
                if isinstance(outcome, Answer) and outcome.errCode == ErrCode.SUCCESS:
                    message.on(SendEvent.ACKNOWLEDGED)
                    self._stored[message.partition] += 1
                else:
                    self._fail(message, link, outcome)
                    failed.append(message)
            if link.broken:
                self._links.pop(broker_id).close()
                self._router.avoid_broker(broker_id, UNREACHABLE_BROKER)
        if failed:
            self._waiting.extendleft(reversed(failed))
            self._waiting_bytes += sum(len(message.content) for message in failed)
            self._router.back_off()
        if heard > len(failed):
            self._router.progress()
        return heard > 0

    def _connect(self, partition: Partition, message: Outgoing) -> Link | None:
        broker = self._session.cluster.brokers[partition.broker_id]
        try:
            link = Link(self._settings, broker, self._max_in_flight)
        except (TransportError, ProtocolError) as error:
            _log.warning("%s cannot be reached: %s", broker, error)
            message.partition = partition
            message.failed(error, time.monotonic())
            self._router.avoid_broker(partition.broker_id, UNREACHABLE_BROKER)
            self._router.back_off()
            return None
        self._links[partition.broker_id] = link
        return link

    # What to do about a failure

    def _fail(self, message: Outgoing, link: Link, outcome: Outcome) -> None:
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
        message.on(event)
        if event is SendEvent.REFUSED:
            raise problem
        message.failed(problem, time.monotonic())
        if code == ErrCode.CERTIFICATE_FAILURE:
            # The visit token of the master changes every few minutes, and a broker knows the last ones.
            if message.authorized_anew:
                raise problem
            message.authorized_anew = self._targets.refresh()
        elif code == ErrCode.SERVICE_UNAVAILABLE or (isinstance(outcome, Failure) and is_elsewhere(outcome)):
            self._router.avoid_broker(message.partition.broker_id, REFUSING_BROKER)
        elif not link.broken:  # else the whole broker is left alone
            self._router.avoid_partition(message.partition, FAILING_PARTITION)
            if code == ErrCode.FORBIDDEN:
                self._targets.refresh()

    def _check_patience(self, message: Outgoing) -> None:
        """Raises when the message has failed for too long."""
        assert message.failing_since is not None
        assert message.problem is not None
        elapsed = time.monotonic() - message.failing_since
        if elapsed < self._settings.retry_for:
            return
        message.on(SendEvent.REFUSED)
        problem = message.problem
        text = (
            f"{self._name(message.row)} for topic {message.topic} was not acknowledged within {elapsed:.1f} s of its "
            f"first failure, in {message.tries} tries on all brokers of the topic that could be used; the last one, to "
            f"partition {message.partition}: {problem}. Check that the brokers run and take messages, or give them "
            "longer with option 'tubemq.retry.maxElapsedMs'"
        )
        if isinstance(problem, ServerError):
            raise ServerError(text, code=problem.code, name=problem.name, message=problem.message)
        raise type(problem)(text)

    def _learn_topic(self, topic: str, row: int | None) -> int:
        try:
            self._session.add_topics([topic])
        except ConfigError as error:
            raise ConfigError(f"{self._name(row)}: {error}") from None
        self._limits[topic] = self._session.message_limit(topic)
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
