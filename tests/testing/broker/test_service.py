# SPDX-License-Identifier: Apache-2.0
"""A broker's credentials, expired claims, flow control, stops and crashes. For codes, texts and fields of its answers
see tests/differential.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.testing.broker.calls import BrokerBench, heartbeat
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.testing.catalog import FlowRule

UNIT = 28
REG_TIMEOUT = 35.0
INFO = "1:10.0.0.1:8123#demo:0"


def outcome(reply: Any) -> tuple[int, str]:
    assert reply.success == (reply.errCode == 200)
    return reply.errCode, reply.errMsg


def payloads(reply: Any) -> list[bytes]:
    return [message.payLoadData for message in reply.messages]


# -- credentials


@pytest.mark.parametrize("produce", [True, False])
def test_requests_whose_credentials_are_checked(produce: bool) -> None:
    """They are checked first, and change nothing; gets and commits need none."""
    bench = BrokerBench(start_produce_authenticate=produce, start_consume_authenticate=not produce)
    sent = [bench.send(clientId="")]
    read = [bench.register(clientId=""), bench.unregister(clientId=""), bench.heartbeat("nonsense", clientId="")]
    refused = (415, "authAuthorizedToken is Blank!")
    assert {outcome(reply) for reply in (sent if produce else read)} == {refused}
    assert refused not in {outcome(reply) for reply in (bench.get(), bench.commit(), *(read if produce else sent))}
    assert not bench.broker.claims
    assert not bench.broker.stores.of_topic("demo")


# -- claims


def test_a_reader_of_files_gets_their_end_as_the_maximum() -> None:
    bench = BrokerBench()
    bench.send()
    assert bench.register(qryPriorityId=1).maxOffset == 0
    assert bench.commit().maxOffset == 0
    assert bench.register(qryPriorityId=-2).maxOffset == UNIT
    bench.catalog.default_flow = FlowRule(1, "[]", 1)
    assert bench.register().maxOffset == 0
    bench.catalog.default_flow = FlowRule(2, "[]", 0)
    assert bench.register().maxOffset == UNIT


def test_the_first_register_after_an_expired_claim_only_removes_it() -> None:
    bench = BrokerBench()
    bench.register("c1")
    bench.clock.advance(REG_TIMEOUT)  # without a scan
    refused = bench.register("c2")
    assert outcome(refused) == (410, "[Duplicated Register] Remove Invalid Consumer Register c1#g:demo:0")
    assert bench.register("c2").errCode == 200
    assert bench.get("c1").errCode == 412


@pytest.mark.parametrize("sign", ["get", "heartbeat", "register", None])
def test_heartbeats_and_gets_keep_a_claim(sign: str | None) -> None:
    bench = BrokerBench()
    bench.send()
    bench.register()
    for _ in range(3):
        bench.wait(REG_TIMEOUT - 2)
        if sign == "heartbeat":
            bench.heartbeat(INFO)
        elif sign is not None:
            getattr(bench, sign)()
    assert bench.commit().errCode == (ErrCode.UNAUTHORIZED if sign is None else 200)


# -- heartbeats


@pytest.mark.parametrize(
    ("info", "told"),
    [
        ("01:host:+08123#demo:02:more#even more", "411:1:host:8123#demo:2"),
        ("7:elsewhere:1#nowhere:0", "411:7:elsewhere:1#nowhere:0"),
    ],
)
def test_a_heartbeat_repeats_a_partition_in_the_brokers_format(info: str, told: str) -> None:
    assert list(BrokerBench().heartbeat(info).failureInfo) == [told]


@pytest.mark.parametrize(
    "info", ["1:h:8123", "1:h#demo:0", "1:h:8123#demo", "1:h:8123#demo:first", "x:h:1#demo:0", "#"]
)
def test_a_malformed_partition_fails_the_heartbeat_without_effect(info: str) -> None:
    bench = BrokerBench()
    bench.register()
    bench.clock.advance(REG_TIMEOUT - 1)
    failure = bench.failure(heartbeat(INFO, info))
    assert failure.exception_name == "java.lang.reflect.InvocationTargetException"
    bench.wait(2)
    assert not bench.broker.claims


# -- reads


SLOW = '[{"type":0,"rule":[{"start":"00:00","end":"24:00","dltInM":21,"limitInM":1,"freqInMs":400}]}]'
TWELFTH = 1024 * 1024 // 12


def test_a_flow_rule_limits_a_reader_until_it_escapes_or_waits() -> None:
    bench = BrokerBench(transfer_size=1000)
    bench.catalog.default_flow = FlowRule(1, SLOW, 301)
    for _ in range(20):
        bench.send(data=bytes(TWELFTH))
    bench.register()
    got = [bench.get(manualCommitOffset=True) for _ in range(3)]
    assert [reply.errCode for reply in got] == [200, 200, 452]  # the first read does not count
    assert (got[2].errMsg, got[2].minLimitTime) == ("RpcServer consume speed limit!", 400)
    escaped = bench.get(manualCommitOffset=True, escFlowCtrl=True)
    assert escaped.errCode == 200
    assert bench.get(manualCommitOffset=True).errCode == 452
    bench.clock.advance(5.5)
    assert bench.get(manualCommitOffset=True).errCode == 200
    bench.register()  # a new claim has a new quota
    assert [bench.get(manualCommitOffset=True).errCode for _ in range(3)] == [200, 200, 452]
    bench.catalog.default_flow = None
    bench.clock.advance(60.5)
    assert [bench.get().errCode for _ in range(5)] == [200] * 5


# -- stop and crash


@pytest.mark.parametrize(("orderly", "left"), [(True, [b"0", b"1"]), (False, [b"0"])])
def test_effects_of_a_stop_and_a_crash(orderly: bool, left: list[bytes]) -> None:
    bench = BrokerBench()
    bench.send(data=b"0")
    bench.broker.stores.of_topic("demo")[0].flush()
    last = bench.send(data=b"1").messageId
    bench.register()
    if orderly:
        bench.broker.stop()
    else:
        bench.broker.crash()
    assert bench.get().errCode == 411
    assert bench.register("c2").currOffset == 0
    bench.broker.stores.of_topic("demo")[0].flush()
    seen = [one for _ in range(3) for one in payloads(bench.get("c2", manualCommitOffset=True))]
    assert seen == left
    assert bench.send().messageId != last
