"""What every call to a master passes: first the check of its credentials, later the one of the master's own role."""

from __future__ import annotations

from tubemq_spark.protocol.pb import MasterService_pb2 as master_pb
from tubemq_spark.testing.authentication import VisitTokens, check_certificate
from tubemq_spark.testing.clock import Clock
from tubemq_spark.testing.config import ServerConfig
from tubemq_spark.testing.dispatch import RefusalError

_STANDBY = "org.apache.inlong.tubemq.corerpc.exception.StandbyException"


class AccessCheck:
    def __init__(self, clock: Clock, config: ServerConfig, tokens: VisitTokens) -> None:
        self._clock = clock
        self._config = config
        self._tokens = tokens
        self.standby = False
        self.address = ""  # host:port of this master, which its refusals name

    def admit(self, info: master_pb.MasterCertificateInfo, *, produce: bool) -> None:
        """`DeclinedError` with 415 when credentials are asked for and these do not do."""
        check_certificate(info, self._config, self._clock, produce=produce)

    def check_active(self, client_id: str) -> None:
        """`RefusalError` when another master is the active one."""
        if self.standby:
            raise RefusalError(_STANDBY, f"{self.address} is not master now. the connecting client id is {client_id}")

    def authorized(self) -> master_pb.MasterAuthorizedInfo:
        """What successful replies bring along."""
        return master_pb.MasterAuthorizedInfo(visitAuthorizedToken=self._tokens.current)
