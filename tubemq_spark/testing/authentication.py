# SPDX-License-Identifier: Apache-2.0
"""Access: the servers' checks of credentials and visit tokens, and a master's checks of every call.

TubeMQ's own handlers check that credentials are present and recent; they do not compare passwords.
wire: SimpleCertificateMasterHandler, SimpleCertificateBrokerHandler, SimpleVisitTokenManager.
"""

from __future__ import annotations

from typing import Any

from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.protocol.pb import MasterService_pb2 as master_pb
from tubemq_spark.testing.clock import Clock
from tubemq_spark.testing.config import Release, ServerConfig
from tubemq_spark.testing.dispatch import DeclinedError, RefusalError
from tubemq_spark.testing.java import is_blank
from tubemq_spark.testing.request_checks import Field, required_text

_KEPT_BY_BROKERS = 6
_STANDBY = "org.apache.inlong.tubemq.corerpc.exception.StandbyException"


class VisitTokens:
    """The tokens that clients receive from the masters and show to the brokers; each is its creation time in ms.

    The masters create one after each four fifths of `visit_token_valid_period`. Clients receive the last but one, which
    every broker knows by then.
    """

    def __init__(self, clock: Clock, config: ServerConfig) -> None:
        self._clock = clock
        self._period = config.visit_token_valid_period * 4 / 5
        self._next = clock.now() + self._period
        self._tokens = [clock.wall_ms()]

    @property
    def current(self) -> int:
        """The token that clients receive now."""
        self._rotate()
        return self._tokens[-2] if len(self._tokens) > 1 else self._tokens[0]

    @property
    def accepted(self) -> tuple[int, ...]:
        """The tokens that brokers accept now, oldest first."""
        self._rotate()
        return tuple(self._tokens)

    def rotate(self) -> None:
        """Create the next token now; the one after it follows a whole period later."""
        self._rotate()
        self._next = self._clock.now()
        self._rotate()

    def _rotate(self) -> None:
        now = self._clock.now()
        while now >= self._next:
            made = self._clock.wall_ms() - int((now - self._next) * 1000)
            self._tokens = [*self._tokens, max(made, self._tokens[-1] + 1)][-_KEPT_BY_BROKERS:]
            self._next += self._period


class AccessCheck:
    """One per master. `standby` is True while another master is the active one."""

    def __init__(self, clock: Clock, config: ServerConfig, tokens: VisitTokens) -> None:
        self._clock = clock
        self._config = config
        self._tokens = tokens
        self.release = config.release
        self.standby = False
        self.address = ""  # host:port of this master, for error texts

    def text(self, field: Field, value: str) -> str:
        """Return `value` without surrounding blanks; `DeclinedError` if it is missing or too long."""
        return required_text(field, value, self.release)

    def consumer(self, request: Any) -> tuple[str, str]:
        """Check a request of a consumer that has registered; return client id and group."""
        self.check_credentials(request.authInfo, produce=False)
        client_id = self.text(Field.CLIENT_ID, request.clientId)
        group = self.text(Field.GROUP_NAME, request.groupName)
        self.check_active(client_id)
        return client_id, group

    def new_consumer(self, request: Any) -> tuple[str, str]:
        """Check a consumer's register; return client id and group. Release 1.2 checks its role later."""
        self.check_credentials(request.authInfo, produce=False)
        client_id = self.text(Field.CLIENT_ID, request.clientId)
        self.text(Field.HOST_NAME, request.hostName)
        group = self.text(Field.GROUP_NAME, request.groupName)
        if self.release is not Release.V1_2:
            self.check_active(client_id)
        return client_id, group

    def check_credentials(self, info: master_pb.MasterCertificateInfo, *, produce: bool) -> None:
        """Raise `DeclinedError` with 415 when the master requires credentials and these are wrong."""
        if not _requires_credentials(self._config, produce):
            return
        claim = info.authInfo
        if is_blank(claim.userName):
            raise _illegal("authInfo.userName is Blank!")
        if is_blank(claim.signature):
            raise _illegal("authInfo.signature is Blank!")
        if abs(self._clock.wall_ms() - claim.timestamp) > self._config.auth_valid_time_stamp_period * 1000:
            raise _illegal("timestamp out of effective period in authenticateToken!")

    def check_active(self, client_id: str) -> None:
        """Raise `RefusalError` when another master is the active one."""
        if self.standby:
            raise RefusalError(_STANDBY, f"{self.address} is not master now. the connecting client id is {client_id}")

    def authorized(self) -> master_pb.MasterAuthorizedInfo:
        """Return the token field of successful replies."""
        return master_pb.MasterAuthorizedInfo(visitAuthorizedToken=self._tokens.current)


class BrokerAccess:
    """One per broker. `registered_at` is when it last registered at the master, by the clock.

    For a while after that it accepts any visit token, because it may not know all of them yet.
    """

    def __init__(self, clock: Clock, config: ServerConfig, tokens: VisitTokens) -> None:
        self._clock = clock
        self._config = config
        self._tokens = tokens
        self.registered_at = clock.now()

    def check(self, info: broker_pb.AuthorizedInfo, *, produce: bool) -> None:
        """Check the credentials of a send, register, unregister or heartbeat; `DeclinedError` with 415."""
        config = self._config
        settled = self._clock.now() - self.registered_at > config.visit_token_check_in_valid_time
        if config.start_visit_token_check and settled and info.visitAuthorizedToken not in self._tokens.accepted:
            raise DeclinedError(ErrCode.CERTIFICATE_FAILURE, "Visit Authorized Token is invalid!")
        if _requires_credentials(config, produce) and is_blank(info.authAuthorizedToken):
            raise DeclinedError(ErrCode.CERTIFICATE_FAILURE, "authAuthorizedToken is Blank!")


def _requires_credentials(config: ServerConfig, produce: bool) -> bool:
    return config.start_produce_authenticate if produce else config.start_consume_authenticate


def _illegal(text: str) -> DeclinedError:
    return DeclinedError(ErrCode.CERTIFICATE_FAILURE, f"Illegal value: {text}")
