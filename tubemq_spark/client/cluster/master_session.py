"""The common part of consumer and producer sessions: client id, metadata, visit token and heartbeat."""

from __future__ import annotations

import itertools
import os
import random
import threading
from collections.abc import Callable

from google.protobuf.message import Message

from tubemq_spark.client.clock import SYSTEM_CLOCK, Clock
from tubemq_spark.client.cluster.cluster_metadata import Cluster
from tubemq_spark.client.cluster.master_client import MasterClient
from tubemq_spark.client.cluster.topic_registry import TopicRegistry
from tubemq_spark.client.heartbeat import HEARTBEAT
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.client.tls import warn_of_unverified_names
from tubemq_spark.client.visit_token import VisitToken, authorization
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.lifecycle import MemberState
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb

HOST = "127.0.0.1"  # servers log it and require an IPv4 address; the value changes nothing

_counter = itertools.count(1)


def new_client_id(role: str, clock: Clock = SYSTEM_CLOCK) -> str:
    """Return a unique client id: `spark_<role>_<pid>_<ms>_<n>_<random>`."""
    return f"spark_{role}_{os.getpid()}_{int(clock.time() * 1000)}_{next(_counter)}_{random.getrandbits(24):06x}"


class MasterSession:
    """One client that registers with a master. Safe to use from several threads."""

    def __init__(self, settings: ClientSettings, role: str) -> None:
        warn_of_unverified_names(settings.tls)
        self.settings = settings
        self.client_id = new_client_id(role, settings.clock)
        self.token = VisitToken(self._ask_for_token)
        self._master = MasterClient(settings, self.client_id)
        self._registry = TopicRegistry(settings)
        self._lock = threading.RLock()  # the heartbeat thread and the session's owner take turns
        self._stop_heartbeat: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.client_id} {self._master.state.name} at {self._master.address}>"

    @property
    def cluster(self) -> Cluster:
        """All brokers and partitions that masters have listed so far."""
        return self._registry.cluster

    @property
    def is_forgotten(self) -> bool:
        """True if no master knows this client at the moment."""
        return self._master.state is MemberState.FORGOTTEN

    @property
    def visit_token(self) -> int:
        """The last visit token of a master."""
        return self.token.value

    def broker_authorization(self) -> broker_pb.AuthorizedInfo:
        """Return the signed authorization for one request to a broker."""
        return authorization(self.settings.credentials, self.visit_token, self.settings.clock)

    def _ask_for_token(self) -> int:
        """Return a new visit token. Ask each master once at most."""
        raise NotImplementedError

    def _start_heartbeat(self, beat: Callable[[], None]) -> None:
        with self._lock:  # two threads may add the first topics at the same time
            if self._stop_heartbeat is None:
                self._stop_heartbeat = HEARTBEAT.keep(beat, self.settings.timings.heartbeat_period)

    def _close(self, method: Method, message: Message) -> None:
        with self._lock:
            if self._stop_heartbeat is not None:
                self._stop_heartbeat()
            self._master.close(method, message)
