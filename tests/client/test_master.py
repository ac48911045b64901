"""Sessions at scripted masters."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from google.protobuf.message import Message

from tests.peers import Peer, Serve, answering, message_reply, refused_address, silent
from tubemq_spark.client import connection as connection_module
from tubemq_spark.client import master as master_module
from tubemq_spark.client.heartbeat import Heartbeat
from tubemq_spark.client.master import Cluster, ConsumerSession
from tubemq_spark.client.pool import POOL
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import AuthError, ConfigError, ServerError, TransportError, TubeMQError
from tubemq_spark.protocol.auth import Credentials
from tubemq_spark.protocol.constants import Framing, Method
from tubemq_spark.protocol.envelope import Failure, Request, Response
from tubemq_spark.protocol.metadata import Address, Broker, Partition, TopicOnBroker, parse_consumer_topic
from tubemq_spark.protocol.pb import MasterService_pb2 as pb

REGISTER, META, BEAT, CLOSE = (
    Method.CONSUMER_REGISTER_V2,
    Method.GET_PARTITION_META,
    Method.CONSUMER_HEARTBEAT_V2,
    Method.CONSUMER_CLOSE,
)
STANDBY = Failure("org.apache.inlong.tubemq.corerpc.exception.StandbyException", "I am a standby")
NO_NODE = 411


@dataclass
class Master:
    """Knows its members, and `lists`: broker strings and topic strings. `script` has the first word about a request: a
    number is the code of the answer, None leaves it to the master.
    """

    lists: tuple[list[str], list[str]] = field(default_factory=lambda: (["1:127.0.0.1:8123"], ["demo#1:2:3:1"]))
    script: Callable[[Method, int], int | Failure | None] = lambda method, number: None
    calls: list[Method] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    members: set[str] = field(default_factory=set)
    token: int = 5

    def __post_init__(self) -> None:
        self.peer = Peer(answering(self._answer))
        self.called = threading.Condition()

    @property
    def address(self) -> Address:
        return self.peer.address

    def wait_for(self, count: int, method: Method) -> None:
        with self.called:
            assert self.called.wait_for(lambda: self.calls.count(method) >= count, timeout=30), self.calls

    def _answer(self, request: Request) -> Response | Failure:
        method = Method(request.method)
        says = self.script(method, self.calls.count(method))
        with self.called:
            self.calls.append(method)
            self.requests.append(request)
            self.called.notify_all()
        return says if isinstance(says, Failure) else message_reply(request, self._reply(method, request.data, says))

    def _reply(self, method: Method, data: bytes, code: int | None) -> Message:
        brokers, topics = self.lists
        token = pb.MasterAuthorizedInfo(visitAuthorizedToken=self.token)
        if method is REGISTER:
            self.members |= {pb.RegisterRequestC2MV2.FromString(data).clientId} if code is None else set()
            return pb.RegisterResponseM2CV2(
                errCode=code or 200,
                errMsg="as scripted",
                brokerConfigId=1,
                brokerConfigList=brokers,
                authorizedInfo=token,
            )
        client = pb.HeartRequestC2MV2.FromString(data).clientId
        code = code or (200 if client in self.members else NO_NODE)
        if method is CLOSE:
            self.members.discard(client)
            return pb.CloseResponseM2C(success=True, errCode=code, errMsg="")
        if method is BEAT:
            return pb.HeartResponseM2CV2(errCode=code, errMsg="as scripted", authorizedInfo=token)
        known = code == 200
        return pb.GetPartMetaResponseM2C(
            errCode=code,
            errMsg="as scripted",
            brokerConfigId=1,
            brokerConfigList=brokers if known else [],
            topicMetaInfoId=1,
            topicMetaInfoList=topics if known else [],
        )


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(connection_module, "_GRACE", 0.05)
    monkeypatch.setattr(master_module, "_FIRST_CONTACT", 0.2)
    monkeypatch.setattr(master_module, "_LISTS_FILL_UP", 0.2)
    yield
    POOL.close()


@contextmanager
def session(*masters: Address, topics: tuple[str, ...] = ("demo",), **settings: object) -> Iterator[ConsumerSession]:
    """One that is not registered yet, and is closed at the end."""
    plain = {"framing": Framing.STANDARD, "rpc_timeout": 10.0, "retry_for": 30.0, **settings}
    made = ConsumerSession(ClientSettings(masters=masters, **plain), "g", topics)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.close()


DEMO = [Partition(1, "demo", store * 10_000 + number) for store in (0, 1) for number in (0, 1, 2)]


# One master


def test_registering_tells_where_the_partitions_are() -> None:
    master = Master()
    with master.peer, session(master.address) as consumer:
        consumer.register()
        assert consumer.cluster.partitions("demo") == DEMO
        assert consumer.broker(DEMO[0]) == Broker(1, Address("127.0.0.1", 8123))
        assert not consumer.cluster.is_sole(DEMO[0])
        assert master.calls == [REGISTER, META]
        assert master.members == {consumer.client_id}
        assert repr(consumer) == f"<ConsumerSession {consumer.client_id} REGISTERED at {master.address}>"
        request = pb.RegisterRequestC2MV2.FromString(master.requests[0].data)
        assert (request.groupName, list(request.topicList), request.sourceCount) == ("g", ["demo"], -1)
        consumer.close()
        consumer.close()
        assert master.calls == [REGISTER, META, CLOSE]
        assert master.members == set()


def test_credentials_travel_signed() -> None:
    master = Master()
    with master.peer, session(master.address, credentials=Credentials("ann", "secret")) as consumer:
        consumer.register()
        certificate = pb.RegisterRequestC2MV2.FromString(master.requests[0].data).authInfo.authInfo
        assert (certificate.userName, bool(certificate.signature)) == ("ann", True)
        for request in master.requests:
            assert b"ann" in request.data
            assert b"secret" not in request.data


def test_the_last_visit_token_is_shown_to_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(master_module, "HEARTBEAT", Heartbeat(0.01))
    master = Master()
    with master.peer, session(master.address) as consumer:
        consumer.register()
        assert consumer.broker_authorization().visitAuthorizedToken == 5
        master.token = 6
        master.wait_for(master.calls.count(BEAT) + 2, BEAT)
        assert consumer.broker_authorization().visitAuthorizedToken == 6


def test_a_topic_that_appears_a_little_later_is_waited_for() -> None:
    master = Master()
    brokers, topics = master.lists
    master.lists = (brokers, [])

    def appear(method: Method, number: int) -> None:
        if method is META and number == 2:
            master.lists = (brokers, topics)

    master.script = appear
    with master.peer, session(master.address) as consumer:
        consumer.register()
        assert consumer.cluster.partitions("demo") == DEMO


def test_a_topic_that_does_not_appear() -> None:
    master = Master()
    with master.peer, session(master.address, topics=("demo", "dmeo")) as consumer:
        with pytest.raises(ConfigError, match=f"{master.address} knows no topic dmeo: check option 'subscribe'"):
            consumer.register()
        assert master.members == set()  # it has said good-bye


def test_a_broker_that_no_list_names() -> None:
    master = Master()
    with master.peer, session(master.address) as consumer:
        consumer.register()
        with pytest.raises(ConfigError, match="knows no broker 9, which has 9:demo:0"):
            consumer.broker(Partition(9, "demo", 0))
        master.lists = (["1:127.0.0.1:8123", "9:127.0.0.9:8123"], [])
        assert consumer.broker(Partition(9, "demo", 0)).address == Address("127.0.0.9", 8123)


@pytest.mark.parametrize(
    ("code", "kind", "advice"),
    [
        (424, ConfigError, "in use by consumers of another kind .server-side balance.: stop them or use another"),
        (425, ConfigError, "in use with other topics: stop those consumers, or use another tubemq.group"),
        (431, ConfigError, "check the topic's name, or have it created"),
        (415, AuthError, "check tubemq.user and tubemq.password, and that this machine's clock is right"),
        (450, AuthError, "have the group authorised for the topic"),
        (400, ServerError, ""),
        (777, ServerError, ""),
    ],
)
def test_a_refusal_says_what_to_do(code: int, kind: type[TubeMQError], advice: str) -> None:
    master = Master(script=lambda method, number: code if method is REGISTER else None)
    said = (
        f"registering group g for demo at the master {master.address} failed with {code} [A-Z_]+: as scripted.*{advice}"
    )
    with master.peer, session(master.address) as consumer, pytest.raises(kind, match=said):
        consumer.register()
    assert master.calls == [REGISTER]


def test_a_broker_given_for_a_master() -> None:
    master = Master(script=lambda method, number: Failure("java.lang.Exception", "unsupported service type"))
    said = f"{master.address} answers like a TubeMQ broker.*masters listen on 8715"
    with master.peer, session(master.address) as consumer, pytest.raises(ConfigError, match=said):
        consumer.register()
    assert len(master.calls) == 1


def test_an_exception_of_the_master_is_not_retried() -> None:
    master = Master(script=lambda method, number: Failure("java.lang.reflect.InvocationTargetException", ""))
    said = "InvocationTargetException: no further text"
    with master.peer, session(master.address) as consumer, pytest.raises(ServerError, match=said):
        consumer.register()
    assert len(master.calls) == 1


def test_a_master_that_is_not_ready_is_waited_for() -> None:
    master = Master(script=lambda method, number: 201 if method is REGISTER and number < 2 else None)
    with master.peer, session(master.address) as consumer:
        consumer.register()
    assert master.calls[:4] == [REGISTER, REGISTER, REGISTER, META]


# Several masters


@pytest.mark.parametrize("fault", ["stands by", "refuses", "is silent", "closes"])
def test_the_next_master_is_asked(fault: str) -> None:
    serves: dict[str, Serve] = {"is silent": silent, "closes": lambda connection: None}
    standby, active = Master(script=lambda method, number: STANDBY), Master()
    with standby.peer, active.peer, Peer(serves.get(fault, silent)) as other:
        first = {"stands by": standby.address, "refuses": refused_address()}.get(fault, other.address)
        with session(first, active.address, rpc_timeout=0.5 if fault == "is silent" else 10.0) as consumer:
            consumer.register()
            consumer.refresh()
            assert active.calls == [REGISTER, META, META]
            assert len(standby.calls) + other.connections <= 1  # it is not asked again


def test_no_master_at_all() -> None:
    standby, gone = Master(script=lambda method, number: STANDBY), refused_address()
    said = (
        f"no master answered: .* at the master {standby.address}: not in service .StandbyException.; "
        f".* at the master {gone}: cannot connect.* Check option 'tubemq.master' and that the master runs"
    )
    with standby.peer, session(standby.address, gone) as consumer, pytest.raises(TransportError, match=said):
        consumer.register()


def test_a_session_moves_to_the_next_master_and_registers_there() -> None:
    old, new = Master(), Master()
    with new.peer:
        with old.peer, session(old.address, new.address) as consumer:
            consumer.register()
            assert new.calls == []
            old.peer.hang_up()
            consumer.refresh()
            assert new.members == {consumer.client_id}
            assert repr(consumer).endswith(f"REGISTERED at {new.address}>")
        assert new.calls[-1] is CLOSE


def test_a_session_that_the_master_forgot_registers_again() -> None:
    master = Master()
    with master.peer, session(master.address) as consumer:
        consumer.register()
        master.members.clear()
        consumer.refresh()
        assert master.members == {consumer.client_id}
        assert master.calls == [REGISTER, META, META, REGISTER, META]


@pytest.mark.parametrize(
    "short",
    [([], []), (["1:127.0.0.1:8123"], []), ([], ["demo#1:2:3:0"]), (["1:127.0.0.1:8123"], ["demo#1:1:1:0"])],
    ids=["nothing", "no topics", "no brokers", "fewer partitions"],
)
def test_the_short_lists_of_a_new_master_take_nothing_away(short: tuple[list[str], list[str]]) -> None:
    old, new = Master(), Master(lists=short)
    with new.peer, old.peer, session(old.address, new.address) as consumer:
        consumer.register()
        old.peer.hang_up()
        assert consumer.refresh().partitions("demo") == DEMO
        assert consumer.broker(DEMO[0]) == Broker(1, Address("127.0.0.1", 8123))

        new.lists = (["1:127.0.0.1:9999", "2:127.0.0.2:8123"], ["demo#1:2:3:1,2:1:1:1"])
        assert consumer.refresh().partitions("demo") == [*DEMO, Partition(2, "demo", 0)]
        assert consumer.broker(DEMO[0]).address.port == 9999


def test_a_master_that_comes_back_in_time_is_found() -> None:
    """For long, once a session was registered: a failover takes its time."""
    master = Master(script=lambda method, number: STANDBY if method is META and 0 < number < 4 else None)
    with master.peer, session(master.address) as consumer:
        consumer.register()
        assert consumer.refresh().partitions("demo") == DEMO
    assert master.calls.count(META) > 4


# Heartbeats


def test_a_registered_session_beats_until_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(master_module, "HEARTBEAT", Heartbeat(0.01))
    master = Master()
    with master.peer, session(master.address) as consumer:
        consumer.register()
        master.wait_for(3, BEAT)
        consumer.close()
        after = len(master.calls)
        assert master.calls[-1] is CLOSE
    assert len(master.calls) == after


def test_a_beat_that_finds_the_session_forgotten_registers_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(master_module, "HEARTBEAT", Heartbeat(0.01))
    master = Master()
    with master.peer, session(master.address) as consumer:
        consumer.register()
        master.wait_for(1, BEAT)
        master.members.clear()
        master.wait_for(2, REGISTER)
        beats = master.calls.count(BEAT)
        master.wait_for(beats + 2, BEAT)
        assert master.members == {consumer.client_id}
        assert master.calls.count(REGISTER) == 2


def test_beats_survive_the_loss_of_a_master(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(master_module, "HEARTBEAT", Heartbeat(0.01))
    old, new = Master(), Master()
    with new.peer, old.peer, session(old.address, new.address) as consumer:
        consumer.register()
        old.wait_for(1, BEAT)
        old.peer.hang_up()
        new.wait_for(1, REGISTER)
        new.wait_for(2, BEAT)
        assert new.members == {consumer.client_id}


# What is known of the cluster


def layouts(*texts: str) -> list[TopicOnBroker]:
    return [layout for text in texts for layout in parse_consumer_topic(text)]


def broker(broker_id: int, port: int) -> dict[int, Broker]:
    return {broker_id: Broker(broker_id, Address("127.0.0.1", port))}


@pytest.mark.parametrize(
    ("brokers", "texts", "partitions"),
    [
        ({}, [], 2),
        (broker(1, 5), [], 2),
        ({}, ["demo#1:1:4:1"], 4),
        ({}, ["demo#1:3:2:1"], 6),
        ({}, ["demo#1:1:1:1"], 2),
        ({}, ["demo#2:1:1:1"], 2),  # nobody knows yet where broker 2 is
        (broker(2, 6), ["demo#2:1:1:1"], 3),
        ({}, ["other#1:1:9:1"], 2),
    ],
)
def test_news_of_the_cluster_only_add(brokers: dict[int, Broker], texts: list[str], partitions: int) -> None:
    known = Cluster().with_more(broker(1, 4), layouts("demo#1:1:2:1"))
    cluster = known.with_more(brokers, layouts(*texts))
    assert len(cluster.partitions("demo")) == partitions
    assert cluster.partitions("demo") == sorted(cluster.partitions("demo"))
    assert cluster.brokers == {**broker(1, 4), **brokers}


def test_partitions_that_have_their_store_for_themselves() -> None:
    cluster = Cluster().with_more(broker(1, 4), layouts("demo#1:2:1:1", "other#1:1:2:1"))
    assert [cluster.is_sole(partition) for partition in cluster.partitions("demo")] == [True, True]
    assert [cluster.is_sole(partition) for partition in cluster.partitions("other")] == [False, False]
    assert not cluster.is_sole(Partition(7, "demo", 0))
    assert cluster.missing(["demo", "third"]) == ["third"]
