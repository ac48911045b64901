"""Connections are made in the background: the messages for other brokers do not wait for one that is not there."""

from __future__ import annotations

import threading
from contextlib import ExitStack

from tubemq_spark.client.connection import Connection
from tubemq_spark.client.pool import POOL
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import ProtocolError, TransportError
from tubemq_spark.protocol.metadata import Broker

_CONNECT_WITHIN = 3.0  # seconds


class Dial:
    """One attempt to reach a broker. It is `done` when there is a connection to take over, or an error."""

    def __init__(self, settings: ClientSettings, broker: Broker) -> None:
        self.broker = broker
        self._settings = settings
        self._lease = ExitStack()
        self._lock = threading.Lock()
        self._outcome: Connection | TransportError | ProtocolError | None = None
        self._given_up = False
        if POOL.has_idle(broker.address, settings):
            self._run()
        else:
            threading.Thread(target=self._run, daemon=True, name=f"tubemq-dial-{broker.broker_id}").start()

    def __repr__(self) -> str:
        return f"<Dial to {self.broker}: {'under way' if self._outcome is None else self._outcome!r}>"

    @property
    def done(self) -> bool:
        return self._outcome is not None

    def take(self) -> tuple[Connection, ExitStack]:
        """The connection, and the lease that gives it back when it is closed; `TransportError` or `ProtocolError` when
        the broker could not be reached."""
        if isinstance(self._outcome, (TransportError, ProtocolError)):
            raise self._outcome
        assert self._outcome is not None
        return self._outcome, self._lease

    def close(self) -> None:
        """Nobody wants the connection: it goes to the pool as soon as it is there."""
        with self._lock:
            self._given_up = True
            if self._outcome is None:
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
        with self._lock:
            self._outcome = outcome
            if not self._given_up:
                return
        self._lease.close()
