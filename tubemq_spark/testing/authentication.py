# SPDX-License-Identifier: Apache-2.0
"""Access: the servers' checks of credentials and visit tokens, and a master's checks of every call.

TubeMQ's own handlers check that credentials are present and recent; they do not compare passwords.
wire: SimpleCertificateMasterHandler, SimpleCertificateBrokerHandler.
"""

from __future__ import annotations

from typing import Any

from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.protocol.pb import MasterService_pb2 as master_pb
from tubemq_spark.testing.catalog import Catalog
from tubemq_spark.testing.config import Release, ServerConfig
from tubemq_spark.testing.dispatch import DeclinedError, RefusalError
from tubemq_spark.testing.java import is_blank
from tubemq_spark.testing.request_checks import Field, required_text

_STANDBY = "org.apache.inlong.tubemq.corerpc.exception.StandbyException"


class AccessCheck:
    """One per master. `standby` is True while another master is the active one."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._release = catalog.config.release
        self.standby = False
        self.address = ""  # host:port of this master, for error texts

    def text(self, field: Field, value: str) -> str:
        """Return `value` without surrounding blanks; `DeclinedError` if it is missing or too long."""
        return required_text(field, value, self._release)

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
        if self._release is not Release.V1_2:
            self.check_active(client_id)
        return client_id, group

    def check_credentials(self, info: master_pb.MasterCertificateInfo, *, produce: bool) -> None:
        """Raise `DeclinedError` with 415 when the master requires credentials and these are wrong."""
        config = self._catalog.config
        if not _requires_credentials(config, produce):
            return
        claim = info.authInfo
        if is_blank(claim.userName):
            raise _illegal("authInfo.userName is Blank!")
        if is_blank(claim.signature):
            raise _illegal("authInfo.signature is Blank!")
        if abs(self._catalog.clock.wall_ms() - claim.timestamp) > config.auth_valid_time_stamp_period * 1000:
            raise _illegal("timestamp out of effective period in authenticateToken!")

    def check_active(self, client_id: str) -> None:
        """Raise `RefusalError` when another master is the active one."""
        if self.standby:
            raise RefusalError(_STANDBY, f"{self.address} is not master now. the connecting client id is {client_id}")

    def authorized(self) -> master_pb.MasterAuthorizedInfo:
        """Return the token field of successful replies."""
        return master_pb.MasterAuthorizedInfo(visitAuthorizedToken=self._catalog.tokens.current)


class BrokerAccess:
    """One per broker. `registered_at` is when it last registered at the master, by the clock.

    For a while after that it accepts any visit token, because it may not know all of them yet.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.registered_at = catalog.clock.now()

    def check(self, info: broker_pb.AuthorizedInfo, *, produce: bool) -> None:
        """Check the credentials of a send, register, unregister or heartbeat; `DeclinedError` with 415."""
        config, tokens = self._catalog.config, self._catalog.tokens
        settled = self._catalog.clock.now() - self.registered_at > config.visit_token_check_in_valid_time
        if config.start_visit_token_check and settled and info.visitAuthorizedToken not in tokens.accepted:
            raise DeclinedError(ErrCode.CERTIFICATE_FAILURE, "Visit Authorized Token is invalid!")
        if _requires_credentials(config, produce) and is_blank(info.authAuthorizedToken):
            raise DeclinedError(ErrCode.CERTIFICATE_FAILURE, "authAuthorizedToken is Blank!")


def _requires_credentials(config: ServerConfig, produce: bool) -> bool:
    return config.start_produce_authenticate if produce else config.start_consume_authenticate


def _illegal(text: str) -> DeclinedError:
    return DeclinedError(ErrCode.CERTIFICATE_FAILURE, f"Illegal value: {text}")
