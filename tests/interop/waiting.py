"""Conditions that the Java client's own threads bring about."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from tubemq_spark.testing import EmbeddedTubeMQ

_PATIENCE = 60.0
_STEP = 10.0  # of the clock; no timeout of the servers is shorter than two of them


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not is_so():
        assert time.monotonic() < deadline, f"not within {_PATIENCE:g} s"
        time.sleep(0.05)


def pass_time(tubemq: EmbeddedTubeMQ, seconds: float, alive: Sequence[str]) -> None:
    """Advances the clock in steps. After each the clients that are `alive` (by their ids) send heartbeats to the
    master, and to the broker if they hold partitions there.
    """
    while seconds > 0:
        tubemq.clock.advance(min(_STEP, seconds))
        seconds -= _STEP
        holders = set(tubemq.claims().values())
        calls = [("consumer_heartbeat", client) for client in alive]
        calls += [("partition_heartbeat", client) for client in alive if client in holders]
        with ExitStack() as stack:
            heard = [threading.Event() for _ in calls]
            for (method, client), event in zip(calls, heard, strict=True):
                stack.enter_context(tubemq.on(method, client=client).run(event.set, after=True))
            missing = [call for call, event in zip(calls, heard, strict=True) if not event.wait(_PATIENCE)]
        assert not missing, f"these did not come: {missing}"
