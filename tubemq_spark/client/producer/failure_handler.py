# SPDX-License-Identifier: Apache-2.0
"""Failed sends: what a failure means for record, broker and partition, and when retries end (delivery timeout)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter

from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.cluster.session_pool import SESSIONS
from tubemq_spark.client.net.pool import POOL
from tubemq_spark.client.producer.partitioner import Partitioner
from tubemq_spark.client.producer.record_batch import RecordBatch, SendFailure
from tubemq_spark.client.producer.send_targets import SendTargets
from tubemq_spark.client.producer.sender import BrokerChannel
from tubemq_spark.client.retries import OUTAGES
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import ConfigError, ProtocolError, ServerError, TransportError, TubeMQError
from tubemq_spark.protocol.envelope import Failure
from tubemq_spark.protocol.errcode import error_for_code, error_for_failure, is_about_visit_token
from tubemq_spark.protocol.metadata import Broker, Partition
from tubemq_spark.protocol.send_acks import SendAck
from tubemq_spark.protocol.send_outcome import FailureCause, Fate, SendOutcome, classify_failure

_log = logging.getLogger(__name__)

_IDLE_PRODUCER_COUNTS = 1.0  # seconds; of the time in which nobody polls the producer, this much counts as waiting
_BROKER_FAILURES = {FailureCause.AUTHORIZATION, FailureCause.BROKER_REFUSES, FailureCause.BROKER_FULL}
_MIN_LOOKUP_TIME = 3.0  # seconds; least time for finding out whether an unresolved send was stored


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
            f"{target.broker_id}; write one that `tubemq-spark topics describe` shows, or leave broker_id and "
            "partition out"
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
            text = (
                f"value and attributes have {size} bytes, and topic {topic} takes {limit} and a few more; shorten one "
                "of them"
            )
        return ConfigError(f"{self.name(row)}: {text}")

    def failed(self, batch: RecordBatch, outcome: SendOutcome, broker: object) -> TubeMQError:
        what = f"sending {self.name(batch.rows[0])} to {broker}, partition {batch.partition},"
        if isinstance(outcome, SendAck):
            return error_for_code(outcome.errCode, outcome.errMsg, what)
        return error_for_failure(outcome, what) if isinstance(outcome, Failure) else outcome

    def timed_out(self, batch: RecordBatch, elapsed: float) -> TubeMQError:
        """Return the error of records whose delivery timeout expired."""
        failure = batch.failure
        assert failure is not None
        where = "in its partition" if batch.lane.partition else "on all brokers of the topic that could be used"
        return _with_text(
            failure.problem,
            f"{self.name(batch.rows[0])} for topic {batch.topic} was not acknowledged within {elapsed:.1f} s of its "
            f"first failure, in {failure.tries} tries {where}; the last one, to partition {failure.partition}: "
            f"{failure.problem}; {self._count()}. Check that the brokers run and take messages, or give them longer "
            "with option 'tubemq.retry.maxElapsedMs'",
        )

    def refused(self, problem: TubeMQError) -> TubeMQError:
        return _with_text(problem, f"{problem}; {self._count()}")

    def _count(self) -> str:
        acknowledged, accepted = self._counts()
        return f"{acknowledged} of {accepted} messages {self._rows_of or 'so far'} are acknowledged"


class DeliveryTimeout:
    """When the records of one producer that failed are given up, on a clock that runs only while the producer does: the
    caller may pause for longer than `retry_for`, and meanwhile nothing is retried."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self.any_failed = False  # whether a record that failed may wait
        self._now = 0.0
        self._seen_at = settings.clock.monotonic()

    def resume(self) -> None:
        """Run the clock again. Of the caller's pause at most `idle_producer_counts` seconds count."""
        self._advance(_IDLE_PRODUCER_COUNTS)

    def suspend(self) -> None:
        """Stop the clock, because the caller takes over."""
        self._advance(float("inf"))

    def count(self, batch: RecordBatch, problem: TubeMQError) -> None:
        """Note that all records of `batch` have failed, which starts their timeout if that is for the first time."""
        now = self._advance(float("inf"))
        if batch.failure is None:
            batch.failure = SendFailure(now, problem, batch.partition)
        batch.failure.tries += 1
        batch.failure.problem, batch.failure.partition = problem, batch.partition
        self.any_failed = True

    def left(self, batches: Iterable[RecordBatch]) -> float:
        """Return the seconds until the first of some batches that failed is given up."""
        return max(0.0, self._settings.retry_for - max(map(self._elapsed, batches)))

    def expired(
        self, waiting: Iterable[RecordBatch], unresolved: Iterable[RecordBatch]
    ) -> tuple[RecordBatch, float] | None:
        """Return the batch that has failed for longest, and for how many seconds, if that is too long. The batches are
        all that are not in flight: those in flight may still arrive."""
        if not self.any_failed:
            return None
        failed = [(batch, self._elapsed(batch), 0.0) for batch in waiting if batch.failure is not None]
        failed += [(batch, self._elapsed(batch), _MIN_LOOKUP_TIME) for batch in unresolved]
        self.any_failed = bool(failed)
        late = [(batch, elapsed) for batch, elapsed, more in failed if elapsed >= self._settings.retry_for + more]
        return max(late, key=itemgetter(1), default=None)

    def _elapsed(self, batch: RecordBatch) -> float:
        assert batch.failure is not None
        return self._now - batch.failure.since

    def _advance(self, at_most: float) -> float:
        now = self._settings.clock.monotonic()
        self._now += min(now - self._seen_at, at_most)
        self._seen_at = now
        return self._now


class FailureHandler:
    """Counts the failures of one producer for delivery timeout and backoff, and raises those that are final.

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

    def handle(self, batch: RecordBatch, channel: BrokerChannel, outcome: SendOutcome) -> Fate:
        """Count a failed send of all records of `batch`, and return what happens to them. Raise if no broker will ever
        take them."""
        fate, cause = classify_failure(outcome)
        problem = self._errors.failed(batch, outcome, channel.broker)
        self.timeout.count(batch, problem)
        if fate is Fate.REFUSED:
            raise problem
        concerned: Broker | Partition = channel.broker
        if cause is FailureCause.AUTHORIZATION:
            self._renew_token(batch, problem, outcome)
        if cause in _BROKER_FAILURES:
            self._partitioner.health.failed(channel.broker.broker_id)
        elif not channel.is_broken:  # else the whole broker counts as failed
            concerned = batch.partition
            self._partitioner.health.failed(concerned)
            if cause is FailureCause.PARTITION_CLOSED:
                SESSIONS().refresh_later(self._session.settings)  # it may be closed for good
        text = f"{self._errors.records} for {concerned} are not acknowledged: {problem}"
        left = self.timeout.left([batch])
        OUTAGES().failed(_log, concerned, lambda: text, left, channel.silent_since, clock=self._clock)
        return fate

    def unreachable(
        self,
        broker: Broker,
        error: TransportError | ProtocolError,
        waiting: Sequence[tuple[RecordBatch, Partition]],
    ) -> None:
        """Note that no connection could be opened; `waiting` are records that can be sent to no other broker. If
        another broker was met at the address, ask the master for the new one."""
        if POOL().is_elsewhere(broker):
            SESSIONS().refresh_later(self._session.settings)
        for batch, partition in waiting:
            batch.partition = partition
            self.timeout.count(batch, error)
        fate = "wait for it" if waiting else "go to other brokers meanwhile"
        text = f"{broker} cannot be reached, and {self._errors.records} {fate}: {error}"
        left = self.timeout.left(batch for batch, _ in waiting) if waiting else None
        OUTAGES().failed(_log, broker, lambda: text, left, clock=self._clock)

    def _renew_token(self, batch: RecordBatch, problem: TubeMQError, outcome: SendOutcome) -> None:
        """Fetch a new visit token. Raise `problem` if the brokers reject the records with a new token, too.

        The master's visit token changes every few minutes. A broker knows the last ones, but not yet the newest one of
        a master that has just taken over: then it complains about the token itself, and waiting helps.
        """
        assert batch.failure is not None
        is_about_token = isinstance(outcome, SendAck) and is_about_visit_token(outcome.errCode, outcome.errMsg)
        if batch.failure.token_renewed and not is_about_token:
            self.rejecting.add(batch.partition.broker_id)
            if batch.lane.partition is not None or self.rejecting >= self._partitioner.brokers(batch.topic):
                raise problem
        batch.failure.token_renewed = self._targets.refresh()


def _with_text(problem: TubeMQError, text: str) -> TubeMQError:
    if isinstance(problem, ServerError):
        return ServerError(text, code=problem.code, name=problem.name, message=problem.message)
    return type(problem)(text)
