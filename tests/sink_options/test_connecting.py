# SPDX-License-Identifier: Apache-2.0
"""The client's options, where rows are written: that they reach the sink. What each does is in tests/source_options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.clocks import UseTimings
from tests.clusters import Cluster
from tests.without_spark.sink import bodies, save
from tubemq_spark.client import forget_servers
from tubemq_spark.client.net import connection
from tubemq_spark.client.net.connection import Connection
from tubemq_spark.errors import TransportError, TubeMQError

ROWS = [{"value": b"%03d" % n} for n in range(100)]
NOBODY = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def _nothing_is_known() -> Iterator[None]:
    forget_servers()
    yield
    forget_servers()


@pytest.mark.sink_option("tubemq.master")
def test_any_master_that_answers_is_used(cluster: Cluster, demo: str) -> None:
    save(cluster, ROWS, demo, tubemq_master=f"{NOBODY},{cluster.master}")
    assert bodies(cluster, demo) == [row["value"] for row in ROWS]
    with pytest.raises(TransportError, match=f"no master answered: .*{NOBODY}"):
        save(cluster, ROWS, demo, tubemq_master=NOBODY, tubemq_retry_maxElapsedMs=0)


@pytest.mark.sink_option("tubemq.rpc.framing")
def test_the_framing_is_detected_or_given(cluster: Cluster, demo: str) -> None:
    for framing in ("auto", cluster.framing):
        save(cluster, ROWS, demo, tubemq_rpc_framing=framing)
    (other,) = {"standard", "prefixed"} - {cluster.framing}
    with pytest.raises(TubeMQError):
        save(cluster, ROWS, demo, tubemq_rpc_framing=other, tubemq_rpc_timeoutMs=500, tubemq_retry_maxElapsedMs=0)
    assert bodies(cluster, demo) == sorted(2 * [row["value"] for row in ROWS])


@pytest.mark.sink_option("tubemq.connections.shared")
@pytest.mark.parametrize("shared", [True, False])
def test_tasks_share_connections_or_have_their_own(
    cluster: Cluster, demo: str, monkeypatch: pytest.MonkeyPatch, use_timings: UseTimings, shared: bool
) -> None:
    use_timings(heartbeat_period=3600.0)
    made: list[Connection] = []
    start = Connection.__init__

    def note(one: Connection, *args: Any, **given: Any) -> None:
        made.append(one)
        start(one, *args, **given)

    monkeypatch.setattr(connection.Connection, "__init__", note)
    # All connections are there when rows for all brokers are stored.
    rows = [{**row, "broker_id": 1 + number % 2, "partition": 0} for number, row in enumerate(ROWS)]
    counts = []
    for _ in range(2):
        save(cluster, rows, demo, tubemq_connections_shared=shared)
        counts.append(len(made))
    assert counts[0] >= 3
    assert (counts[1] == counts[0]) is shared
    assert bodies(cluster, demo) == sorted(2 * [row["value"] for row in ROWS])
