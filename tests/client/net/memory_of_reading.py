# SPDX-License-Identifier: Apache-2.0
"""A process that reads from peers and prints how much memory that took.

usage: python -m tests.client.net.memory_of_reading, with a line `master PORT` or `broker PORT` on standard input for
each peer. A forked child reads from it, so that the imports are done once, and prints the result as a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.cluster.group_member import GroupMembership
from tubemq_spark.client.consumer.range_to_read import PartitionSnapshot, RangeToRead
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import TubeMQError
from tubemq_spark.protocol.claim_id import ClaimId
from tubemq_spark.protocol.constants import Framing
from tubemq_spark.protocol.metadata import Address, Broker, Partition
from tubemq_spark.source.input_partition import TubeMQInputPartition


def most_memory() -> int:
    """Return the most bytes that this process ever had in memory."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) << 10


def ask_a_master(address: Address) -> str:
    settings = ClientSettings(masters=(address,), framing=Framing.STANDARD, retry_for=0.0)
    session = ConsumerSession(settings, "g", ["demo"])
    session.register()
    return f"{len(session.cluster.partitions('demo'))} partitions"


def read_from_a_broker(address: Address) -> str:
    wanted = RangeToRead(Partition(1, "demo", 0), 0, 28, owns_store=True)
    task = TubeMQInputPartition(
        settings=ClientSettings(masters=(), framing=Framing.STANDARD, retry_for=0.0),
        member=GroupMembership("g", ()),
        working_group="g_batch",
        claim=ClaimId("q", 1, 1),
        ranges=((wanted, PartitionSnapshot(Broker(1, address), "g_look")),),
        visit_token=-2,
        claim_timeout=0.0,
    )
    return f"{sum(batch.num_rows for batch in task.read())} rows"


def read_in_child(read: Callable[[Address], str], port: int) -> None:
    child = os.fork()
    if child == 0:
        before = most_memory()  # a new process begins with what it has now
        try:
            outcome = read(Address("127.0.0.1", port))
        except TubeMQError as error:
            outcome = f"{type(error).__name__}: {error}"
        print(json.dumps({"outcome": outcome, "memory": most_memory() - before}), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


if __name__ == "__main__":
    for line in sys.stdin:
        server, port = line.split()
        read_in_child({"master": ask_a_master, "broker": read_from_a_broker}[server], int(port))
