"""Where messages go, as it stands in their requests, and the authorisation in it."""

from __future__ import annotations

import logging
import time

from tubemq_spark.client.master import ProducerSession
from tubemq_spark.errors import ServerError, TransportError
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.send import encode_target

_log = logging.getLogger(__name__)

_FRESH = 5.0  # seconds for which an authorisation may be used again; servers take 20
_REFRESH_PERIOD = 1.0  # seconds between two questions to the master


class Targets(dict[Partition, bytes]):
    """The encoded target of each partition, made when it is asked for, good while the authorisation in it is."""

    def __init__(self, session: ProducerSession) -> None:
        super().__init__()
        self._session = session
        self._authorization = session.broker_authorization()
        self._renewed_at = time.monotonic()
        self._asked_at = float("-inf")
        self._refreshed = False

    def __missing__(self, partition: Partition) -> bytes:
        target = self[partition] = encode_target(self._session.client_id, partition, self._authorization)
        return target

    def renew(self) -> None:
        """Drops what is too old."""
        now = time.monotonic()
        signed = self._authorization.HasField("authAuthorizedToken")
        if self._authorization.visitAuthorizedToken != self._session.visit_token or (
            signed and now - self._renewed_at > _FRESH
        ):
            self.clear()
            self._authorization = self._session.broker_authorization()
            self._renewed_at = now

    def refresh(self) -> bool:
        """Asks the master for partitions and token, not too often; whether it answered, this time or a moment ago."""
        if time.monotonic() - self._asked_at > _REFRESH_PERIOD:
            try:
                self._session.refresh_once()
                self._refreshed = True
            except (TransportError, ServerError) as error:
                _log.warning("%s", error)
                self._refreshed = False
            self._asked_at = time.monotonic()
        return self._refreshed
