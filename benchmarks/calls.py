# SPDX-License-Identifier: Apache-2.0
"""Count the source's requests by method, and their CPU time in the client: on an embedded server, without Spark.

CPU time is that of the thread that plans and reads; the servers run in another thread of this process.
"""

from __future__ import annotations

import argparse
import pickle
import time
from collections.abc import Callable

from tests.counting import TOPIC, Cost, cluster, counted, send_to_all, streaming
from tubemq_spark.source.batch import plan_batch
from tubemq_spark.source.input_partition import TubeMQInputPartition
from tubemq_spark.source.options import SourceOptions

_SPARK_ASKS_EVERY = 0.012  # seconds, at most


def idle_question(partitions: int, stores: int) -> Cost:
    """Ask once for the latest offset while no messages arrive."""
    with cluster(partitions, stores) as tubemq, streaming(tubemq) as stream:
        send_to_all(tubemq, partitions, stores)
        stream.read()
        for _ in range(2):
            stream.ask()
        with counted(tubemq) as cost:
            stream.ask()
        return cost


def idle_query(seconds: float) -> Cost:
    """Ask as Spark does; 30 partitions, 3 in each store, one store on each broker."""
    with cluster(3, 1, brokers=10) as tubemq, streaming(tubemq, asks_always=False) as stream:
        send_to_all(tubemq, 3, 1, brokers=10)
        stream.read()
        stream.ask()
        with counted(tubemq) as cost:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                stream.ask()
                time.sleep(_SPARK_ASKS_EVERY)
        return cost


def batch_read() -> Cost:
    """300 partitions, 3 in each store, 10 stores on each of 10 brokers, a message in each partition."""
    with cluster(3, 10, brokers=10) as tubemq:
        send_to_all(tubemq, 3, 10, brokers=10)
        raw = {"tubemq.master": tubemq.master, "tubemq.group": "readers", "subscribe": TOPIC}
        with counted(tubemq) as cost:
            tasks: list[TubeMQInputPartition] = pickle.loads(
                pickle.dumps(plan_batch(SourceOptions.read(raw, streaming=False)))
            )
            assert sum(batch.num_rows for task in tasks for batch in task.read()) == 300
        return cost


def plan_of_batch(partitions: int, stores: int, brokers: int = 1) -> Cost:
    """Plan a batch read with a message in each partition."""
    with cluster(partitions, stores, brokers=brokers) as tubemq:
        send_to_all(tubemq, partitions, stores, brokers=brokers)
        raw = {"tubemq.master": tubemq.master, "tubemq.group": "readers", "subscribe": TOPIC}
        with counted(tubemq) as cost:
            plan_batch(SourceOptions.read(raw, streaming=False))
        return cost


def one_message_each(partitions: int, stores: int, *, first: bool) -> Cost:
    """A micro-batch with one message in each partition: the first one of a query, or a later one."""
    with cluster(partitions, stores) as tubemq, streaming(tubemq) as stream:
        for _ in range(0 if first else 2):
            send_to_all(tubemq, partitions, stores)
            stream.read()
        send_to_all(tubemq, partitions, stores)
        with counted(tubemq) as cost:
            stream.read()
        assert stream.rows == partitions * stores * (1 if first else 3)
        return cost


def one_message(partitions: int) -> Cost:
    """A later micro-batch with one message, of a store with many partitions."""
    with cluster(partitions, 1) as tubemq, streaming(tubemq) as stream:
        for _ in range(2):
            send_to_all(tubemq, partitions, 1)
            stream.read()
        tubemq.send(TOPIC, b"message", 7)
        with counted(tubemq) as cost:
            stream.read()
        return cost


def check_of(stores: int) -> Cost:
    """Ask for the end of a batch with one message in each of `stores` stores of one partition."""
    with cluster(1, stores) as tubemq, streaming(tubemq) as stream:
        for _ in range(2):
            send_to_all(tubemq, 1, stores)
            stream.read()
        send_to_all(tubemq, 1, stores)
        with counted(tubemq) as cost:
            stream.ask()
        return cost


MEASUREMENTS: dict[str, Callable[[], Cost]] = {
    "idle, one question, 1000 partitions in one store": lambda: idle_question(1000, 1),
    "idle, one question, 333 stores of 3 partitions": lambda: idle_question(3, 333),
    "idle, one question, 1000 stores": lambda: idle_question(1, 1000),
    "idle, 10 s, 30 partitions on 10 brokers": lambda: idle_query(10.0),
    "batch read, 300 partitions, plan": lambda: plan_of_batch(3, 10, brokers=10),
    "batch read, 300 partitions": batch_read,
    "a message each, 1000 partitions in one store, first batch": lambda: one_message_each(1000, 1, first=True),
    "a message each, 1000 partitions in one store, later": lambda: one_message_each(1000, 1, first=False),
    "a message each, 333 stores of 3 partitions, later": lambda: one_message_each(3, 333, first=False),
    "a message each, 1000 stores, first batch": lambda: one_message_each(1, 1000, first=True),
    "a message each, 1000 stores, later": lambda: one_message_each(1, 1000, first=False),
    "one message, 1000 partitions in one store": lambda: one_message(1000),
    "the end of a batch, 1000 stores": lambda: check_of(1000),
    "the end of a batch, 2000 stores": lambda: check_of(2000),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="measurements whose names have this text (all)")
    given = parser.parse_args()
    for name, measure in MEASUREMENTS.items():
        if given.only in name:
            print(f"{name:60}{measure()}", flush=True)


if __name__ == "__main__":
    main()
