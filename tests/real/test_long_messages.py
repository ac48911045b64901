# SPDX-License-Identifier: Apache-2.0
"""A topic of a real cluster that allows messages of 4 MB, where the cluster allows 1 MB: none is missed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from threading import Thread

import pytest

from tests.clusters.real import RealCluster
from tests.clusters.servers import needs_tools
from tests.messages import broker, send_call, settings
from tests.real.jars import PUBLISHED
from tests.real.topics import TopicSpec
from tests.without_spark.source import Stream, StreamRun, bodies, read_batch
from tubemq_spark.client import forget_servers
from tubemq_spark.client.net.rpc import send_requests, unwrap_reply
from tubemq_spark.protocol.message import encode_attributes
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb

pytestmark = [pytest.mark.real, pytest.mark.thorough, pytest.mark.timeout(400)]

COUNT, PAUSE = 150, 0.2  # messages, and seconds between two
LONG, LIMIT_MB = 2_500_000, 4
PATIENCE = 90.0  # seconds until all are in files: 20 to 30 with the settings of a new topic


@pytest.fixture(scope="module", params=PUBLISHED)
def cluster(request: pytest.FixtureRequest) -> Iterator[RealCluster]:
    topics = {"long": TopicSpec(partitions=3, max_msg_size_mb=LIMIT_MB), "short": TopicSpec(partitions=3)}
    with needs_tools():
        cluster = RealCluster(topics=topics, brokers=1, release=request.param)
    with cluster:
        yield cluster
        forget_servers()


def named(cluster: RealCluster) -> dict[str, str]:
    """Masters of release 1.2 do not tell the limit of a topic."""
    return {"longMessageTopics": "long"} if cluster.release.startswith("1.") else {}


def body(number: int) -> bytes:
    return (b"%d " % number).ljust(LONG if number % 10 == 5 else 100, b".")


def send(cluster: RealCluster, numbers: Sequence[int], pause: float = 0.0) -> None:
    """Send messages of type `a` in turn to all partitions."""
    for number in numbers:
        time.sleep(pause)
        partition = Partition(1, "long", number % 3)
        request = send_call(broker(cluster, 1), "tests", partition, body(number), encode_attributes(None, "a", None))
        assert isinstance(request.message, broker_pb.SendMessageRequestP2B)
        request.message.msgType = "a"
        [outcome] = send_requests(settings(cluster), [request])
        reply = unwrap_reply(outcome, broker_pb.SendMessageResponseB2P, request.what)
        assert reply.success, reply.errMsg


def test_a_stream_misses_none_while_it_reads(cluster: RealCluster) -> None:
    """It reads at the head, with and without a filter."""
    streams = [
        Stream(cluster, "long", tubemq_group=f"g_{filters}", filters=filters, **named(cluster))
        for filters in (None, "a")
    ]
    sender = Thread(target=send, args=(cluster, range(COUNT), PAUSE))
    with ExitStack() as stack:
        runs: list[StreamRun] = [stack.enter_context(stream.running()) for stream in streams]
        sender.start()
        deadline = time.monotonic() + COUNT * PAUSE + PATIENCE
        while time.monotonic() < deadline and any(len(stream.rows) < COUNT for stream in streams):
            for run in runs:
                run.next()
        sender.join()
    for stream in streams:
        assert sorted(map(len, bodies(stream.rows))) == sorted(len(body(number)) for number in range(COUNT))
        assert sorted(bodies(stream.rows)) == sorted(map(body, range(COUNT)))


def test_reads_with_an_end_wait_for_the_flush(cluster: RealCluster) -> None:
    stream = Stream(cluster, "long", tubemq_group="g_available", **named(cluster))
    before = len(read_batch(cluster, "long", tubemq_group="g_before", **named(cluster)))
    send(cluster, range(5, 8))
    begun = time.monotonic()
    assert len(read_batch(cluster, "long", tubemq_group="g_batch", **named(cluster))) == before + 3
    assert time.monotonic() - begun > 3.0
    send(cluster, range(15, 18))
    assert sum(map(len, stream.run("availableNow"))) == before + 6
