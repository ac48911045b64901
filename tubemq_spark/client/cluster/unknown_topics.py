# SPDX-License-Identifier: Apache-2.0
"""The error for topics that the cluster does not have, with the names of similar topics."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from tubemq_spark.client.admin_api import matching_topics
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import ConfigError, TubeMQError
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.similar_names import nearest, proposal

_ANY = re.compile(".*", re.DOTALL)
_TIMEOUT = 2.0  # seconds; of the masters' HTTP API, which may be closed to this machine

READ_ADVICE = "Check option 'subscribe', or create the topic"
WRITE_ADVICE = "Check the topic's name, or create the topic"


class UnknownTopicError(ConfigError):
    """The cluster has none of `topics`."""

    code = int(ErrCode.TOPIC_NOT_DEPLOYED)

    cause = "The cluster has no topic of this name."
    remedy = (
        "Check the name: the text proposes similar ones if the masters' HTTP API answers. Or create the topic: TubeMQ "
        "does not create topics by itself."
    )

    def __init__(self, topics: Iterable[str], advice: str, similar: Collection[str] = ()) -> None:
        self.topics = tuple(sorted(topics))
        self._advice = advice
        super().__init__(f"the cluster has no topic {', '.join(self.topics)}{proposal(similar) or '.'} {advice}")

    def with_similar_names(self, settings: ClientSettings) -> UnknownTopicError:
        """Return the error with the names of similar topics, if the masters' HTTP API lists them."""
        try:
            names = matching_topics(settings, _ANY, _TIMEOUT)
        except TubeMQError:
            return self
        similar = {found for topic in self.topics if (found := nearest(topic, names)) is not None}
        return UnknownTopicError(self.topics, self._advice, sorted(similar))
