# SPDX-License-Identifier: Apache-2.0
"""Wait until the message ids of a real server distinguish old messages from new ones.

Where their wave turns (see `tubemq_spark.protocol.log_fingerprint`) they do not, and a query cannot detect lost
messages. tests/source/test_truncation_check.py shows that with the clock of an embedded server; crash tests avoid it.
"""

from __future__ import annotations

import time

from tests import messages
from tests.clusters import Cluster
from tests.waiting import wait_until
from tubemq_spark.protocol.log_fingerprint import ID_SECOND

_HALF_A_WAVE = (1 << 41) / 1e9  # seconds in which ids rise, or fall
_AROUND_A_TURN = 75.0  # seconds in which they do not distinguish them, with a margin


def wait_until_ids_are_unambiguous(cluster: Cluster, topic: str, seconds: float) -> None:
    """Wait until ids distinguish messages for the next `seconds`. Sends two messages to `topic` to see their ids."""
    moment = time.monotonic() + _seconds_until_then(cluster, topic, seconds)
    wait_until(lambda: time.monotonic() >= moment, patience=_HALF_A_WAVE)


def _seconds_until_then(cluster: Cluster, topic: str, seconds: float) -> float:
    partition = messages.partitions(cluster, topic)[0]
    sent = messages.send(cluster, messages.numbered([partition], 2))[partition]
    first, second = (message.message_id / ID_SECOND for message in sent)
    since_it_turned = first if first < second else _HALF_A_WAVE - first
    left = _HALF_A_WAVE - since_it_turned
    if since_it_turned < _AROUND_A_TURN:
        return _AROUND_A_TURN - since_it_turned
    return left + _AROUND_A_TURN if left < _AROUND_A_TURN + seconds else 0.0
