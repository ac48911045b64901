# SPDX-License-Identifier: Apache-2.0
"""Failed sends: what a failure means for record, broker and partition, and when retries end (delivery timeout)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.cluster.session_pool import SESSIONS
from tubemq_spark.client.producer.partitioner import Partitioner
from tubemq_spark.client.producer.send_queue import PendingRecord
from tubemq_spark.client.producer.send_targets import SendTargets
from tubemq_spark.client.producer.sender import BrokerChannel
from tubemq_spark.client.retries import OUTAGES
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import ConfigError, ProtocolError, ServerError, TransportError, TubeMQError
from tubemq_spark.protocol.envelope import Failure
from tubemq_spark.protocol.errcode import error_for_code, error_for_failure, is_about_visit_token
from tubemq_spark.protocol.lifecycle import (
    Answer,
    FailureCause,
    Outcome,
    SendEvent,
    SendState,
    classify_failure,
)
from tubemq_spark.protocol.metadata import Broker, Partition

_log = logging.getLogger(__name__)


class SendErrors:
    """Errors of one producer: they name the row, and count the records that are acknowledged."""

    def __init__(self, rows_of: str, counts: Callable[[], tuple[int, int]]) -> None:
        """`rows_of` completes `row <number>`, for example `of task partition 4`. `counts` returns how many records are
        acknowledged, and how many were accepted."""
        self.records = f"rows {rows_of}" if rows_of else "messages"
        self._rows_of = rows_of
        self._counts = counts

    def name(self, row: int | None) -> str:
        return "a message" if row is None else f"row {row} {self._rows_of}".rstrip()

    def cannot_send(self, row: int | None, where: str, error: TransportError) -> TransportError:
        return TransportError(f"{self.name(row)} cannot be sent{where}, and {self._count()}: {error}")

    def unknown_target(self, row: int | None, target: Partition) -> ConfigError:
        return ConfigError(
            f"{self.name(row)}: topic {target.topic} has no partition {target.partition_id} on a broker "
            f"{target.broker_id}; see which there are, or leave broker_id and partition out"
        )

    def wrong_size(self, row: int | None, topic: str, body: bytes, attributes: bytes, limit: int) -> ConfigError:
        if not body and not attributes:
            text = "value and attributes are empty, and TubeMQ takes no message without bytes; leave the row out"
        elif len(body) > limit:
            text = (
                f"value has {len(body)} bytes, and topic {topic} takes {limit} at most; split it, or have the limit "
                "raised"
            )
        else:
            size = len(body) + len(attributes)
            text = f"value and attributes have {size} bytes, and topic {topic} takes {limit} and a few more"
        return ConfigError(f"{self.name(row)}: {text}")

    def failed(self, record: PendingRecord, outcome: Outcome, broker: object) -> TubeMQError:
        what = f"sending {self.name(record.row)} to {broker}, partition {record.partition},"
        if isinstance(outcome, Answer):
            return error_for_code(outcome.errCode, outcome.errMsg, what)
        return error_for_failure(outcome, what) if isinstance(outcome, Failure) else outcome

    def timed_out(self, record: PendingRecord, elapsed: float) -> TubeMQError:
        """Return the error of a record whose delivery timeout expired."""
        assert record.problem is not None
        where = "in its partition" if record.queue else "on all brokers of the topic that could be used"
        return _with_text(
            record.problem,
            f"{self.name(record.row)} for topic {record.topic} was not acknowledged within {elapsed:.1f} s of its "
            f"first failure, in {record.failures} tries {where}; the last one, to partition {record.partition}: "
            f"{record.problem}; {self._count()}. Check that the brokers run and take messages, or give them longer "
            "with option 'tubemq.retry.maxElapsedMs'",
        )

    def refused(self, problem: TubeMQError) -> TubeMQError:
        return _with_text(problem, f"{problem}; {self._count()}")

    def _count(self) -> str:
        acknowledged, accepted = self._counts()
        records = "rows" if self._rows_of else "messages"
        return f"{acknowledged} of {accepted} {records} {self._rows_of or 'so far'} are acknowledged"


class DeliveryTimeout:
    """The records of one producer that failed and are not stored yet, on a clock that runs only while the producer
    does: the caller may pause for longer than `retry_for`, and meanwhile nothing is retried."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._failing: dict[PendingRecord, None] = {}  # the one that failed first comes first
        self._now = 0.0
        self._seen_at = settings.clock.monotonic()

    def __len__(self) -> int:
        return len(self._failing)

    def resume(self) -> None:
        """Run the clock again. Of the caller's pause at most `idle_producer_counts` seconds count."""
        self._advance(self._settings.timings.idle_producer_counts)

    def suspend(self) -> None:
        """Stop the clock, because the caller takes over."""
        self._advance(float("inf"))

    def now(self) -> float:
        return self._advance(float("inf"))

    def watch(self, record: PendingRecord) -> None:
        """Start the timeout of a record that failed for the first time."""
        self._failing[record] = None

    def forget(self, record: PendingRecord) -> None:
        self._failing.pop(record, None)

    @property
    def left(self) -> float | None:
        """Seconds until the first record is given up; None if none failed."""
        for record in self._failing:
            return max(0.0, self._settings.retry_for - self._elapsed(record))
        return None

    def expired(self) -> tuple[PendingRecord, float] | None:
        """Return a record that has failed for too long, and for how many seconds. One in flight may still arrive."""
        for record in self._failing:
            elapsed = self._elapsed(record)
            if elapsed < self._settings.retry_for:
                return None
            more = self._settings.timings.min_lookup_time if record.state is SendState.UNRESOLVED else 0.0
            if record.state is not SendState.IN_FLIGHT and elapsed >= self._settings.retry_for + more:
                return record, elapsed
        return None

    def _elapsed(self, record: PendingRecord) -> float:
        assert record.failing_since is not None
        return self._now - record.failing_since

    def _advance(self, at_most: float) -> float:
        now = self._settings.clock.monotonic()
        self._now += min(now - self._seen_at, at_most)
        self._seen_at = now
        return self._now


class FailureHandler:
    """Counts the failures of one producer for delivery timeout and circuit breakers, and raises those that are final.

    `rejecting` are the brokers that rejected the visit token, and acknowledged nothing since.
    """

    def __init__(
        self, session: ProducerSession, partitioner: Partitioner, targets: SendTargets, errors: SendErrors
    ) -> None:
        self.timeout = DeliveryTimeout(session.settings)
        self._clock = session.settings.clock
        self.rejecting: set[int] = set()
        self._session = session
        self._partitioner = partitioner
        self._targets = targets
        self._errors = errors

    def handle(self, record: PendingRecord, channel: BrokerChannel, outcome: Outcome, *, store_once: bool) -> None:
        """Prepare another try of `record`, or a look-up if it must be stored only once. Raise if no broker will ever
        take it."""
        event, cause = classify_failure(outcome, store_once=store_once)
        problem = self._errors.failed(record, outcome, channel.broker)
        record.failed(event, problem, self.timeout.now(), broker_was_silent=channel.is_silent)
        if event is SendEvent.REFUSED:
            raise problem
        self.timeout.watch(record)
        broker_id = record.partition.broker_id
        concerned: Broker | Partition = channel.broker
        if cause is FailureCause.AUTHORIZATION:
            self._renew_token(record, problem, outcome)
        if cause in (FailureCause.AUTHORIZATION, FailureCause.BROKER_REFUSES):
            self._partitioner.broker_failed(broker_id, "refused")
        elif cause is FailureCause.BROKER_FULL:
            self._partitioner.broker_failed(broker_id, "full")
        elif not channel.is_broken:  # else the whole broker counts as failed
            concerned = record.partition
            self._partitioner.partition_failed(record.partition)
            if cause is FailureCause.PARTITION_CLOSED:
                SESSIONS().refresh_later(self._session.settings)  # it may be closed for good
        text = f"{self._errors.records} for {concerned} are not acknowledged: {problem}"
        OUTAGES().failed(_log, concerned, lambda: text, self.timeout.left, channel.silent_since, clock=self._clock)

    def unreachable(
        self, broker: Broker, error: TransportError | ProtocolError, waiting: Sequence[tuple[PendingRecord, Partition]]
    ) -> None:
        """Note that no connection could be opened; `waiting` are records that can be sent to no other broker."""
        for record, partition in waiting:
            record.partition = partition
            record.count_failure(error, self.timeout.now())
            self.timeout.watch(record)
        fate = "wait for it" if waiting else "go to other brokers meanwhile"
        text = f"{broker} cannot be reached, and {self._errors.records} {fate}: {error}"
        OUTAGES().failed(_log, broker, lambda: text, self.timeout.left if waiting else None, clock=self._clock)

    def stored(self, record: PendingRecord) -> None:
        """Note that a record is stored that had failed."""
        self.timeout.forget(record)
        OUTAGES().worked(_log, record.partition)

    def check_timeout(self) -> None:
        """Raise if a record has failed for too long."""
        if (expired := self.timeout.expired()) is not None:
            expired[0].on(SendEvent.REFUSED)
            raise self._errors.timed_out(*expired)

    def _renew_token(self, record: PendingRecord, problem: TubeMQError, outcome: Outcome) -> None:
        """Fetch a new visit token. Raise `problem` if the brokers reject the record with a new token, too.

        The master's visit token changes every few minutes. A broker knows the last ones, but not yet the newest one of
        a master that has just taken over: then it complains about the token itself, and waiting helps.
        """
        is_about_token = isinstance(outcome, Answer) and is_about_visit_token(outcome.errCode, outcome.errMsg)
        if record.token_renewed and not is_about_token:
            self.rejecting.add(record.partition.broker_id)
            if record.queue is not None or self.rejecting >= self._partitioner.brokers(record.topic):
                raise problem
        record.token_renewed = self._targets.refresh()


def _with_text(problem: TubeMQError, text: str) -> TubeMQError:
    if isinstance(problem, ServerError):
        return ServerError(text, code=problem.code, name=problem.name, message=problem.message)
    return type(problem)(text)
