# SPDX-License-Identifier: Apache-2.0
"""Advance the servers' clock while Java clients send heartbeats."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack

from tubemq_spark.testing import EmbeddedTubeMQ

_PATIENCE = 60.0
_STEP = 10.0  # of the clock; no timeout of the servers is shorter than two of them


def pass_time(tubemq: EmbeddedTubeMQ, seconds: float, alive: Sequence[str]) -> None:
    """Advance the clock in steps. After each step the clients that are `alive` (by their ids) send heartbeats to the
    master, and to the broker if they hold partitions there.
    """
    while seconds > 0:
        tubemq.clock.advance(min(_STEP, seconds))
        seconds -= _STEP
        holders = set(tubemq.claims().values())
        calls = [("consumer_heartbeat", client) for client in alive]
        calls += [("partition_heartbeat", client) for client in alive if client in holders]
        with ExitStack() as stack:
            received = [threading.Event() for _ in calls]
            for (method, client), event in zip(calls, received, strict=True):
                stack.enter_context(tubemq.on(method, client=client).run(event.set, after=True))
            missing = [call for call, event in zip(calls, received, strict=True) if not event.wait(_PATIENCE)]
        assert not missing, f"these requests did not come: {missing}"
