# SPDX-License-Identifier: Apache-2.0
"""Conversations with brokers, and the one loop that holds them: it sends, retries, waits, and gives up.

A conversation is a generator that asks one partition something. It knows neither sockets nor clocks nor retries:

    exchanges = yield [seek, fetch]         # requests; it gets each of them with its outcome
    goes_on = yield Wait("why")             # before it asks again; it gets False if the time for retries is over
    return result

If it raises `TransportError`, it begins again after a pause. Any other error ends all conversations. A longer one
contains shorter ones, by `yield from`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from tubemq_spark.client.clock import Clock
from tubemq_spark.client.consumer.broker_requests import Exchange
from tubemq_spark.client.net.rpc import ServerRequest, send_requests
from tubemq_spark.client.retries import Retries
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.metadata import Partition

T = TypeVar("T")

_log = logging.getLogger(__name__)

_NO_LOCK = nullcontext()

AT_ONCE = 32
"""Partitions in one write: a reply may have half a megabyte, and all replies of a write are in memory."""


class Wait(NamedTuple):
    """A conversation asks again when the others have got as far as they can, after a pause.

    With `seconds`, the cluster limits the group for so long: that is no failure, and the time for retries begins again.
    """

    reason: str
    seconds: float = 0.0
    is_topic_unknown: bool = False  # the broker does not have the topic


Conversation = Generator[Sequence[ServerRequest] | Wait, Any, T]
Begin = Callable[[], Conversation[T]]


class Channel(Protocol):
    """What sends the requests of conversations."""

    settings: ClientSettings

    def exchange(self, requests: Mapping[Partition, Sequence[ServerRequest]]) -> Mapping[Partition, list[Exchange]]:
        """Send requests, and return each of them with its outcome."""

    def failed(self, partition: Partition, error: TransportError) -> None:
        """Note why a conversation begins again."""


class DirectChannel:
    """Sends requests as they are."""

    def __init__(self, settings: ClientSettings, timeout: float | None = None) -> None:
        """`timeout` of a request is in seconds, by default that of the settings."""
        self.settings = settings
        self._timeout = timeout

    def exchange(self, requests: Mapping[Partition, Sequence[ServerRequest]]) -> dict[Partition, list[Exchange]]:
        sent = [request for several in requests.values() for request in several]
        outcomes = iter(send_requests(self.settings, sent, self._timeout))
        return {partition: [(one, next(outcomes)) for one in several] for partition, several in requests.items()}

    def failed(self, partition: Partition, error: TransportError) -> None:
        _log.info("%s", error)


def hold(
    channel: Channel,
    conversations: Mapping[Partition, Begin[T]],
    what: str,
    *,
    retry_for: float | None = None,
    first_pause: float = 0.05,
    leave_out: bool = False,
    at_once: int | None = None,
    lock: AbstractContextManager[Any] = _NO_LOCK,
) -> dict[Partition, T]:
    """Hold one conversation with each partition, side by side, and return their results. `what` they do, for errors and
    the log. One write has the requests of `at_once` of them, by default `AT_ONCE`. The `lock` is free in pauses.

    Raise `TransportError` with the `unserved` partitions after `retry_for` seconds without progress, by default those
    of the settings; `leave_out` them instead. Other errors of a conversation are passed on at once.
    """
    settings = channel.settings
    retry_for = settings.retry_for if retry_for is None else retry_for
    retries = Retries(retry_for, settings.clock, what, None if leave_out else _log, first=first_pause)
    table = _Table(channel, conversations, AT_ONCE if at_once is None else at_once, lock)
    if table.begin():
        retries.progress()
    while table.interrupted:
        waits = list(table.interrupted.values())
        least, most = min(waits, key=lambda one: one.seconds), max(one.seconds for one in waits)
        if least.seconds:  # the cluster limits all of them
            retries.progress()
            goes_on = retries.pause(most)
        else:
            goes_on = retries.failed(f"{least.reason}; {len(waits)} partitions are missing", most)
        if goes_on:
            if table.resume():
                retries.progress()
            continue
        table.end()
        if table.interrupted and not leave_out:
            left = f"with {len(table.interrupted)} of {len(conversations)} partitions to go, "
            raise TransportError(
                f"{least.reason}; gave up after {retry_for:g} s, {left if len(conversations) > 1 else ''}{what}. Check "
                "that the brokers run, that this machine can reach them, that the topic is open for reading, and that "
                "no other client uses the group",
                unserved=frozenset(table.interrupted),
                unknown=frozenset(one for one, wait in table.interrupted.items() if wait.is_topic_unknown),
            )
        break
    return table.results


def converse(channel: Channel, partition: Partition, conversation: Conversation[T]) -> T:
    """Hold one conversation, and return its result. Any error is passed on: the caller decides what to repeat."""
    try:
        wanted = next(conversation)
        while True:
            if isinstance(wanted, Wait):
                pause(channel.settings.clock, wanted.seconds)
                wanted = conversation.send(True)
            else:
                wanted = conversation.send(channel.exchange({partition: wanted})[partition])
    except StopIteration as end:
        result: T = end.value
        return result


def pause(clock: Clock, seconds: float) -> None:
    clock.sleep(seconds)


class _Table(Generic[T]):
    """The conversations, as far as they have got."""

    def __init__(
        self,
        channel: Channel,
        begin: Mapping[Partition, Begin[T]],
        at_once: int,
        lock: AbstractContextManager[Any],
    ) -> None:
        self._channel, self._begin, self._at_once, self._lock = channel, begin, at_once, lock
        # Those that have not begun. Each makes some twenty objects: if all were there together, they would outlive
        # Python's young garbage collections, and more full ones would follow, which visit all objects of the process.
        self._later = deque(begin)
        self._running: dict[Partition, Conversation[T]] = {}
        self._asks: dict[Partition, Sequence[ServerRequest]] = {}  # what is to be sent next
        self._answers: dict[Partition, int] = {}  # since a conversation began, after which it asked on
        self._most_answers: dict[Partition, int] = {}
        self._error: Exception | None = None  # that ends all, when each answer has been passed on
        self.interrupted: dict[Partition, Wait] = {}
        self.results: dict[Partition, T] = {}

    def begin(self) -> bool:
        """Let the conversations begin. Return as `_talk`."""
        with self._lock:
            return self._talk()

    def resume(self) -> bool:
        """Let the interrupted conversations go on. Return as `_talk`."""
        with self._lock:
            interrupted, self.interrupted = self.interrupted, {}
            for partition in interrupted:
                if partition in self._running:
                    self._advance(partition, True)
                else:
                    self._start(partition)
            return self._talk()

    def end(self) -> None:
        """Tell the conversations that wait that the time is over. Some have a result nevertheless."""
        with self._lock:
            for partition in [one for one in self.interrupted if one in self._running]:
                del self.interrupted[partition]
                self._advance(partition, False)
            self._talk()

    def _talk(self) -> bool:
        """Let the conversations go on until each has ended or is interrupted. Return whether one has got further than
        ever before: one that begins again and again makes no progress."""
        has_progress = False
        while self._error is None:
            while self._later and len(self._asks) < self._at_once:
                self._start(self._later.popleft())
            if not self._asks:
                break
            sent = {partition: self._asks.pop(partition) for partition in list(self._asks)[: self._at_once]}
            for partition, exchanges in self._channel.exchange(sent).items():
                self._advance(partition, exchanges)
                if partition in self._asks:
                    self._answers[partition] += 1
                if partition in self.results or self._answers[partition] > self._most_answers.get(partition, 0):
                    self._most_answers[partition] = self._answers[partition]
                    has_progress = True
        if self._error is not None:
            raise self._error
        return has_progress

    def _start(self, partition: Partition) -> None:
        self._running[partition] = self._begin[partition]()
        self._answers[partition] = 0
        self._advance(partition, None)

    def _advance(self, partition: Partition, answer: Any) -> None:
        try:
            wanted = self._running[partition].send(answer)
        except StopIteration as end:
            del self._running[partition]
            self.results[partition] = end.value
        except TransportError as error:
            del self._running[partition]
            self._channel.failed(partition, error)
            self.interrupted[partition] = Wait(str(error), is_topic_unknown=error.is_topic_unknown)
        except Exception as error:
            self._error = self._error or error
        else:
            if isinstance(wanted, Wait):
                self.interrupted[partition] = wanted
            else:
                self._asks[partition] = wanted
