# SPDX-License-Identifier: Apache-2.0
"""Visit tokens: a broker's authorization check, where the master is configured with `startVisitTokenCheck`.

The master makes a new token every few minutes and sends it with its replies. A broker accepts the last six, so a token
lives for 16 to 20 minutes by default (wire: SimpleVisitTokenManager, SimpleCertificateBrokerHandler). A broker refuses
an older one with 415. The client then gets a newer token from the master and repeats the request.
"""

from __future__ import annotations

from collections.abc import Callable

from tubemq_spark.client import system
from tubemq_spark.client.clock import SYSTEM_CLOCK, Clock
from tubemq_spark.errors import TransportError, TubeMQError
from tubemq_spark.protocol.auth import Credentials, broker_authorization
from tubemq_spark.protocol.constants import UNKNOWN_ID
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb


class VisitToken:
    """The last token that the master gave to one client: `value`, -2 before the first. Safe to use from several
    threads.
    """

    def __init__(self, ask: Callable[[], int], value: int = UNKNOWN_ID) -> None:
        """`ask` asks the master and returns its token, or raises a `TubeMQError`."""
        self.value = value
        self._ask = ask
        self._lock = system.Lock()  # held while the master is asked, so that only one thread asks

    def __repr__(self) -> str:
        return f"<VisitToken {self.value}>"

    def renew(self, refused: int) -> None:
        """Get a newer token than `refused`, unless another thread has done so meanwhile.

        Raise `TransportError` if the master does not answer or sends the same token again.
        """
        with self._lock:
            if self.value != refused:
                return
            try:
                self.value = self._ask()
            except TubeMQError as error:
                raise TransportError(f"the master gives no newer one: {error}") from None
            if self.value == refused:
                raise TransportError("the master gives no newer one")


def _no_master() -> int:
    raise TransportError("this client asks no master")


NO_TOKEN = VisitToken(_no_master)
"""For brokers that do not check tokens."""


def authorization(
    credentials: Credentials | None, visit_token: int, clock: Clock = SYSTEM_CLOCK
) -> broker_pb.AuthorizedInfo:
    """Return the authorization for one request to a broker. It is made again each time, because servers check the age
    of its timestamp.
    """
    return broker_authorization(credentials, visit_token, int(clock.time() * 1000), system.randomizer.getrandbits(31))
