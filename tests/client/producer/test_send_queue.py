# SPDX-License-Identifier: Apache-2.0
"""The order and the place of records with a key or an explicit partition, also when brokers fail."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest

from tests.clocks import UseTimings
from tests.clusters.embedded import EmbeddedCluster, embedded_cluster
from tests.real.topics import TopicSpec
from tests.sending import bodies_in, seeds, settings
from tests.waiting import wait_until
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.errors import ConfigError, ServerError, TransportError
from tubemq_spark.protocol.key_partitioner import KeyMap
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.testing import Calls, Fault

SOON = 0.3  # seconds until a missing answer counts as a timeout
LATE = 0.8  # seconds; after the timeout
SPEC = TopicSpec(partitions=3)


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch, use_timings: UseTimings) -> None:
    """Timeouts are not extended."""
    use_timings(slow_peer_grace=0.05)


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    """Two brokers with a topic of three partitions."""
    with embedded_cluster(topics={"demo": SPEC}) as running:
        yield running


Lines = dict[Partition, dict[str, list[int]]]  # the stored rows of each partition and key, in their order


def stored_lines(cluster: EmbeddedCluster) -> Lines:
    found: Lines = defaultdict(lambda: defaultdict(list))
    for message in cluster.tubemq.messages("demo"):
        key, row = message.body.decode().rsplit(" ", 1)
        found[Partition(message.broker_id, "demo", message.partition)][key].append(int(row))
    return found


def body(key: str, row: int) -> bytes:
    return f"{key} {row}".encode()


def check_order(cluster: EmbeddedCluster, sent: dict[str, list[int]]) -> None:
    """Check that each key's rows are stored in one partition and in order, with copies beside the first."""
    homes: dict[str, list[Partition]] = defaultdict(list)
    for partition, keys in stored_lines(cluster).items():
        for key, rows in keys.items():
            homes[key].append(partition)
            assert list(dict.fromkeys(rows)) == sent[key]
            assert rows == sorted(rows)
    assert {key: len(partitions) for key, partitions in homes.items()} == dict.fromkeys(sent, 1)


# Keys

Failing = Callable[[Calls], Fault]


def code(number: int) -> Failing:
    return lambda calls: calls.fail(number, "as the test wants it")


FAILURES: dict[str, Failing] = {
    **{str(number): code(number) for number in (503, 419, 500, 403)},
    "exception": lambda calls: calls.throw("java.lang.reflect.InvocationTargetException"),
    "stopping": lambda calls: calls.throw("org.apache.inlong.tubemq.corerpc.exception.ServiceStoppingException"),
    "closed": Calls.close_connection,
    "stored and closed": Calls.close_mid_frame,
    "no answer": Calls.drop_request,
    "stored without answer": Calls.drop_reply,
    "late": lambda calls: calls.delay(LATE),
    "silence": Calls.silence,
}
SILENT = ("no answer", "stored without answer", "late", "silence")
every_failure = pytest.mark.parametrize("kind", FAILURES)


def fail_sends(cluster: EmbeddedCluster, kind: str, *when: int) -> list[Fault]:
    """Let the sends with these numbers fail."""
    return [FAILURES[kind](cluster.tubemq.on("send_message", nth=nth, times=1)) for nth in when]


def send_keys(producer: Producer, dice: random.Random, count: int, keys: int) -> dict[str, list[int]]:
    """Send rows with random keys. Return the rows of each key."""
    sent: dict[str, list[int]] = defaultdict(list)
    for row in range(count):
        key = f"key {dice.randrange(keys)}"
        sent[key].append(row)
        producer.send("demo", body(key, row), row=row, key=key.encode())
    return sent


@every_failure
@pytest.mark.parametrize(
    ("keys", "max_in_flight"),
    [(40, 1000), pytest.param(3, 1000, marks=pytest.mark.thorough), pytest.param(40, 2, marks=pytest.mark.thorough)],
)
def test_keys_keep_their_order_through_failures(
    cluster: EmbeddedCluster, kind: str, keys: int, max_in_flight: int
) -> None:
    timeout = SOON if kind in SILENT else 10.0
    faults = fail_sends(cluster, kind, *((5, 120) if kind in SILENT else (5, 60, 61, 62, 120, 200)))
    with Producer(settings(cluster, rpc_timeout=timeout), max_in_flight) as producer:
        sent = send_keys(producer, random.Random(f"{kind} {keys}"), 300, keys)
        producer.flush()
        assert producer.acknowledged == 300
    assert all(fault.fired for fault in faults)
    check_order(cluster, sent)


@pytest.mark.parametrize("seed", seeds(12, fast=4))
def test_keys_keep_their_order_under_random_failures(seed: int) -> None:
    dice = random.Random(seed)
    with embedded_cluster(topics={"demo": SPEC}, brokers=3) as cluster:
        for broker_id in cluster.broker_ids:
            for _ in range(dice.choice([0, 2, 10])):
                calls = cluster.tubemq.on("send_message", broker=broker_id, nth=dice.randint(1, 400), times=1)
                FAILURES[dice.choice(["419", "403", "500", "503", "closed", "stored and closed"])](calls)
        with Producer(settings(cluster), max_in_flight=dice.choice([3, 50, 1000])) as producer:
            sent = send_keys(producer, dice, 1000, dice.choice([1, 10, 300]))
            for row in range(300):
                producer.send("demo", body("none", row))
        found = stored_lines(cluster)
        others = [row for keys in found.values() for row in keys.pop("none", ())]
        assert set(others) == set(range(300))
        for keys in found.values():
            for key, rows in keys.items():
                assert list(dict.fromkeys(rows)) == sent[key]
        assert sum(len(keys) for keys in found.values()) == len(sent), "no key is in two partitions"


def test_a_key_goes_to_the_partition_of_its_hash(cluster: EmbeddedCluster) -> None:
    """In every task, whatever other records it sends."""
    owners = KeyMap([Partition(broker, "demo", number) for broker in (1, 2) for number in (0, 1, 2)])
    for _ in range(2):
        with Producer(settings(cluster)) as producer:
            for row in range(60):
                producer.send("demo", body("none", row))
                producer.send("demo", body(f"key {row}", row), key=b"key %d" % row)
    for partition, keys in stored_lines(cluster).items():
        assert {owners.partition(key.encode()) for key in keys if key != "none"} <= {partition}


@pytest.mark.parametrize("key", [b"", b"\x00", b"x" * 100_000], ids=["empty", "a zero", "long"])
def test_any_bytes_are_a_key(cluster: EmbeddedCluster, key: bytes) -> None:
    with Producer(settings(cluster)) as producer:
        for row in range(50):
            producer.send("demo", body("key", row), key=key)
    check_order(cluster, {"key": list(range(50))})


def test_keys_of_a_broker_that_is_down_wait_and_others_do_not(cluster: EmbeddedCluster) -> None:
    owners = KeyMap([Partition(broker, "demo", number) for broker in (1, 2) for number in (0, 1, 2)])
    at_one = [key for key in range(100) if owners.partition(b"key %d" % key).broker_id == 1]
    back = cluster.tubemq.on("send_message", broker=1, nth=3 * len(at_one), times=1).run(
        lambda: cluster.start_broker(2), after=True
    )
    with Producer(settings(cluster)) as producer:
        producer.limit("demo")  # so that the partitions are known
        cluster.stop_broker(2)
        for row in range(300):
            producer.send("demo", body(f"key {row % 100}", row), row=row, key=b"key %d" % (row % 100))
    assert back.fired == 1
    check_order(cluster, {f"key {key}": [key, key + 100, key + 200] for key in range(100)})


def test_keys_of_a_removed_partition_go_to_others(cluster: EmbeddedCluster) -> None:
    """No other key moves. The broker says that the partition is closed, and the master no longer lists it."""
    owners = KeyMap([Partition(broker, "demo", number) for broker in (1, 2) for number in (0, 1, 2)])
    left = KeyMap([Partition(1, "demo", number) for number in (0, 1, 2)])
    with Producer(settings(cluster)) as producer:
        producer.send("demo", b"none 0")
        producer.flush()
        cluster.tubemq.on("send_message", broker=2).fail(403, "closed")
        cluster.tubemq._on_thread(lambda: cluster.tubemq._catalog.topics["demo"].pop(2))
        for row in range(100):
            producer.send("demo", body(f"key {row}", row), key=b"key %d" % row)
        stored = producer.flush()
    assert sum(stored.values()) == 101
    for partition, keys in stored_lines(cluster).items():
        for key in keys.keys() - {"none"}:
            owner = owners.partition(key.encode())
            assert partition == (owner if owner.broker_id == 1 else left.partition(key.encode()))


# Explicit partitions


@every_failure
def test_records_with_an_explicit_partition_go_only_there(cluster: EmbeddedCluster, kind: str) -> None:
    faults = fail_sends(cluster, kind, 7, 130)
    targets = [(1, 0), (2, 1), (2, 2)]
    with Producer(settings(cluster, rpc_timeout=SOON if kind in SILENT else 10.0)) as producer:
        for row in range(300):
            broker_id, partition_id = targets[row % 3]
            producer.send("demo", body(f"{broker_id}:{partition_id}", row), row=row, target=targets[row % 3])
        stored = producer.flush()
    assert all(fault.fired for fault in faults)
    assert stored == {Partition(broker, "demo", partition): 100 for broker, partition in targets}
    for partition, keys in stored_lines(cluster).items():
        assert list(keys) == [f"{partition.broker_id}:{partition.partition_id}"]
    assert len(bodies_in(cluster)) == 300


@pytest.mark.parametrize("kind", ["419", "500", "503", "closed", "stored and closed"])
def test_explicit_partitions_keep_the_order_with_one_in_flight(cluster: EmbeddedCluster, kind: str) -> None:
    fail_sends(cluster, kind, 1, 2, 10)
    with Producer(settings(cluster), max_in_flight=1) as producer:
        for row in range(40):
            producer.send("demo", body("target", row), target=(2, 1))
    check_order(cluster, {"target": list(range(40))})


def test_explicit_partitions_keep_the_order_without_failures(cluster: EmbeddedCluster) -> None:
    with Producer(settings(cluster)) as producer:
        for row in range(2000):
            producer.send("demo", body(f"target {row % 2}", row), target=(1, row % 2))
    check_order(cluster, {"target 0": list(range(0, 2000, 2)), "target 1": list(range(1, 2000, 2))})


def test_records_wait_for_their_broker_and_others_do_not(cluster: EmbeddedCluster) -> None:
    """The broker is down at first, and starts when all other records are stored."""
    back = cluster.tubemq.on("send_message", broker=1, nth=200, times=1).run(
        lambda: cluster.start_broker(2), after=True
    )
    with Producer(settings(cluster)) as producer:
        producer.limit("demo")  # so that the partitions are known
        cluster.stop_broker(2)
        for row in range(100):
            producer.send("demo", body("two", row), row=row, target=(2, 0))
            producer.send("demo", body("one", row), row=row, target=(1, 0))
            producer.send("demo", body("any", row), row=row)
        stored = producer.flush()
    assert back.fired == 1
    assert (stored[Partition(2, "demo", 0)], stored.total()) == (100, 300)  # type: ignore[attr-defined]
    found = stored_lines(cluster)
    assert found[Partition(2, "demo", 0)]["two"] == list(range(100))
    assert sum(len(keys.get("any", ())) for partition, keys in found.items() if partition.broker_id == 1) == 100


def test_records_wait_for_a_broker_that_stops_while_sending(cluster: EmbeddedCluster) -> None:
    cluster.tubemq.on("send_message", broker=2, nth=50, times=1).run(lambda: cluster.stop_broker(2))
    back = cluster.tubemq.on("send_message", broker=1, nth=200, times=1).run(
        lambda: cluster.start_broker(2), after=True
    )
    with Producer(settings(cluster), max_in_flight=10) as producer:
        for row in range(200):
            producer.send("demo", body("two", row), row=row, target=(2, 0))
            producer.send("demo", body("one", row), row=row, target=(1, 0))
    assert back.fired == 1
    found = stored_lines(cluster)
    assert set(found[Partition(2, "demo", 0)]["two"]) == set(range(200))
    assert found[Partition(1, "demo", 0)]["one"] == list(range(200))


@pytest.mark.parametrize("keyed", [False, True])
def test_a_failing_partition_does_not_delay_others(cluster: EmbeddedCluster, keyed: bool) -> None:
    """Not even on the same broker. The partition fails until all other records are stored."""
    sends = cluster.tubemq.on("send_message").count()
    failing = cluster.tubemq.on("send_message", broker=1, partition=0).fail(500)
    cluster.tubemq.on("send_message", broker=1, partition=1, nth=100, times=1).run(failing.remove, after=True)
    key = b"key" if keyed else None
    with Producer(settings(cluster), max_in_flight=20) as producer:
        for row in range(100):
            producer.send("demo", body("zero", row), row=row, target=(1, 0), key=key)
            producer.send("demo", body("one", row), row=row, target=(1, 1), key=key)
    assert failing.fired > 0
    assert sends.fired == 200 + failing.fired
    assert failing.fired < (20 if keyed else 100), "records behind the failing one wait"
    found = stored_lines(cluster)
    assert found[Partition(1, "demo", 1)]["one"] == list(range(100))
    zero = found[Partition(1, "demo", 0)]["zero"]
    assert zero == list(range(100)) if keyed else set(zero) == set(range(100))


@every_failure
def test_keys_with_an_explicit_partition_keep_their_order(cluster: EmbeddedCluster, kind: str) -> None:
    fail_sends(cluster, kind, 3, 90)
    sent: dict[str, list[int]] = defaultdict(list)
    with Producer(settings(cluster, rpc_timeout=SOON if kind in SILENT else 10.0)) as producer:
        for row in range(200):
            key = f"key {row % 7}"
            sent[key].append(row)
            producer.send("demo", body(key, row), row=row, key=key.encode(), target=(1, row % 7 % 3))
    check_order(cluster, sent)
    for partition, keys in stored_lines(cluster).items():
        assert {(1, int(key[-1]) % 3) for key in keys} == {(partition.broker_id, partition.partition_id)}


@pytest.mark.parametrize("key", [None, b"key"])
@pytest.mark.parametrize("target", [(1, 3), (3, 0), (1, 10_000), (-1, -1)], ids=str)
def test_an_unknown_explicit_partition_does_not_end_the_producer(
    cluster: EmbeddedCluster, target: tuple[int, int], key: bytes | None
) -> None:
    with Producer(settings(cluster), rows_of="of task partition 4") as producer:
        producer.send("demo", b"before 0", row=0, target=(1, 2), key=key)
        with pytest.raises(
            ConfigError,
            match=rf"^row 1 of task partition 4: topic demo has no partition {target[1]} on a broker {target[0]}; see ",
        ):
            producer.send("demo", b"wrong 1", row=1, target=target, key=key)
        producer.send("demo", b"after 2", row=2, target=(1, 2), key=key)
    assert set(bodies_in(cluster)) == {b"before 0", b"after 2"}


def test_an_explicit_partition_of_a_broker_that_is_down_is_not_unknown(cluster: EmbeddedCluster) -> None:
    """Option `failedRows` must not drop such a row."""
    cluster.stop_broker(2)
    with Producer(settings(cluster, retry_for=0.3)) as producer:
        with pytest.raises(
            TransportError, match=r"^row 4 cannot be sent to partition 0 on broker 2, .* broker 2 at .*, which is down"
        ):
            producer.send("demo", b"two 4", row=4, target=(2, 0))
        cluster.start_broker(2)
        wait_until(lambda: producer._targets.refresh() and producer._targets.lists(Partition(2, "demo", 0)))
        producer.send("demo", b"two 4", row=4, target=(2, 0))
    assert set(bodies_in(cluster)) == {b"two 4"}


def test_a_new_explicit_partition_is_found(cluster: EmbeddedCluster) -> None:
    with Producer(settings(cluster)) as producer:
        producer.send("demo", b"old 0")
        producer.flush()  # before the partition exists, because the record may go there, too
        cluster.create("demo", TopicSpec(partitions=4))
        producer.send("demo", b"new 1", target=(2, 3))
        assert producer.flush()[Partition(2, "demo", 3)] == 1


@pytest.mark.parametrize("how", ["target", "key"])
def test_the_delivery_timeout_ends_for_one_partition(
    cluster: EmbeddedCluster, how: str, use_timings: UseTimings
) -> None:
    use_timings(first_contact_timeout=0.2)
    for broker_id in (1, 2):
        for partition in (0, 1, 2):
            if how == "key" or (broker_id, partition) == (2, 1):
                cluster.tubemq.on("send_message", broker=broker_id, partition=partition).fail(500)
    producer = Producer(settings(cluster, retry_for=0.3), rows_of="of the task")
    for row in range(10):
        producer.send("demo", body("any", row), row=row, target=(1, 0)) if how == "target" else None
    producer.flush()
    producer.send("demo", b"last 10", row=10, **({"target": (2, 1)} if how == "target" else {"key": b"k"}))
    acknowledged = r"10 of 11" if how == "target" else "0 of 1"
    with pytest.raises(
        ServerError,
        match=rf"^row 10 of the task for topic demo was not .* tries in its partition; .*; {acknowledged} rows of the ",
    ):
        producer.flush()
    producer.close()
