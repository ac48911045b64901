"""Retry limits of a reader: what counts as progress, how long it waits without any, and the errors at the end."""

from __future__ import annotations

import logging

from tubemq_spark.client.backoff import Deadline
from tubemq_spark.client.consumer.broker_locator import BrokerLocator
from tubemq_spark.client.outage_log import Retries
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import ServerError, TransportError
from tubemq_spark.protocol.errcode import ErrCode, code_name

_log = logging.getLogger(__name__)

_MAX_REREADS = 20  # in a row, each ended by a broken connection before the reader came to a new message


class ReadProgress:
    """The progress of one reader. It gives up after the settings' `retry_for` seconds without progress."""

    def __init__(self, settings: ClientSettings, locator: BrokerLocator) -> None:
        self._settings = settings
        self._locator = locator
        self.retries = Retries(_log, f"reading {locator.where}", settings.retry_for, clock=settings.clock)
        self._last_reply = -1, ""  # code and text of the last fetch without messages
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

    def on_nothing(self, code: int, message: str) -> None:
        """Record the reply to a fetch that brought no messages."""
        self._last_reply = code, message

    def on_claim_refused(self, reason: object) -> None:
        """Pause before the claim is acquired again."""
        if not self.retries.failed(reason):
            raise self._gave_up(str(reason)) from None

    def on_disconnect(self, error: TransportError) -> None:
        """Pause before the next connection. Fetches are progress for the retries. So a connection that always breaks
        before the reader comes to new messages would be retried for ever; its readings are counted."""
        self._rereads += self._has_fetched
        self._has_fetched = False
        if self._rereads > _MAX_REREADS and self._new_messages_due.passed:
            raise self._gave_up(
                f"the connection broke {self._rereads} times before the reader came further than before: {error}"
            ) from None
        if not self.retries.failed(error):
            raise self._gave_up(str(error)) from None

    def pause(self, seconds: float, waits_for_flush: tuple[int, int] | None) -> None:
        """Pause for at least `seconds` before the next fetch. Raise `ServerError` after too long without messages."""
        code, message = self._last_reply
        if code in (ErrCode.SUCCESS, ErrCode.NOT_FOUND):  # both are normal for a while
            goes_on = self.retries.pause(seconds)
        else:
            problem = f"the last answer to a fetch was {code} {code_name(code)}: {message}"
            goes_on = self.retries.failed(problem, seconds)
        if not goes_on:
            raise self._no_messages() if waits_for_flush is None else self._not_flushed(*waits_for_flush)

    def _gave_up(self, why: str) -> TransportError:
        return TransportError(
            f"{self._locator.where}: gave up after {self._settings.retry_for:g} s without progress: {why}. Check that "
            "the broker runs and can be reached from the executors"
        )

    def _not_flushed(self, begin: int, end: int) -> ServerError:
        return ServerError(
            f"{self._locator.where}: not every entry of [{begin}, {end}) gave a message while the broker had them in "
            "its memory, where it leaves out messages that are too long, and in "
            f"{self._settings.retry_for:g} s it did not write them to files. Raise option "
            "'tubemq.retry.maxElapsedMs' above the topic's memCacheFlushIntvl, or lower that",
            code=ErrCode.NOT_FOUND,
            name=code_name(ErrCode.NOT_FOUND),
            message="not flushed",
        )

    def _no_messages(self) -> ServerError:
        code, message = self._last_reply
        return ServerError(
            f"{self._locator.where}: nothing came for {self._settings.retry_for:g} s, the last answer to a fetch was "
            f"{code} {code_name(code)}: {message}. Check that the topic is open for reading and the broker in service",
            code=code,
            name=code_name(code),
            message=message,
        )
