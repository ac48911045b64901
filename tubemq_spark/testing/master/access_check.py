# SPDX-License-Identifier: Apache-2.0
"""Access checks of every call to a master: the caller's credentials first, then the master's own role."""

from __future__ import annotations

from tubemq_spark.protocol.pb import MasterService_pb2 as master_pb
from tubemq_spark.testing.authentication import VisitTokens, check_certificate
from tubemq_spark.testing.clock import Clock
from tubemq_spark.testing.config import ServerConfig
from tubemq_spark.testing.dispatch import RefusalError

_STANDBY = "org.apache.inlong.tubemq.corerpc.exception.StandbyException"


class AccessCheck:
    """One per master. `standby` is True while another master is the active one."""

    def __init__(self, clock: Clock, config: ServerConfig, tokens: VisitTokens) -> None:
        self._clock = clock
        self._config = config
        self._tokens = tokens
        self.standby = False
        self.address = ""  # host:port of this master, for error texts

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
