# SPDX-License-Identifier: Apache-2.0
"""Brokers keep the claims whose clients send heartbeats, and drop the others. The master lists what a driver holds."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest

from tests import messages, reading
from tests.clocks import UseTimings
from tests.clusters import LAYOUTS, Cluster
from tests.clusters.servers import ALL, running
from tests.reading import UNIT

MESSAGES = 9_000  # several fetches
RIVAL = "some_java_consumer"


@pytest.fixture(params=ALL)
def broker(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """One broker that drops claims as early as TubeMQ permits, after 20 s."""
    topics = {"claimed": LAYOUTS["three"], "read": LAYOUTS["one"]}
    with running(request.param, brokers=1, topics=topics, claim_timeout=20) as cluster:
        yield cluster


def test_heartbeats_keep_claims(broker: Cluster, group: str, use_timings: UseTimings) -> None:
    use_timings(heartbeat_period=0.1)
    held, silent, _ = messages.partitions(broker, "claimed")
    (read,) = messages.partitions(broker, "read")
    sent = messages.send(broker, messages.numbered([read], MESSAGES))[read]
    with reading.holding(messages.settings(broker), group, "claimed") as claims:
        claims.take({held: None})
        claim = reading.next_claim()
        reader = reading.reader(broker, group, read, 0, MESSAGES * UNIT, claim=claim).batches()
        rows = reading.rows_of(islice(reader, 1))
        assert reading.register(broker, group, silent, "dead").errCode == 200

        def are_forgotten() -> bool:
            return reading.register(broker, group, silent, RIVAL).errCode != 410

        broker.wait_for_expiry(are_forgotten, beating=[str(claims.claim), str(claim)])

        for kept in (held, read):
            assert reading.register(broker, group, kept, RIVAL).errCode == 410
        assert rows + reading.rows_of(reader) == reading.expected(sent, 0, MESSAGES * UNIT, sole=True)
        assert broker.members(group).held == [held]
