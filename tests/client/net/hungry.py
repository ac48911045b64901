"""A process of its own that reads from a peer, and prints what came of it and how much memory it took.

usage: python -m tests.client.net.hungry master|broker PORT
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.consumer.range_to_read import PartitionSnapshot, RangeToRead
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import TubeMQError
from tubemq_spark.protocol.claim_id import ClaimId
from tubemq_spark.protocol.constants import Framing
from tubemq_spark.protocol.metadata import Address, Broker, Partition
from tubemq_spark.source.input_partition import TubeMQInputPartition


def most_memory() -> int:
    """The most that this process had in memory so far, in bytes."""
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
        group="g",
        claim=ClaimId("q", 1, 1),
        ranges=((wanted, PartitionSnapshot(Broker(1, address))),),
        visit_token=-2,
        claim_timeout=0.0,
    )
    return f"{sum(batch.num_rows for batch in task.read())} rows"


def main(do: Callable[[Address], str], port: int) -> None:
    before = most_memory()
    try:
        outcome = do(Address("127.0.0.1", port))
    except TubeMQError as error:
        outcome = f"{type(error).__name__}: {error}"
    print(json.dumps({"outcome": outcome, "memory": most_memory() - before}))


if __name__ == "__main__":
    main({"master": ask_a_master, "broker": read_from_a_broker}[sys.argv[1]], int(sys.argv[2]))
