# SPDX-License-Identifier: Apache-2.0
"""Topic limits: which topics may hold messages that a broker does not deliver from its memory.

A broker's reader of memory leaves out messages that are longer than the cluster's limit allows, and does not say so
(wire: MsgMemStore). Only a topic with a limit of its own, above the cluster's, has such messages. Masters tell both
limits to producers alone, so this client asks as a producer, which sends nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.retries import Deadline
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import TransportError, TubeMQError

_log = logging.getLogger(__name__)

# Seconds for which an answer counts. A broker takes over a raised limit by a reload, which has slow steps, or by a
# restart: both last longer.
_FRESH = 1.0
# After a question without an answer, the next one waits so many times as long as it took: a silent master must not
# delay micro-batches much.
_BACKOFF = 10.0
_REFUSED_PAUSE = 30.0  # seconds; until the next question to a master that refuses to answer


class TopicLimits:
    """Asks the masters for the limits of topics, at most once a second. Not thread-safe."""

    def __init__(self, settings: ClientSettings) -> None:
        self._session = ProducerSession(settings, "limits")
        self._clock = settings.clock
        self._asked: set[str] = set()
        self._limits: dict[str, int] = {}  # the greatest limit that a master told for each topic, in bytes
        self._long: set[str] = set()
        self._is_silent = self._is_refused = False
        self._next = Deadline(0.0, self._clock)

    def long_topics(self, topics: Collection[str]) -> frozenset[str]:
        """Return those of `topics` that may hold such messages: a master has told a limit above the cluster's, now or
        earlier, because older messages may still be in memory; or none tells the limit of the topic now.

        Raise `TransportError` if no master has ever answered.
        """
        wanted = frozenset(topics)
        if not wanted <= self._asked or self._next.passed:
            self._asked |= wanted
            self._ask()
        if self._is_refused:
            return wanted & self._long
        return wanted if self._is_silent else wanted.difference(self._limits) | (wanted & self._long)

    def close(self) -> None:
        self._session.close()

    def _ask(self) -> None:
        pause, begun = _FRESH, self._clock.monotonic()
        try:
            told = self._session.limits(self._asked, is_urgent=not (self._limits or self._is_refused))
        except TransportError as error:
            if not (self._limits or self._is_refused):
                raise
            _log.info("no master tells the limits of topics, which may have been raised: %s", error)
            self._is_silent = True
            pause = max(_FRESH, _BACKOFF * (self._clock.monotonic() - begun))
        except TubeMQError as error:
            if not self._is_refused:
                _log.warning(
                    "[topic-limits-unknown] the master does not tell this client how long the messages of %s may be: "
                    "%s. If that is more than the cluster's limit, name the topic in option 'longMessageTopics'",
                    ", ".join(sorted(self._asked)),
                    error,
                )
            self._is_refused, pause = True, _REFUSED_PAUSE
        else:
            self._is_silent = self._is_refused = False
            usual = self._session.max_message_size
            for topic, limit in told.items():
                greatest = self._limits[topic] = max(limit or usual, self._limits.get(topic, 0))
                if greatest > usual:
                    self._long.add(topic)
        self._next = Deadline(pause, self._clock)
