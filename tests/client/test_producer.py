"""Sends to brokers that fail on purpose: whatever they do, nothing is lost and nothing counts that is not stored."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest

from tests.fake_cluster import OK, FakeCluster, Reaction, Send, body_of
from tubemq_spark.client import link as link_module
from tubemq_spark.client.producer import Producer
from tubemq_spark.client.sessions import SESSIONS
from tubemq_spark.errors import AuthError, ConfigError, ServerError, TransportError
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.envelope import Failure
from tubemq_spark.protocol.message import check_sum, encode_attributes


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster() as running:
        yield running


def bodies(count: int) -> list[bytes]:
    return [b"body %d" % n for n in range(count)]


def send_all(producer: Producer, count: int, topic: str = "demo") -> list[bytes]:
    for row, body in enumerate(bodies(count)):
        producer.send(topic, body, row=row)
    return bodies(count)


def test_a_message_arrives_as_it_was_given(cluster: FakeCluster) -> None:
    attributes = encode_attributes({"city": "Zürich"}, "news", "202611210830")
    with Producer(cluster.settings()) as producer:
        producer.send("demo", b"hello", attributes, "news", "202611210830")
        stored = producer.flush()

    (message,) = [message for broker in cluster.brokers.values() for message in broker.stored]
    assert (body_of(message), message.data[4 : 4 + len(attributes)]) == (b"hello", attributes)
    assert (message.msgType, message.msgTime, message.flag) == ("news", "202611210830", 1)
    assert message.checkSum == check_sum(message.data)
    assert message.authInfo.visitAuthorizedToken == cluster.token
    ((partition, count),) = stored.items()
    assert (partition.topic, partition.partition_id, count) == (message.topicName, message.partitionId, 1)


@pytest.mark.parametrize("count", [6, 600], ids="{} messages".format)
def test_partitions_get_equal_shares(cluster: FakeCluster, count: int) -> None:
    with Producer(cluster.settings()) as producer:
        send_all(producer, count)
        assert sorted(producer.flush().values()) == [count / 6] * 6
    assert cluster.stored == dict.fromkeys(bodies(count), 1)


def test_leaving_the_block_waits_for_what_was_sent(cluster: FakeCluster) -> None:
    with Producer(cluster.settings()) as producer:
        send_all(producer, 300)
    assert cluster.stored == dict.fromkeys(bodies(300), 1)


def test_rows_of_several_topics(cluster: FakeCluster) -> None:
    cluster.topics.update(other=1, third=2)
    with Producer(cluster.settings()) as producer:
        for n, topic in enumerate(["demo", "other", "third"] * 40):
            producer.send(topic, b"%d" % n)
        stored = producer.flush()
    assert {topic: sum(n for p, n in stored.items() if p.topic == topic) for topic in cluster.topics} == dict.fromkeys(
        cluster.topics, 40
    )


@pytest.mark.parametrize("max_in_flight", [1, 7, 128])
def test_no_more_than_max_in_flight_are_unanswered(cluster: FakeCluster, max_in_flight: int) -> None:
    with Producer(cluster.settings(), max_in_flight) as producer:
        send_all(producer, 700)
    assert cluster.stored == dict.fromkeys(bodies(700), 1)
    assert max(broker.most_at_once for broker in cluster.brokers.values()) <= max_in_flight


def test_sends_are_pipelined(cluster: FakeCluster) -> None:
    with Producer(cluster.settings()) as producer:
        send_all(producer, 700)
    assert max(broker.most_at_once for broker in cluster.brokers.values()) > 10


FAILURES = [
    503,
    419,
    403,
    500,
    510,
    599,
    Failure("org.apache.inlong.tubemq.corerpc.exception.ServiceStoppingException", "going down"),
    Failure("java.lang.reflect.InvocationTargetException", ""),
    "close",
    "store and close",
    "silence",
]


@pytest.mark.parametrize("failure", FAILURES, ids=str)
def test_what_one_broker_does_not_take_goes_elsewhere(cluster: FakeCluster, failure: Reaction) -> None:
    def fails_soon(request: Send, n: int) -> Reaction:
        return failure if 20 <= n < 40 else OK

    cluster.brokers[1].script = fails_soon
    with Producer(cluster.settings(rpc_timeout=0.3)) as producer:
        sent = send_all(producer, 300)
        stored = producer.flush()

    assert sum(stored.values()) == 300
    assert set(cluster.stored) == set(sent)
    twice = [body for body, times in cluster.stored.items() if times > 1]
    assert len(twice) <= (1 if failure == "store and close" else 0 if failure != "silence" else 150)


@pytest.mark.parametrize("failure", [503, "close", "silence"], ids=str)
def test_a_failing_broker_is_left_alone(cluster: FakeCluster, failure: Reaction) -> None:
    cluster.brokers[1].script = lambda request, n: failure
    with Producer(cluster.settings(rpc_timeout=0.3)) as producer:
        send_all(producer, 30)
        producer.flush()
        refused = cluster.brokers[1].requests
        send_all(producer, 300)
        stored = producer.flush()
    assert cluster.brokers[1].requests == refused > 0
    assert {partition.broker_id for partition in stored} == {2}


def test_a_failing_partition_is_left_alone_but_not_its_broker(cluster: FakeCluster) -> None:
    cluster.brokers[1].script = lambda request, n: 500 if request.partitionId == 2 else OK
    with Producer(cluster.settings()) as producer:
        send_all(producer, 30)
        producer.flush()
        refused = cluster.brokers[1].requests - len(cluster.brokers[1].stored)
        send_all(producer, 300)
        stored = producer.flush()
    assert cluster.brokers[1].requests - len(cluster.brokers[1].stored) == refused > 0
    assert {(p.broker_id, p.partition_id) for p in stored} == {(1, 0), (1, 1), (2, 0), (2, 1), (2, 2)}


@pytest.mark.parametrize("failure", [503, 419, "close"], ids=str)
def test_the_only_broker_is_tried_again_all_the_same(failure: Reaction) -> None:
    with FakeCluster(brokers=1) as cluster:
        cluster.brokers[1].script = lambda request, n: failure if n < 3 else OK
        with Producer(cluster.settings()) as producer:
            send_all(producer, 100)
            producer.flush()
        assert set(cluster.stored) == set(bodies(100))


def test_a_broker_that_cannot_be_reached_is_passed_over(cluster: FakeCluster) -> None:
    cluster.brokers[1].server.end()
    with Producer(cluster.settings()) as producer:
        send_all(producer, 300)
    assert len(cluster.brokers[2].stored) == 300


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_lost_whatever_happens(seed: int) -> None:
    dice = random.Random(seed)
    with FakeCluster(brokers=3) as cluster:
        for broker in cluster.brokers.values():
            rate = dice.choice([0.0, 0.002, 0.02])
            choices = dice.sample([419, 403, 500, 503, "close", "store and close"], 3)
            broker.script = lambda request, n, rate=rate, choices=choices: (  # type: ignore[misc]
                dice.choice(choices) if dice.random() < rate else OK
            )
        with Producer(cluster.settings(), max_in_flight=dice.choice([3, 50, 1000])) as producer:
            send_all(producer, 2000)
            stored = producer.flush()
        assert sum(stored.values()) == 2000
        assert set(cluster.stored) == set(bodies(2000))
        for broker_id, broker in cluster.brokers.items():
            assert sum(n for p, n in stored.items() if p.broker_id == broker_id) <= len(broker.stored)


# Failures that are the end


def test_a_refusal_names_the_row(cluster: FakeCluster) -> None:
    for broker in cluster.brokers.values():
        broker.script = lambda request, n: 400 if body_of(request) == b"body 77" else OK
    producer = Producer(cluster.settings(), rows_of="of task partition 4")
    with (
        pytest.raises(
            ServerError,
            match=r"row 77 of task partition 4 to broker \d at 127.0.0.1:\d+, partition \d:demo:\d.* 400 BAD_",
        ) as caught,
        producer,
    ):
        send_all(producer, 300)
    assert (caught.value.code, caught.value.name, caught.value.message) == (400, "BAD_REQUEST", "as the test wants it")


def test_after_an_error_nothing_counts_as_flushed(cluster: FakeCluster) -> None:
    for broker in cluster.brokers.values():
        broker.script = lambda request, n: 400
    producer = Producer(cluster.settings())
    producer.send("demo", b"a")
    for _ in range(3):
        with pytest.raises(ServerError):
            producer.flush()
    producer.close()


def test_patience_ends_with_the_last_answer(cluster: FakeCluster) -> None:
    for broker in cluster.brokers.values():
        broker.script = lambda request, n: 419
    with (
        pytest.raises(
            ServerError,
            match="row 0 for topic demo was not acknowledged within .* tries .*419 SERVER_REC.*"
            r"tubemq.retry.maxElapsedMs",
        ) as caught,
        Producer(cluster.settings(retry_for=0.3)) as producer,
    ):
        producer.send("demo", b"a", row=0)
    assert caught.value.code == 419
    requests = [broker.requests for broker in cluster.brokers.values()]
    assert min(requests) > 0
    assert sum(requests) <= 10  # there are pauses in between


@pytest.mark.parametrize("failure", ["close", "silence", None], ids=["close", "silence", "no broker"])
def test_patience_ends_without_any_answer(cluster: FakeCluster, failure: Reaction | None) -> None:
    for broker in cluster.brokers.values():
        if failure is None:
            broker.server.end()
        else:
            broker.script = lambda request, n: failure
    producer = Producer(cluster.settings(rpc_timeout=0.1, retry_for=0.3))
    producer.send("demo", b"a", row=0)
    with pytest.raises(
        TransportError, match=r"row 0 for topic demo .* in \d tries .*partition [12]:demo:\d: .*127.0.0.1:\d"
    ):
        producer.flush()
    producer.close()


def test_no_retries_when_none_are_wanted(cluster: FakeCluster) -> None:
    for broker in cluster.brokers.values():
        broker.script = lambda request, n: 500
    with pytest.raises(ServerError, match="in 1 tries"), Producer(cluster.settings(retry_for=0)) as producer:
        producer.send("demo", b"a")
    assert sum(broker.requests for broker in cluster.brokers.values()) == 1


def test_a_token_that_is_too_old_is_renewed(cluster: FakeCluster) -> None:
    def checks_token(request: Send, n: int) -> Reaction:
        return OK if request.authInfo.visitAuthorizedToken == 2 else 415

    for broker in cluster.brokers.values():
        broker.script = checks_token
    with Producer(cluster.settings()) as producer:
        producer.send("demo", b"old")
        cluster.token = 2
        send_all(producer, 300)
    assert set(cluster.stored) == {b"old", *bodies(300)}


def test_a_token_that_stays_wrong_is_an_error(cluster: FakeCluster) -> None:
    for broker in cluster.brokers.values():
        broker.script = lambda request, n: 415
    producer = Producer(cluster.settings())
    producer.send("demo", b"a", row=0)
    with pytest.raises(AuthError, match=r"row 0 to broker .*415 CERTIFICATE_FAILURE.*tubemq.user"):
        producer.flush()
    producer.close()
    assert sum(broker.requests for broker in cluster.brokers.values()) == 2


def test_an_unknown_topic_is_refused_and_the_rest_goes_on(cluster: FakeCluster) -> None:
    with Producer(cluster.settings(retry_for=0.3)) as producer:
        producer.send("demo", b"before")
        with pytest.raises(ConfigError, match=r"row 5: the master .* knows no topic nope"):
            producer.send("nope", b"a", row=5)
        producer.send("demo", b"after")
    assert set(cluster.stored) == {b"before", b"after"}


@pytest.mark.parametrize(
    ("body", "attributes", "error"),
    [
        (b"", b"", "value and attributes are empty"),
        (bytes(1001), b"", "value has 1001 bytes, and topic demo takes 1000 at most"),
        (bytes(1000), b"a=" + b"x" * 10_240, "value and attributes have 11242 bytes"),
    ],
    ids=["empty", "value", "attributes"],
)
def test_sizes_that_no_broker_takes(body: bytes, attributes: bytes, error: str) -> None:
    with FakeCluster(max_message_size=1000) as cluster, Producer(cluster.settings()) as producer:
        with pytest.raises(ConfigError, match=f"row 3: {error}"):
            producer.send("demo", body, attributes, row=3)
        producer.send("demo", bytes(1000), b"a=" + b"x" * 10_000)
        producer.send("demo", b"", b"a=b")
        assert sum(producer.flush().values()) == 2


# Time that passes elsewhere


def test_a_slow_caller_is_no_silent_broker(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        late = 0.0

        def monotonic(self) -> float:
            return time.monotonic() + self.late

    clock = Clock()
    monkeypatch.setattr(link_module, "time", clock)
    with Producer(cluster.settings(rpc_timeout=5)) as producer:
        for _ in range(3):
            send_all(producer, 300)
            clock.late += 60
        producer.flush()
    assert cluster.stored == dict.fromkeys(bodies(300), 3)


# Sessions


def test_the_next_producer_needs_no_master(cluster: FakeCluster) -> None:
    settings = cluster.settings()
    with Producer(settings) as producer:
        producer.send("demo", b"1")
    calls = cluster.calls.total()
    assert calls > 0
    with Producer(settings) as producer:
        producer.send("demo", b"2")
    assert cluster.calls.total() == calls
    assert set(cluster.stored) == {b"1", b"2"}


def test_sessions_are_closed_when_nobody_uses_them(cluster: FakeCluster) -> None:
    settings = cluster.settings(idle_for=0.0)
    with Producer(settings) as producer:
        producer.send("demo", b"1")
        producer.flush()
        SESSIONS.close_idle()
        assert cluster.calls[Method.PRODUCER_CLOSE] == 0
    SESSIONS.close_idle()
    assert cluster.calls[Method.PRODUCER_CLOSE] == 1
    with Producer(settings) as producer:
        producer.send("demo", b"2")
    assert cluster.calls[Method.PRODUCER_REGISTER] == 2
