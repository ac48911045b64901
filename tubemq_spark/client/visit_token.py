"""The visit token, which brokers want to see where the master has `startVisitTokenCheck`.

The master makes a new token every few minutes and tells each client with its answers. A broker knows the last six, so
that a token lives for 16 to 20 minutes by default (wire: SimpleVisitTokenManager, SimpleCertificateBrokerHandler). A
broker refuses an older one with 415. Whoever made the call then gets a newer token from the master and repeats it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from tubemq_spark.errors import TransportError, TubeMQError
from tubemq_spark.protocol.auth import Credentials, broker_authorization
from tubemq_spark.protocol.constants import UNKNOWN_ID
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb


class VisitToken:
    """The last token that the master gave to one client: `value`, -2 before the first. Safe to use from threads."""

    def __init__(self, ask: Callable[[], int], value: int = UNKNOWN_ID) -> None:
        """`ask` asks the master and gives its token; it raises a `TubeMQError` without an answer."""
        self.value = value
        self._ask = ask
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<VisitToken {self.value}>"

    def renew(self, refused: int) -> None:
        """Gets a newer token than `refused`, unless another thread has got one meanwhile. `TransportError` when the
        master does not answer or gives the same token.
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


def _nobody() -> int:
    raise TransportError("this client asks no master")


NO_TOKEN = VisitToken(_nobody)
"""For brokers that check no tokens."""


def authorization(credentials: Credentials | None, visit_token: int) -> broker_pb.AuthorizedInfo:
    """What a broker call carries. It is made anew for each call, for servers check the age of its timestamp."""
    return broker_authorization(credentials, visit_token, time.time_ns() // 1_000_000, random.getrandbits(31))
