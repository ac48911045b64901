# SPDX-License-Identifier: Apache-2.0
"""Access checks of every call to a master: the caller's credentials first, then the master's own role."""

from __future__ import annotations

from typing import Any

from tubemq_spark.protocol.pb import MasterService_pb2 as master_pb
from tubemq_spark.testing.authentication import VisitTokens, check_certificate
from tubemq_spark.testing.clock import Clock
from tubemq_spark.testing.config import Release, ServerConfig
from tubemq_spark.testing.dispatch import RefusalError
from tubemq_spark.testing.request_checks import Field, required_text

_STANDBY = "org.apache.inlong.tubemq.corerpc.exception.StandbyException"


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
        check_certificate(info, self._config, self._clock, produce=produce)

    def check_active(self, client_id: str) -> None:
        """Raise `RefusalError` when another master is the active one."""
        if self.standby:
            raise RefusalError(_STANDBY, f"{self.address} is not master now. the connecting client id is {client_id}")

    def authorized(self) -> master_pb.MasterAuthorizedInfo:
        """Return the token field of successful replies."""
        return master_pb.MasterAuthorizedInfo(visitAuthorizedToken=self._tokens.current)
