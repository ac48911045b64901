# SPDX-License-Identifier: Apache-2.0
"""A stream and a sink on a real TubeMQ behind a bad network: nothing is lost, and no message is read twice.

Outages are shorter than on the page docs/reliability.md, unless TUBEMQ_FULL_TIMES is 1.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.trials.scenarios import SCENARIOS, Scenario
from tests.clusters import Cluster
from tests.clusters.servers import REAL, running
from tests.network.proxied import Proxied
from tests.network.proxy import Network
from tests.real.topics import FLUSH_SOON, TopicSpec
from tests.without_spark.jobs import RETRY_FOR, Jobs

TOPICS = {f"network_{number}": TopicSpec(partitions=2, settings=FLUSH_SOON) for number in range(len(SCENARIOS))}


@pytest.fixture(scope="module", params=REAL)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with running(request.param, topics=TOPICS) as own:
        yield own


@pytest.fixture(scope="module")
def proxied(cluster: Cluster) -> Iterator[Proxied]:
    with Network() as network:
        yield Proxied(network, cluster.master, {one: cluster.broker_address(one) for one in cluster.broker_ids})


@pytest.mark.parametrize("number", range(len(SCENARIOS)), ids=map(str, SCENARIOS))
def test_a_bad_network_loses_nothing_and_repeats_no_message(cluster: Cluster, proxied: Proxied, number: int) -> None:
    scenario: Scenario = SCENARIOS[number]
    with Jobs(cluster, f"network_{number}", **proxied.options, **{"tubemq.rpc.timeoutMs": 3000}) as jobs:
        jobs.wait_for_more(200)
        scenario.run(proxied)
        jobs.wait_for_more(200)
        jobs.finish()
        jobs.check()
    print(f"{scenario.name}, {scenario.seconds:g} s: {jobs.summary()}")
    assert scenario.seconds >= RETRY_FOR / 2 or jobs.failures == []
    assert all(proxy.connections for proxy in proxied.all)
