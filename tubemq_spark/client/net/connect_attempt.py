# SPDX-License-Identifier: Apache-2.0
"""Connecting in the background, so that messages for other brokers do not wait for a broker that is down."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from tubemq_spark.client import system
from tubemq_spark.client.net.broker_identity import ExpectedBroker
from tubemq_spark.client.net.connection import Connection
from tubemq_spark.client.net.pool import POOL
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.client.visit_token import NO_TOKEN, VisitToken
from tubemq_spark.errors import ProtocolError, TransportError
from tubemq_spark.protocol.metadata import Broker

_BACKGROUND_CONNECT_TIMEOUT = 3.0  # seconds; of a connection that a producer opens in the background


class ConnectAttempt:
    """One attempt to connect to a broker, shared by all producers that want it meanwhile.

    It is `done` when there is a connection, which the first producer gets, or an error, which all get. `begun_at` is on
    the monotonic clock.
    """

    def __init__(
        self, settings: ClientSettings, broker: Broker, failed: Callable[[], None], token: VisitToken = NO_TOKEN
    ) -> None:
        """`failed` is called once if the attempt fails. `token` is as for `ExpectedBroker`."""
        self.broker = broker
        self._server = ExpectedBroker(broker, token)
        self.begun_at = settings.clock.monotonic()
        self._settings = settings
        self._failed = failed
        self._lease = ExitStack()
        self._lock = system.Lock()  # of the three below: the attempt has a thread of its own
        self._result: Connection | TransportError | ProtocolError | None = None
        self._waiting = 1  # producers that wait for the result
        self._taken = False
        if POOL().has_idle(self._server, settings):
            self._run()
        else:
            system.Thread(target=self._run, daemon=True, name=f"tubemq-connect-{broker.broker_id}").start()

    def __repr__(self) -> str:
        return f"<ConnectAttempt to {self.broker}: {'running' if self._result is None else self._result!r}>"

    @property
    def done(self) -> bool:
        return self._result is not None

    def join(self) -> bool:
        """Add one more waiting producer. Return False if the attempt is done, so that a new one is needed."""
        with self._lock:
            if self._result is not None:
                return False
            self._waiting += 1
            return True

    def take(self) -> tuple[Connection, ExitStack] | None:
        """Return the connection and the lease that gives it back when closed; None if another producer has taken it.

        Raise `TransportError` or `ProtocolError` if the broker could not be reached.
        """
        with self._lock:
            result, self._waiting = self._result, self._waiting - 1
            assert result is not None
            if not isinstance(result, Connection):
                raise result
            if self._taken:
                return None
            self._taken = True
            return result, self._lease

    def close(self) -> None:
        """Remove one waiting producer. A connection that nobody waits for goes to the pool."""
        with self._lock:
            self._waiting -= 1
            if self._waiting or self._result is None or self._taken:
                return
        self._lease.close()

    def _run(self) -> None:
        timeout = min(_BACKGROUND_CONNECT_TIMEOUT, self._settings.rpc_timeout)
        result: Connection | TransportError | ProtocolError
        try:
            result = self._lease.enter_context(POOL().lease(self._server, self._settings, timeout))
        except (TransportError, ProtocolError) as error:
            result = error
        except Exception as error:  # the thread must always give a result, because somebody waits for it
            result = TransportError(f"{self.broker} cannot be reached: {error}")
        if not isinstance(result, Connection):
            self._failed()  # before anybody can begin the next attempt
        with self._lock:
            self._result = result
            if self._waiting:
                return
        self._lease.close()


class ConnectAttempts:
    """The attempts of all producers of a session: one at a time to each broker. Safe to use from several threads."""

    def __init__(
        self, settings: ClientSettings, unreachable: Callable[[int], None], token: VisitToken = NO_TOKEN
    ) -> None:
        """`unreachable` is called with the id of each broker that could not be reached, even if nobody waits for it.
        `token` is as for `ExpectedBroker`."""
        self._settings = settings
        self._token = token
        self._unreachable = unreachable
        self._last: dict[Broker, ConnectAttempt] = {}
        self._lock = system.Lock()  # of the dictionary: without it, two producers would begin two attempts

    def to(self, broker: Broker) -> ConnectAttempt:
        """Return the attempt that is running, or a new one. The caller must `take` or `close` it."""
        with self._lock:
            attempt = self._last.get(broker)
            if attempt is None or not attempt.join():
                failed = partial(self._unreachable, broker.broker_id)
                attempt = self._last[broker] = ConnectAttempt(self._settings, broker, failed, self._token)
            return attempt
