"""Credentials and visit tokens as the servers check them.

The stock handlers look whether credentials are there and fresh; no password is compared.
wire: SimpleCertificateMasterHandler, SimpleCertificateBrokerHandler, SimpleVisitTokenManager.
"""

from __future__ import annotations

from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.protocol.pb import MasterService_pb2 as master_pb
from tubemq_spark.testing.clock import Clock
from tubemq_spark.testing.config import ServerConfig
from tubemq_spark.testing.java import is_blank
from tubemq_spark.testing.reply_status import DeclinedError

_KEPT_BY_BROKERS = 6


class VisitTokens:
    """The numbers that clients get from the masters and show to the brokers; each is the time it was made, in ms.

    A new one is made after four fifths of `visit_token_valid_period`. Clients are given the last but one, so that every
    broker has heard of it.
    """

    def __init__(self, clock: Clock, config: ServerConfig) -> None:
        self._clock = clock
        self._period = config.visit_token_valid_period * 4 / 5
        self._next = clock.now() + self._period
        self._tokens = [clock.wall_ms()]

    @property
    def current(self) -> int:
        """What clients are given now."""
        self._rotate()
        return self._tokens[-2] if len(self._tokens) > 1 else self._tokens[0]

    @property
    def accepted(self) -> tuple[int, ...]:
        """What brokers accept now, oldest first."""
        self._rotate()
        return tuple(self._tokens)

    def rotate(self) -> None:
        """As if the time for the next token had come; the one after that comes a whole period later."""
        self._rotate()
        self._next = self._clock.now()
        self._rotate()

    def _rotate(self) -> None:
        now = self._clock.now()
        while now >= self._next:
            made = self._clock.wall_ms() - int((now - self._next) * 1000)
            self._tokens = [*self._tokens, max(made, self._tokens[-1] + 1)][-_KEPT_BY_BROKERS:]
            self._next += self._period


def check_certificate(
    info: master_pb.MasterCertificateInfo, config: ServerConfig, clock: Clock, *, produce: bool
) -> None:
    """What a master checks first in every call of a producer or consumer; `DeclinedError` with 415."""
    if not (config.start_produce_authenticate if produce else config.start_consume_authenticate):
        return
    claim = info.authInfo
    if is_blank(claim.userName):
        raise _illegal("authInfo.userName is Blank!")
    if is_blank(claim.signature):
        raise _illegal("authInfo.signature is Blank!")
    if abs(clock.wall_ms() - claim.timestamp) > config.auth_valid_time_stamp_period * 1000:
        raise _illegal("timestamp out of effective period in authenticateToken!")


def check_authorization(
    info: broker_pb.AuthorizedInfo,
    config: ServerConfig,
    clock: Clock,
    tokens: VisitTokens,
    *,
    produce: bool,
    registered_at: float,
) -> None:
    """What a broker checks in sends, registers, unregisters and heartbeats; `DeclinedError` with 415.

    `registered_at` is when the broker last registered at the master, by `clock.now()`: for a while after that it takes
    any visit token, for it may not have heard of all.
    """
    settled = clock.now() - registered_at > config.visit_token_check_in_valid_time
    if config.start_visit_token_check and settled and info.visitAuthorizedToken not in tokens.accepted:
        raise DeclinedError(ErrCode.CERTIFICATE_FAILURE, "Visit Authorized Token is invalid!")
    required = config.start_produce_authenticate if produce else config.start_consume_authenticate
    if required and is_blank(info.authAuthorizedToken):
        raise DeclinedError(ErrCode.CERTIFICATE_FAILURE, "authAuthorizedToken is Blank!")


def _illegal(text: str) -> DeclinedError:
    return DeclinedError(ErrCode.CERTIFICATE_FAILURE, f"Illegal value: {text}")
