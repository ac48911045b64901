"""Connections are made in the background: the messages for other brokers do not wait for one that is not there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from tubemq_spark.client.net.connection import Connection
from tubemq_spark.client.net.pool import POOL
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import ProtocolError, TransportError
from tubemq_spark.protocol.metadata import Broker

_CONNECT_WITHIN = 3.0  # seconds


class ConnectAttempt:
    """One attempt to reach a broker, for all that want it meanwhile. It is `done` when there is a connection, which the
    first of them has, or an error, which is everybody's. `begun_at` is on the monotonic clock."""

    def __init__(self, settings: ClientSettings, broker: Broker, failed: Callable[[], None]) -> None:
        """`failed` is called, once, when there will be no connection."""
        self.broker = broker
        self.begun_at = time.monotonic()
        self._settings = settings
        self._failed = failed
        self._lease = ExitStack()
        self._lock = threading.Lock()
        self._outcome: Connection | TransportError | ProtocolError | None = None
        self._wanted = 1  # by so many
        self._taken = False
        if POOL.has_idle(broker.address, settings):
            self._run()
        else:
            threading.Thread(target=self._run, daemon=True, name=f"tubemq-dial-{broker.broker_id}").start()

    def __repr__(self) -> str:
        return f"<Dial to {self.broker}: {'under way' if self._outcome is None else self._outcome!r}>"

    @property
    def done(self) -> bool:
        return self._outcome is not None

    def join(self) -> bool:
        """One more wants it; False when it is done, and will not do for anybody else."""
        with self._lock:
            if self._outcome is not None:
                return False
            self._wanted += 1
            return True

    def take(self) -> tuple[Connection, ExitStack] | None:
        """The connection, and the lease that gives it back when it is closed; None when another has taken it.
        `TransportError` or `ProtocolError` when the broker could not be reached."""
        with self._lock:
            outcome, self._wanted = self._outcome, self._wanted - 1
            assert outcome is not None
            if not isinstance(outcome, Connection):
                raise outcome
            if self._taken:
                return None
            self._taken = True
            return outcome, self._lease

    def close(self) -> None:
        """One less wants it: a connection that nobody wants goes to the pool as soon as it is there."""
        with self._lock:
            self._wanted -= 1
            if self._wanted or self._outcome is None or self._taken:
                return
        self._lease.close()

    def _run(self) -> None:
        timeout = min(_CONNECT_WITHIN, self._settings.rpc_timeout)
        outcome: Connection | TransportError | ProtocolError
        try:
            outcome = self._lease.enter_context(POOL.lease(self.broker.address, self._settings, timeout))
        except (TransportError, ProtocolError) as error:
            outcome = error
        except Exception as error:  # the thread must not end without a word: somebody waits for it
            outcome = TransportError(f"{self.broker} cannot be reached: {error}")
        if not isinstance(outcome, Connection):
            self._failed()  # before anybody can begin the next one
        with self._lock:
            self._outcome = outcome
            if self._wanted:
                return
        self._lease.close()


class ConnectAttempts:
    """The attempts of all producers of a session: one at a time to each broker. Safe to use from several threads."""

    def __init__(self, settings: ClientSettings, unreachable: Callable[[int], None]) -> None:
        """`unreachable` is told the id of each broker that could not be reached, be anybody still waiting or not."""
        self._settings = settings
        self._unreachable = unreachable
        self._last: dict[Broker, ConnectAttempt] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Dials {[dial for dial in self._last.values() if not dial.done]}>"

    def to(self, broker: Broker) -> ConnectAttempt:
        """The attempt that is under way, or else a new one; `take` or `close` ends it for who asked."""
        with self._lock:
            dial = self._last.get(broker)
            if dial is None or not dial.join():
                dial = self._last[broker] = ConnectAttempt(
                    self._settings, broker, partial(self._unreachable, broker.broker_id)
                )
            return dial
