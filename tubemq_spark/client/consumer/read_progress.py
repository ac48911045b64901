"""Retry limits of a reader: what counts as progress, when it looks for its broker, and the errors at the end."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tubemq_spark.client.backoff import Deadline
from tubemq_spark.client.outage_log import Retries
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import ServerError, TransportError
from tubemq_spark.protocol.errcode import ErrCode, code_name
from tubemq_spark.protocol.metadata import Broker, Partition

_log = logging.getLogger(__name__)

_MAX_REREADS = 20  # in a row, each ended by a broken connection before the reader came to a new message


class BrokerLocator:
    """Knows where the broker of `partition` is. It asks `find_broker` after some seconds without a connection."""

    def __init__(
        self, settings: ClientSettings, partition: Partition, broker: Broker, find_broker: Callable[[Broker], Broker]
    ) -> None:
        self.partition = partition
        self.broker = broker
        self._settings = settings
        self._find_broker = find_broker
        self._unreachable_since: float | None = None

    @property
    def where(self) -> str:
        return f"{self.partition} at {self.broker}"

    def on_connected(self) -> None:
        self._unreachable_since = None

    def on_failed(self) -> None:
        now = self._settings.clock.monotonic()
        if self._unreachable_since is None:
            self._unreachable_since = now
        elif now - self._unreachable_since >= self._settings.timings.broker_lookup_after:
            found = self._find_broker(self.broker)
            if found != self.broker:
                _log.warning("%s: the broker has moved to %s", self.where, found.address)
                self.broker = found


class ReadProgress:
    """The progress of one reader. It gives up after the settings' `retry_for` seconds without progress."""

    def __init__(self, settings: ClientSettings, locator: BrokerLocator) -> None:
        self._settings = settings
        self._locator = locator
        self.retries = Retries(_log, f"reading {locator.where}", settings.retry_for, clock=settings.clock)
        self.last_reply = -1, ""  # code and text of the last fetch without messages
        self._has_fetched = False  # since the last broken connection
        self._rereads = 0  # readings in a row that a broken connection ended
        self._new_messages_due = Deadline(settings.retry_for, settings.clock)

    def on_fetched(self) -> None:
        self._has_fetched = True
        self.retries.progress()

    def on_delivered(self) -> None:
        """Start all times again, because the consumer got new messages, however long it took for them."""
        self.retries.progress()
        self._rereads, self._new_messages_due = 0, Deadline(self._settings.retry_for, self._settings.clock)

    def on_failed(self, problem: object) -> None:
        """Pause before the next attempt. Raise `TransportError` after too long without progress."""
        if not self.retries.failed(problem):
            raise self._gave_up(problem) from None

    def on_disconnect(self, error: TransportError) -> None:
        """Pause before the next connection. Fetches are progress for the retries. So a connection that always breaks
        before the reader comes to new messages would be retried for ever; its readings are counted."""
        self._rereads += self._has_fetched
        self._has_fetched = False
        if self._rereads > _MAX_REREADS and self._new_messages_due.passed:
            problem = f"the connection broke {self._rereads} times before the reader came further than before: {error}"
            raise self._gave_up(problem) from None
        self.on_failed(error)

    def pause(self, seconds: float, waits_for_flush: tuple[int, int] | None) -> None:
        """Pause for at least `seconds` before the next fetch. Raise `ServerError` after too long without messages."""
        code, message = self.last_reply
        reply = f"the last answer to a fetch was {code} {code_name(code)}: {message}"
        if code in (ErrCode.SUCCESS, ErrCode.NOT_FOUND):  # both are normal for a while
            goes_on = self.retries.pause(seconds)
        else:
            goes_on = self.retries.failed(reply, seconds)
        if goes_on:
            return
        retry_for = f"{self._settings.retry_for:g} s"
        if waits_for_flush is None:
            problem = (
                f"nothing came for {retry_for}, {reply}. Check that the topic is open for reading and the broker in "
                "service"
            )
        else:
            begin, end = waits_for_flush
            code, message = ErrCode.NOT_FOUND, "not flushed"
            problem = (
                f"not every entry of [{begin}, {end}) gave a message while the broker had them in its memory, where it "
                f"leaves out messages that are too long, and in {retry_for} it did not write them to files. Raise "
                "option 'tubemq.retry.maxElapsedMs' above the topic's memCacheFlushIntvl, or lower that"
            )
        raise ServerError(f"{self._locator.where}: {problem}", code=code, name=code_name(code), message=message)

    def _gave_up(self, problem: object) -> TransportError:
        return TransportError(
            f"{self._locator.where}: gave up after {self._settings.retry_for:g} s without progress: {problem}. Check "
            "that the broker runs and can be reached from the executors"
        )
