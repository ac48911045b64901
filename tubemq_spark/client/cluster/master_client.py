# SPDX-License-Identifier: Apache-2.0
"""Requests to the masters: failover, retry, and whether a master still knows the client; and `MasterSession`, the
common part of consumer and producer sessions.

The master that answered last is asked first. If it refuses, does not answer or is the standby (`unwrap_reply` raises
`TransportError`), the client asks the next master of the list and registers there.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum, auto
from math import inf
from typing import TypeVar

from google.protobuf.message import Message

from tubemq_spark.client import system
from tubemq_spark.client.clock import SYSTEM_CLOCK, Clock
from tubemq_spark.client.cluster.cluster_metadata import Cluster, TopicRegistry
from tubemq_spark.client.heartbeat import HEARTBEAT
from tubemq_spark.client.net.pool import POOL
from tubemq_spark.client.net.rpc import Outcome, ServerRequest, send_requests, unwrap_reply
from tubemq_spark.client.retries import Deadline, Retries
from tubemq_spark.client.runtime import PerProcess
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.client.tls import warn_of_unverified_names
from tubemq_spark.client.visit_token import VisitToken, authorization
from tubemq_spark.errors import ConfigError, ServerError, TransportError, TubeMQError
from tubemq_spark.protocol.auth import master_certificate
from tubemq_spark.protocol.constants import MASTER_PORT, WEB_PORT, Method, ServiceType
from tubemq_spark.protocol.envelope import Failure, Response
from tubemq_spark.protocol.errcode import ErrCode, error_for_code, is_elsewhere
from tubemq_spark.protocol.metadata import Address, Broker
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.protocol.pb import MasterService_pb2 as pb

_log = logging.getLogger(__name__)

_BROKER_LOOKUP = 1.0  # seconds; between two requests of one session for the address of a broker

_counter = PerProcess(lambda: itertools.count(1))

T = TypeVar("T")
R = TypeVar(
    "R",
    pb.RegisterResponseM2CV2,
    pb.HeartResponseM2CV2,
    pb.GetPartMetaResponseM2C,
    pb.RegisterResponseM2P,
    pb.HeartResponseM2P,
)


class SessionExpiredError(TransportError):
    """The master does not know this client any more. The client must register again."""

    cause = "The master does not know this client any more, for example after its restart."
    remedy = (
        "Nothing: the client registers again. If that fails for longer than the retries, act as for a `TransportError`."
    )


class MemberState(Enum):
    """A consumer of a group, or a producer, as the master sees it."""

    NEW = auto()
    REGISTERED = auto()
    FORGOTTEN = auto()  # the master timed it out, or another master took over: register again
    CLOSED = auto()


class MasterClient:
    """One client's view of the masters. Not thread-safe: the session that owns it holds a lock."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._masters = list(settings.masters)  # the one in service first
        self.state = MemberState.NEW
        self.forgotten_at = -inf  # on the monotonic clock; the master in service may have begun then
        self._has_met_master = settings.master_reachable  # in service or not
        self._answer_by: Deadline | None = None  # see `within_deadline`

    @property
    def address(self) -> Address:
        """The master that is asked first."""
        return self._masters[0]

    @property
    def is_registered(self) -> bool:
        return self.state is MemberState.REGISTERED

    def ask(self, method: Method, message: Message, kind: type[R], what: str) -> R:
        """Return the reply of the first master that is in service. Masters that fail move to the end of the list.

        Raise `TransportError` if no master is in service, `SessionExpiredError` if the client must register again, and
        the error of the reply's code otherwise.
        """
        reply = self._ask_in_turn(method, message, kind, what)
        code = reply.errCode
        if code == ErrCode.HB_NO_NODE:
            self._is_forgotten()
            raise SessionExpiredError(f"{what}: the master has forgotten this client")
        if code == ErrCode.NOT_READY:
            raise TransportError(f"{what}: the master is not ready")
        if code != ErrCode.SUCCESS:
            raise error_for_code(code, reply.errMsg, f"{what} at the master {self.address}")
        # After a failover another master answered, which knows this client too.
        self.state = MemberState.REGISTERED
        return reply

    def _ask_in_turn(self, method: Method, message: Message, kind: type[R], what: str) -> R:
        failures, is_silence = [], False
        for number in range(len(self._masters)):
            request = ServerRequest(
                self.address, ServiceType.MASTER, method, message, f"{what} at the master {self.address}"
            )
            (outcome,) = send_requests(self._settings, [request], self._timeout(len(self._masters) - number))
            self._has_met_master |= _is_of_master(outcome)
            try:
                return unwrap_reply(outcome, kind, request.what)
            except TransportError as error:
                failures.append(str(error))
                is_silence |= isinstance(outcome, TransportError) and outcome.is_silence
                self._masters.append(self._masters.pop(0))
                if self.is_registered:
                    self._is_forgotten()
            except ServerError as error:
                if error.name != "Exception":
                    raise
                raise ConfigError(
                    f"{self.address} answers like a TubeMQ broker, not like a master ({error.message}). "
                    f"Check option 'tubemq.master': masters listen on {MASTER_PORT} by default"
                ) from None
        ports = (
            "" if self._has_met_master else f" there: its port is {MASTER_PORT} by default, and not {WEB_PORT} (HTTP)"
        )
        raise TransportError(
            f"no master answered: {'; '.join(failures)}. Check option 'tubemq.master' and that the master runs{ports}",
            is_silence=is_silence,
        )

    def _is_forgotten(self) -> None:
        self.state = MemberState.FORGOTTEN
        self.forgotten_at = self._settings.clock.monotonic()

    def retry(self, request: Callable[[], T], at_most: float = inf) -> T:
        """Return what `request` returns. Repeat it while it raises `TransportError`, as long as the settings say, but
        `at_most` seconds.

        A client that no master has answered yet gives up early, because the addresses may be wrong. It goes on if a
        standby answers, which becomes active soon after the active master has died. If a peer accepts the connection
        and is silent, one reply may be lost, so it asks once more.
        """
        is_first_contact, was_silent = self._is_first_contact, False
        first_contact = self._settings.timings.first_contact_timeout if is_first_contact else inf
        retries = self._retries(min(first_contact, at_most))
        while True:
            try:
                reply = request()
            except TransportError as error:
                if is_first_contact:
                    if not self._is_first_contact:
                        is_first_contact, retries = False, self._retries(inf)
                    elif error.is_silence and not was_silent:
                        was_silent, retries = True, self._retries(first_contact)
                if not retries.failed(error):
                    raise
            else:
                retries.progress()
                return reply

    @contextmanager
    def within_deadline(self, seconds: float) -> Iterator[None]:
        """Let requests within this block take `seconds` altogether. Masters that are not yet asked share the rest."""
        self._answer_by = Deadline(seconds)  # sockets take real time
        try:
            yield
        finally:
            self._answer_by = None

    def _timeout(self, masters: int) -> float | None:
        """Return how long to wait for one of `masters` that are still to be asked."""
        if self._answer_by is None:
            first_answer = self._settings.timings.first_answer_timeout
            return min(self._settings.rpc_timeout, first_answer) if self._is_first_contact else None
        least = self._settings.timings.min_connect_step
        return min(self._settings.rpc_timeout, max(least, self._answer_by.left / masters))

    @property
    def _is_first_contact(self) -> bool:
        return self.state is MemberState.NEW and not self._has_met_master

    def _retries(self, at_most: float) -> Retries:
        """Return retries for as long as the settings say, but `at_most` seconds."""
        masters = ", ".join(map(str, self._settings.masters))
        seconds = min(at_most, self._settings.retry_for)
        return Retries(seconds, self._settings.clock, f"asking the master {masters}", _log)

    def certificate(self) -> pb.MasterCertificateInfo | None:
        """Return the credentials, signed now, for one request; None without credentials."""
        if self._settings.credentials is None:
            return None
        now_ms = int(self._settings.clock.time() * 1000)
        return master_certificate(self._settings.credentials, now_ms, system.randomizer.getrandbits(31))

    def close(self, method: Method, message: Message) -> None:
        """Send one unregister request. A master that does not receive it notices by missing heartbeats."""
        was_registered = self.is_registered
        self.state = MemberState.CLOSED
        if was_registered:
            what = f"closing at the master {self.address}"
            send_requests(
                self._settings,
                [ServerRequest(self.address, ServiceType.MASTER, method, message, what)],
                timeout=min(self._settings.timings.master_close_timeout, self._settings.rpc_timeout),
            )


def _is_of_master(outcome: Outcome) -> bool:
    """Return True for a master's reply, also a refusal, and if a standby answers."""
    return isinstance(outcome, Response) or (isinstance(outcome, Failure) and is_elsewhere(outcome))


def new_client_id(role: str, clock: Clock = SYSTEM_CLOCK) -> str:
    """Return a unique client id: `spark_<role>_<address>_<pid>_<ms>_<n>_<random>`."""
    sender = f"spark_{role}_{system.host_address()}_{system.process_id()}"
    return f"{sender}_{int(clock.time() * 1000)}_{next(_counter())}_{system.randomizer.getrandbits(24):06x}"


class MasterSession:
    """One client that registers with a master. Safe to use from several threads."""

    def __init__(self, settings: ClientSettings, role: str) -> None:
        warn_of_unverified_names(settings.tls)
        self.settings = settings
        self.client_id = new_client_id(role, settings.clock)
        self.token = VisitToken(self._ask_for_token)
        self._master = MasterClient(settings)
        self._registry = TopicRegistry(settings)
        self._lock = system.RLock()  # the heartbeat thread and the session's owner take turns
        self._stop_heartbeat: Callable[[], None] | None = None
        self._looked_up_at = float("-inf")  # when the masters were asked where a broker is, on the monotonic clock

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.client_id} {self._master.state.name} at {self._master.address}>"

    @property
    def cluster(self) -> Cluster:
        """All brokers and partitions that masters have listed so far."""
        return self._registry.cluster

    @property
    def visit_token(self) -> int:
        return self.token.value

    @property
    def master_changed_at(self) -> float:
        """When a master was last found to have forgotten this client, or not to answer, on the monotonic clock. The
        lists of the next one may be short at first."""
        return self._master.forgotten_at

    def broker_authorization(self) -> broker_pb.AuthorizedInfo:
        """Return the signed authorization for one request to a broker."""
        return authorization(self.settings.credentials, self.visit_token, self.settings.clock)

    def refresh(self) -> Cluster:
        """List the partitions again until a master answers, and register again if needed. Return the metadata. Raises
        as `ConsumerSession.register` and `ProducerSession.add_topics` do."""
        with self._lock:
            self._master.retry(self._list)
            return self.cluster

    def known_broker(self, broker_id: int) -> Broker | None:
        """Return the broker, None if no master has listed it. If another broker was met at its address, ask the masters
        again first."""
        broker = self.cluster.brokers.get(broker_id)
        return broker if broker is None or not POOL().is_elsewhere(broker) else self.current_broker(broker)

    def current_broker(self, broker: Broker) -> Broker:
        """Return `broker` where the masters list it now. They are asked at most once a second, each once."""
        within, clock = self.settings.rpc_timeout, self.settings.clock
        if clock.monotonic() - self._looked_up_at >= _BROKER_LOOKUP:
            self._looked_up_at = clock.monotonic()  # for other threads
            try:
                with self._locked_within(within), self._master.within_deadline(within):
                    if self._master.state is not MemberState.CLOSED:
                        self._list()
            except TubeMQError as error:
                _log.info("the master does not say where %s is now: %s", broker, error)
            self._looked_up_at = clock.monotonic()
        return self.cluster.brokers.get(broker.broker_id, broker)

    def _list_until(self, is_answered: Callable[[], bool]) -> None:
        """List again while `is_answered` is False and the lists of a new master may still be short."""
        clock, registry = self.settings.clock, self._registry
        # A master that forgets this client again and again must not keep us here for ever.
        retries = Retries(self.settings.retry_for + self.settings.timings.topic_lists_fill_up, clock)
        while not is_answered() and retries.pause(at_most=registry.complete_by - clock.monotonic()):
            self._master.retry(self._list)

    def _as_member(self, request: Callable[[], T]) -> T:
        """Return what `request` returns, which asks a master. Register before it if needed, and again if the master has
        forgotten this client.

        All requests but registrations come through here: a master that restarted or took over knows no client.
        """
        if self._master.is_registered:
            with suppress(SessionExpiredError):
                return request()
        self._register()
        return request()

    def _register(self) -> None:
        """Register at a master."""
        raise NotImplementedError

    def _list(self) -> None:
        """Ask a master for the partitions, as a member."""
        raise NotImplementedError

    def _ask_for_token(self) -> int:
        """Return a new visit token. Ask each master once at most."""
        raise NotImplementedError

    def _start_heartbeat(self, beat: Callable[[], None]) -> None:
        with self._lock:  # two threads may add the first topics at the same time
            if self._stop_heartbeat is None:
                self._stop_heartbeat = HEARTBEAT().keep(beat, self.settings.timings.heartbeat_period)

    def _close(self, method: Method, message: Message) -> None:
        if self._stop_heartbeat is not None:
            self._stop_heartbeat()
        with suppress(TransportError), self._locked_within(self.settings.timings.master_close_timeout):
            self._master.close(method, message)

    @contextmanager
    def _locked_within(self, seconds: float) -> Iterator[None]:
        """Hold the lock, or raise `TransportError` if another thread waits longer for the master's answer."""
        if not self._lock.acquire(timeout=seconds):
            raise TransportError(f"the master {self._master.address} does not answer another request of this client")
        try:
            yield
        finally:
            self._lock.release()
