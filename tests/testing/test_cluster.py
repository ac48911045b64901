# SPDX-License-Identifier: Apache-2.0
"""The methods of EmbeddedTubeMQ and their errors."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from tests.certificates import Certificate, tls_files
from tests.testing.raw import Raw, send
from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.constants import Framing
from tubemq_spark.protocol.envelope import Response
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.pb import MasterService_pb2 as master_pb
from tubemq_spark.testing import EmbeddedTubeMQ, Release, ServerConfig

MISTAKES: dict[str, tuple[Callable[[EmbeddedTubeMQ], object], str]] = {
    "unknown broker": (lambda t: t.stop_broker(9), r"no broker 9; the brokers are \[1, 2\]"),
    "disk of an unknown broker": (lambda t: t.lose_disk(9), "no broker 9"),
    "unknown broker of a fault": (lambda t: t.on("get_message", broker=9), "no broker 9"),
    "unknown master of a fault": (lambda t: t.on("producer_register", master=2), "no master 2; there are 1"),
    "broker and master of a fault": (lambda t: t.on("get_message", broker=1, master=1), "name one of them"),
    "master zero": (lambda t: t.stop_master(0), "no master 0"),
    "unknown topic": (lambda t: t.messages("other"), "no topic 'other': create it with create_topic"),
    "unknown topic deleted": (lambda t: t.delete_topic("other"), "no topic 'other'"),
    "unknown topic closed": (lambda t: t.close_topic("other"), "no topic 'other'"),
    "unknown topic authorized": (lambda t: t.authorize("other", "g"), "no topic 'other'"),
    "unknown topic revoked": (lambda t: t.revoke("other", "g"), "no topic 'other'"),
    "unknown topic flushed": (lambda t: t.flush("other"), "no topic 'other'"),
    "unknown broker flushed": (lambda t: t.flush("demo", broker_id=9), "no broker 9"),
    "unknown partition": (lambda t: t.send("demo", b"x", partition=7), "no partition 7; it has 1:0, 1:1, 1:2, 2:0"),
    "no partition": (lambda t: t.send("demo", b"x", partition="one"), "'one' is neither a partition id"),
    "group on an unknown partition": (lambda t: t.group_offset("g", "demo", 1, 7), "no partition '1:7'"),
    "group on an unknown topic": (lambda t: t.group_offset("g", "other", 1, 0), "no topic 'other'"),
    "empty body": (lambda t: t.send("demo", b""), "was refused: data length is zero!"),
    "text for a body": (lambda t: t.send("demo", "x"), "a message's body is bytes, not str"),  # type: ignore[arg-type]
    "bad attribute": (lambda t: t.send("demo", b"x", attributes={"a": "b,c"}), "attribute 'a'"),
    "bad topic name": (lambda t: t.create_topic("a-b"), "must start with a letter"),
    "no partitions": (lambda t: t.create_topic("new", 0), "at least one partition and one store"),
    "nowhere": (lambda t: t.create_topic("new", brokers=[]), "needs at least one broker"),
    "on an unknown broker, too": (lambda t: t.create_topic("new", brokers=[1, 9]), "no broker 9"),
    "to keep less than nothing": (lambda t: t.expire("demo", keep=-1), "0 messages or more"),
    "restriction of an open topic": (lambda t: t.restrict("demo", "g", "a"), "not under authorisation"),
    "no flow rule": (lambda t: t.set_flow_rule("[{}]"), "not a flow rule"),
    "addresses of a running broker": (lambda t: t.swap_addresses(1, 2), r"broker 1 runs: stop_broker\(1\) comes"),
    "addresses of one broker": (lambda t: t.swap_addresses(1, 1), "cannot swap addresses with itself"),
    "no TLS": (lambda t: t.tls_master, "tls=TLSFiles"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_error_names_the_mistake(mistake: str) -> None:
    make, words = MISTAKES[mistake]
    with EmbeddedTubeMQ({"demo": 3}, brokers=2) as tubemq:
        with pytest.raises(ConfigError, match=words):
            make(tubemq)
        assert (tubemq.topics, tubemq.messages("demo")) == (["demo"], [])


@pytest.mark.parametrize(("masters", "brokers"), [(0, 1), (1, 0)])
def test_a_cluster_needs_a_master_and_a_broker(masters: int, brokers: int) -> None:
    with pytest.raises(ConfigError, match="at least one master and one broker"):
        EmbeddedTubeMQ(masters=masters, brokers=brokers)


def test_a_closed_cluster_raises() -> None:
    tubemq = EmbeddedTubeMQ({"demo": 1})
    tubemq.close()
    tubemq.close()
    for use in (lambda: tubemq.send("demo", b"x"), lambda: tubemq.topics, lambda: tubemq.clock.advance(1)):
        with pytest.raises(RuntimeError, match="this EmbeddedTubeMQ is closed"):
            use()


@pytest.mark.parametrize("framing", Framing)
def test_framing_accepts_a_name(framing: Framing) -> None:
    with EmbeddedTubeMQ({"demo": 1}, framing=framing.value, release="1.2") as tubemq:
        assert tubemq.framing is framing
        with Raw(tubemq.master, framing) as raw:
            (number,) = raw.ask(master_pb.RegisterRequestP2M(clientId="c", brokerCheckSum=-1, hostName="h"))
            assert isinstance(raw.reply(number), Response)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"framing": "prefix"}, "framing is 'prefix'; expected 'standard' or 'prefixed'"),
        ({"framing": ""}, "framing is ''; expected 'standard' or 'prefixed'"),
        ({"framing": Release.V1_2}, "framing is .*; expected 'standard' or 'prefixed'"),
        ({"release": "1.0"}, "release is '1.0'; expected '1.2' or '2.5'"),
        ({"config": ServerConfig(release="3")}, "release is '3'; expected '1.2' or '2.5'"),  # type: ignore[arg-type]
    ],
)
def test_unknown_release_and_framing_are_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        EmbeddedTubeMQ(**given)


def test_arguments_override_release_and_memory_of_the_settings() -> None:
    config = ServerConfig(release=Release.V1_2)
    with EmbeddedTubeMQ(config=config) as by_config, EmbeddedTubeMQ(config=config, release="2.5") as by_argument:
        assert (by_config.release, by_argument.release) == (Release.V1_2, Release.V2_5)


def test_messages_returns_a_message_as_it_was_sent() -> None:
    with EmbeddedTubeMQ({"demo": 3}, brokers=2) as tubemq:
        sent = tubemq.send("demo", b"body", "2:1", {"k": "v"}, msg_type="a", msg_time="202611211305")
        assert tubemq.messages("demo") == [sent]
        assert (sent.broker_id, sent.partition, sent.offset, sent.body) == (2, 1, 0, b"body")
        assert (sent.attributes, sent.msg_type, sent.msg_time) == ({"k": "v"}, "a", "202611211305")


def test_messages_are_spread_over_the_partitions_of_running_brokers() -> None:
    with EmbeddedTubeMQ({"demo": 2}, brokers=2) as tubemq:
        everywhere = {(m.broker_id, m.partition) for m in [tubemq.send("demo", b"x") for _ in range(4)]}
        tubemq.crash_broker(1)
        there = {(m.broker_id, m.partition) for m in [tubemq.send("demo", b"x") for _ in range(4)]}
        with pytest.raises(ConfigError, match=r"broker 1 is down: start it with start_broker\(1\)"):
            tubemq.send("demo", b"x", "1:0")
        tubemq.stop_broker(2)
        with pytest.raises(ConfigError, match="all brokers of topic demo are down"):
            tubemq.send("demo", b"x")
    assert everywhere == {(1, 0), (1, 1), (2, 0), (2, 1)}
    assert there == {(2, 0), (2, 1)}


def test_a_topic_that_grows_keeps_its_settings() -> None:
    with EmbeddedTubeMQ({"demo": 1}) as tubemq:
        tubemq.create_topic("demo", 2, max_msg_size=10)
        tubemq.close_topic("demo")
        tubemq.create_topic("demo", 3, 2)
        with pytest.raises(ConfigError, match="max length is 10250"):
            tubemq.send("demo", bytes(10_251), partition=10_002)
        assert producer_topics(tubemq) == []
        tubemq.open_topic("demo")
        assert producer_topics(tubemq) == ["demo#1:3:2#10"]


def test_send_needs_no_credentials() -> None:
    with EmbeddedTubeMQ({"demo": 1}, config=ServerConfig(start_produce_authenticate=True)) as tubemq:
        tubemq.send("demo", b"x")
        with Raw(tubemq.broker_address(1)) as producer:
            assert producer.call(send(b"y")).errCode == ErrCode.CERTIFICATE_FAILURE


def test_a_restarted_broker_accepts_any_visit_token_for_a_while() -> None:
    """It may not know all tokens yet."""
    with EmbeddedTubeMQ({"demo": 1}, config=ServerConfig(start_visit_token_check=True)) as tubemq:

        def code() -> int:
            with Raw(tubemq.broker_address(1)) as producer:
                return int(producer.call(send(b"y")).errCode)

        codes = [code()]
        tubemq.clock.advance(121)
        codes.append(code())
        tubemq.crash_broker(1)
        tubemq.start_broker(1)
        codes.append(code())
        tubemq.clock.advance(121)
        assert [*codes, code()] == [200, 415, 200, 415]


def test_the_masters_miss_a_broker_when_its_heartbeats_are_due() -> None:
    with EmbeddedTubeMQ({"demo": 1}, brokers=2) as tubemq:
        tubemq.crash_broker(1)
        tubemq.clock.advance(20)
        tubemq.start_broker(1)
        tubemq.crash_broker(1)
        tubemq.clock.advance(6)
        assert producer_topics(tubemq) == ["demo#1:1:1,2:1:1#"], "26 s after the first crash, 6 s after the second"
        tubemq.clock.advance(20)
        assert producer_topics(tubemq) == ["demo#2:1:1#"]
        tubemq.start_broker(1)
        assert producer_topics(tubemq) == ["demo#1:1:1,2:1:1#"]
        tubemq.stop_broker(1)
        assert producer_topics(tubemq) == ["demo#2:1:1#"], "it says good-bye"


def test_starting_a_running_server_or_stopping_a_stopped_one_changes_nothing() -> None:
    with EmbeddedTubeMQ({"demo": 1}) as tubemq:
        tubemq.send("demo", b"x")
        tubemq.start_broker(1)
        tubemq.stop_broker(1)
        tubemq.crash_broker(1)
        tubemq.stop_broker(1)
        tubemq.stop_master()
        tubemq.stop_master()
        tubemq.start_master()
        tubemq.start_master()
        tubemq.start_broker(1)
        assert len(tubemq.messages("demo")) == 1


def test_brokers_that_swap_addresses_start_at_each_others(server_cert: Certificate) -> None:
    """With their messages. The masters list each of them there once it has started."""
    with EmbeddedTubeMQ({"demo": 1}, brokers=2, tls=tls_files(server_cert)) as tubemq:
        first, second = listed_ports(tubemq)
        tubemq.stop_broker(1)
        tubemq.crash_broker(2)
        tubemq.swap_addresses(1, 2)
        assert listed_ports(tubemq)[0][:2] == first[:2]
        tubemq.start_broker(2)
        assert listed_ports(tubemq) == [(*first[:2], second[2]), first]
        tubemq.start_broker(1)
        assert listed_ports(tubemq) == [second, first]
        with tubemq.on("send_message", broker=1, times=1).count() as fault, Raw(f"127.0.0.1:{second[0]}") as producer:
            producer.call(send(b"of 1"))
        assert ([message.broker_id for message in tubemq.messages("demo")], fault.fired) == ([1], 1)


def listed_ports(tubemq: EmbeddedTubeMQ) -> list[tuple[int, int, int]]:
    """Return the ports of each broker as the master lists them: plain, TLS and HTTP."""
    url = f"http://{tubemq.web_master}/webapi.htm?type=op_query&method=admin_query_broker_run_status"
    with urllib.request.urlopen(url) as answer:
        brokers = sorted(json.load(answer)["data"], key=lambda one: one["brokerId"])
    return [(one["brokerPort"], one["brokerTLSPort"], one["brokerWebPort"]) for one in brokers]


@pytest.mark.parametrize(("release", "kept"), [(Release.V2_5, None), (Release.V1_2, 28)])
@pytest.mark.parametrize("end", [lambda t: None, lambda t: t.stop_broker(1)])
def test_a_broker_that_lost_its_disk_starts_empty(
    end: Callable[[EmbeddedTubeMQ], None], release: Release, kept: int | None
) -> None:
    """It has its topics, and other brokers their messages. Only release 1.2 has positions elsewhere."""
    with EmbeddedTubeMQ({"demo": 1}, brokers=2, release=release) as tubemq:
        for broker_id in (1, 2):
            tubemq.send("demo", b"old", f"{broker_id}:0")
            tubemq.move_group("g", "demo", broker_id, 0, 28)
        tubemq.flush("demo")
        tubemq.clock.advance(10)  # positions are written after 5 s, and into the file after 6 s
        end(tubemq)
        tubemq.lose_disk(1)
        with pytest.raises(ConfigError, match="broker 1 is down"):
            tubemq.send("demo", b"x", "1:0")
        tubemq.start_broker(1)
        positions = [tubemq.group_offset("g", "demo", broker_id, 0) for broker_id in (1, 2)]
        new = tubemq.send("demo", b"new", "1:0")
        assert (new.offset, positions) == (0, [kept, 28])
        assert [(message.broker_id, message.body) for message in tubemq.messages("demo")] == [(1, b"new"), (2, b"old")]


def test_restrict_limits_a_group_to_some_types() -> None:
    with EmbeddedTubeMQ({"demo": 1}) as tubemq:
        codes = [register_code(tubemq, "g")]
        tubemq.authorize("demo", "other")
        codes.append(register_code(tubemq, "g"))
        tubemq.authorize("demo", "g")
        codes.append(register_code(tubemq, "g"))
        tubemq.restrict("demo", "g", "a", "b")
        codes += [register_code(tubemq, "g", *types) for types in ((), ("a",), ("a", "c"))]
        tubemq.restrict("demo", "g")
        codes.append(register_code(tubemq, "g"))
        tubemq.revoke("demo", "g")
        codes.append(register_code(tubemq, "g"))
        tubemq.authorize("demo", "g")
        codes.append(register_code(tubemq, "g"))
    assert codes == [200, 450, 200, 455, 200, 455, 200, 450, 200]


def test_consume_from_max_orders_a_group_to_the_latest() -> None:
    with EmbeddedTubeMQ({"demo": 1}) as tubemq, Raw(tubemq.master) as master:
        assert master.call(member("g")).errCode == ErrCode.SUCCESS
        beat = master_pb.HeartRequestC2MV2(clientId="c1", groupName="g")
        before = master.call(beat)
        tubemq.consume_from_max("g")
        after = master.call(beat)
        assert not before.opsTaskInfo.HasField("csmFrmMaxOffsetCtrlId")
        assert after.opsTaskInfo.csmFrmMaxOffsetCtrlId > 0


def producer_topics(tubemq: EmbeddedTubeMQ) -> list[str]:
    """Return what the master lists for a producer of the topic demo."""
    with Raw(tubemq.master) as master:
        register = master_pb.RegisterRequestP2M(clientId="p", brokerCheckSum=-1, hostName="127.0.0.1")
        assert master.call(register).errCode == ErrCode.SUCCESS
        beat = master_pb.HeartRequestP2M(clientId="p", brokerCheckSum=-1, hostName="127.0.0.1", topicList=["demo"])
        return list(master.call(beat).topicInfos)


def member(group: str, *types: str) -> master_pb.RegisterRequestC2MV2:
    return master_pb.RegisterRequestC2MV2(
        clientId="c1",
        groupName=group,
        hostName="127.0.0.1",
        sourceCount=0,
        nodeId=0,
        topicList=["demo"],
        topicCondition=[f"demo#{','.join(types)}"] if types else [],
    )


def register_code(tubemq: EmbeddedTubeMQ, group: str, *types: str) -> int:
    """Register a member, close it, and return the master's answer code."""
    with Raw(tubemq.master) as master:
        code = int(master.call(member(group, *types)).errCode)
        master.call(master_pb.CloseRequestC2M(clientId="c1", groupName=group))
        return code
