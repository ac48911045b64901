# SPDX-License-Identifier: Apache-2.0
"""Clusters for one test, and the requests to their servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from tubemq_spark.client import forget_servers
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.testing import EmbeddedTubeMQ
from tubemq_spark.testing.broker.service import BrokerService

Start = Callable[..., EmbeddedTubeMQ]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start clusters with the arguments of `EmbeddedTubeMQ`."""
    with ExitStack() as stack:
        started: list[EmbeddedTubeMQ] = []

        def give(*args: Any, **given: Any) -> EmbeddedTubeMQ:
            started.append(stack.enter_context(EmbeddedTubeMQ(*args, **given)))
            return started[-1]

        yield give
        for tubemq in started:
            tubemq.clear_faults()
        forget_servers()


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages the brokers returned for each fetch of a task."""
    counts: list[int] = []
    answer = BrokerService._read

    def count(broker: BrokerService, request: broker_pb.GetMessageRequestC2B, *args: Any) -> Sequence[bytes]:
        messages = answer(broker, request, *args)
        if "_look_" not in request.clientId:  # the driver probes single messages
            counts.append(len(messages))
        return messages

    monkeypatch.setattr(BrokerService, "_read", count)
    return counts
