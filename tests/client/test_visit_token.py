# SPDX-License-Identifier: Apache-2.0
"""Visit tokens of a real server, whose rotation takes at least 144 s. A new master has a new token at once. A broker
that is started again knows no token of an earlier master, and refuses them after its first minute.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from tests.clusters.servers import needs_tools
from tests.real.cluster import RealTubeMQ
from tests.real.topics import FLUSH_SOON, TopicSpec
from tests.waiting import wait_until
from tests.without_spark.query import options, rows_of, settings
from tubemq_spark.client import forget_servers
from tubemq_spark.client.consumer.broker_requests import GroupRequests
from tubemq_spark.client.net.rpc import send_requests, unwrap_reply
from tubemq_spark.client.visit_token import NO_TOKEN
from tubemq_spark.protocol.errcode import ErrCode, is_about_visit_token
from tubemq_spark.protocol.metadata import Address, Broker, Partition
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.sink.options import SinkOptions
from tubemq_spark.sink.task_writer import write_batches
from tubemq_spark.sink.write_plan import WritePlan
from tubemq_spark.source.batch import plan_batch
from tubemq_spark.source.micro_batch_planner import MicroBatchPlanner

pytestmark = [pytest.mark.real, pytest.mark.thorough, pytest.mark.timeout(300)]

MASTERS = 5  # one after another
CALM = {"retry_for": 30.0, "rpc_timeout": 10.0}


@pytest.fixture
def tubemq() -> Iterator[RealTubeMQ]:
    with needs_tools():
        cluster = RealTubeMQ(
            topics={name: TopicSpec(partitions=1, settings=FLUSH_SOON) for name in ("one", "two")},
            master_options={"startVisitTokenCheck": "true"},
            broker_options={"visitTokenCheckInValidTimeMs": "60000"},  # the least
        )
    with cluster:
        yield cluster
        forget_servers()


def refuses(tubemq: RealTubeMQ, token: int) -> bool:
    """Return True if the broker refuses the token as invalid."""
    host, _, port = tubemq.broker_address(1).partition(":")
    broker = Broker(1, Address(host, int(port)))
    calls = GroupRequests(settings(tubemq), "observers", NO_TOKEN)  # type: ignore[arg-type]  # its address is asked for
    call = calls.heartbeat(broker, "observer", [Partition(1, "one", 0)])
    call.message.authInfo.visitAuthorizedToken = token  # type: ignore[attr-defined]
    (outcome,) = send_requests(settings(tubemq), [call])  # type: ignore[arg-type]
    try:
        reply = unwrap_reply(outcome, broker_pb.HeartBeatResponseB2C, call.what)
    except Exception as error:
        return "visit token" in str(error)
    return reply.errCode == ErrCode.CERTIFICATE_FAILURE and is_about_visit_token(reply.errCode, reply.errMsg)


def batch(rows: list[bytes]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array(rows, pa.binary())})


def test_clients_renew_their_tokens_over_five_masters(tubemq: RealTubeMQ) -> None:
    """For a batch that was planned before, an idle stream, and a task that writes all the time."""
    client = settings(tubemq, **CALM)  # type: ignore[arg-type]
    rows = [b"row %d" % number for number in range(200)]
    write_batches(WritePlan(SinkOptions(client, "one")), [batch(rows)])
    planned = plan_batch(options(tubemq, "one", **CALM))  # type: ignore[arg-type]
    first = planned[0].visit_token
    stream = MicroBatchPlanner(options(tubemq, "two", group="streamers", **CALM))  # type: ignore[arg-type]
    turned = threading.Event()

    def batches() -> Iterator[pa.RecordBatch]:
        yield batch([b"before"] * 3)
        turned.wait(240.0)
        yield batch([b"after"] * 4)

    with ThreadPoolExecutor(1) as writing:
        try:
            start = stream.latest(stream.initial())
            written = writing.submit(write_batches, WritePlan(SinkOptions(client, "two", 1)), batches())
            for _ in range(MASTERS):
                tubemq.kill_master()
                tubemq.start_master()
            tubemq.stop_broker(1)
            tubemq.start_broker(1)
            wait_until(lambda: refuses(tubemq, first), "the first token is refused", 150.0)
        finally:
            turned.set()
        assert sum(written.result().rows.values()) == 7
    try:
        end = stream.latest(start)
        assert end.positions == {Partition(1, "two", 0): 7 * 28}
        read = [row for task in stream.plan(start, end) for part in task.read() for row in rows_of(part)]
        assert Counter(row.body for row in read) == Counter({b"before": 3, b"after": 4})
    finally:
        stream.stop()
    assert [row.body for task in planned for part in task.read() for row in rows_of(part)] == rows
