# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.testing.master.calls import MasterBench, StoppedClock
from tubemq_spark.protocol.auth import Credentials, broker_authorization, master_certificate
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.protocol.pb import MasterService_pb2 as pb
from tubemq_spark.testing.authentication import AccessCheck, BrokerAccess
from tubemq_spark.testing.catalog import Catalog, VisitTokens
from tubemq_spark.testing.config import ServerConfig
from tubemq_spark.testing.dispatch import DeclinedError

ANN = Credentials("ann", "secret")
NOW = StoppedClock().wall_ms()
BOTH = ServerConfig(start_produce_authenticate=True, start_consume_authenticate=True)


def claim(user: str = "ann", signature: str = "x", at: int = NOW) -> pb.MasterCertificateInfo:
    info = pb.AuthenticateInfo(userName=user, timestamp=at, nonce=1, othParams="", signature=signature)
    return pb.MasterCertificateInfo(authInfo=info)


def check_credentials(info: pb.MasterCertificateInfo, config: ServerConfig, *, produce: bool) -> None:
    AccessCheck(Catalog(config, StoppedClock())).check_credentials(info, produce=produce)


@pytest.mark.parametrize(
    ("info", "text"),
    [
        (pb.MasterCertificateInfo(), "authInfo.userName is Blank!"),
        (pb.MasterCertificateInfo(authorizedToken="token"), "authInfo.userName is Blank!"),
        (claim(user=" "), "authInfo.userName is Blank!"),
        (claim(signature=""), "authInfo.signature is Blank!"),
        (claim(at=NOW - 20_001), "timestamp out of effective period in authenticateToken!"),
        (claim(at=NOW + 20_001), "timestamp out of effective period in authenticateToken!"),
    ],
)
@pytest.mark.parametrize("produce", [True, False])
def test_masters_refuse_missing_or_old_credentials(info: pb.MasterCertificateInfo, text: str, produce: bool) -> None:
    with pytest.raises(DeclinedError) as caught:
        check_credentials(info, BOTH, produce=produce)
    assert (caught.value.code, caught.value.text) == (415, f"Illegal value: {text}")


@pytest.mark.parametrize("info", [claim(), claim(at=NOW - 20_000), claim(at=NOW + 20_000), claim(signature="wrong")])
def test_masters_accept_any_recent_signature(info: pb.MasterCertificateInfo) -> None:
    check_credentials(info, BOTH, produce=True)


def test_masters_accept_our_clients_credentials() -> None:
    check_credentials(master_certificate(ANN, NOW, 7), BOTH, produce=False)


@pytest.mark.parametrize("produce", [True, False])
def test_each_role_has_its_own_setting(produce: bool) -> None:
    other = ServerConfig(start_produce_authenticate=not produce, start_consume_authenticate=produce)
    check_credentials(pb.MasterCertificateInfo(), other, produce=produce)
    with pytest.raises(DeclinedError):
        check_credentials(pb.MasterCertificateInfo(), other, produce=not produce)


def test_clients_receive_a_token_one_period_after_the_brokers() -> None:
    clock = StoppedClock()
    tokens = VisitTokens(clock, ServerConfig(visit_token_valid_period=300))
    first = tokens.current
    assert list(tokens.accepted) == [first]
    clock.advance(239)
    assert list(tokens.accepted) == [first]
    clock.advance(1)
    second = tokens.accepted[-1]
    assert list(tokens.accepted) == [first, second]
    assert tokens.current == first
    clock.advance(240)
    assert tokens.current == second


def test_brokers_accept_the_last_six() -> None:
    clock = StoppedClock()
    tokens = VisitTokens(clock, ServerConfig())
    first = tokens.current
    clock.advance(5 * 240)
    assert first in tokens.accepted
    assert len(set(tokens.accepted)) == 6
    clock.advance(240)
    assert first not in tokens.accepted
    assert tokens.current == tokens.accepted[-2]


class Broker:
    def __init__(self, **settings: bool) -> None:
        self.clock = StoppedClock()
        config = ServerConfig(**settings)  # type: ignore[arg-type]  # switches alone
        catalog = Catalog(config, self.clock)
        self.tokens = catalog.tokens
        self._access = BrokerAccess(catalog)

    def check(self, info: broker_pb.AuthorizedInfo, produce: bool = True) -> None:
        self._access.check(info, produce=produce)


def test_brokers_check_visit_tokens_only_some_time_after_their_registration() -> None:
    broker = Broker(start_visit_token_check=True)
    unknown = broker_authorization(None, 7, NOW, 1)
    broker.clock.advance(120)
    broker.check(unknown)
    broker.clock.advance(0.1)
    with pytest.raises(DeclinedError) as caught:
        broker.check(unknown)
    assert (caught.value.code, caught.value.text) == (415, "Visit Authorized Token is invalid!")
    broker.check(broker_authorization(None, broker.tokens.current, NOW, 1))


def test_brokers_check_nothing_that_is_switched_off() -> None:
    broker = Broker()
    broker.clock.advance(1000)
    broker.check(broker_pb.AuthorizedInfo(visitAuthorizedToken=-2))


@pytest.mark.parametrize("produce", [True, False])
def test_brokers_require_a_credentials_token_of_any_content(produce: bool) -> None:
    broker = Broker(start_produce_authenticate=produce, start_consume_authenticate=not produce)
    nothing = broker_authorization(None, -2, NOW, 1)
    broker.check(nothing, not produce)
    with pytest.raises(DeclinedError) as caught:
        broker.check(nothing, produce)
    assert (caught.value.code, caught.value.text) == (415, "authAuthorizedToken is Blank!")
    broker.check(broker_authorization(ANN, -2, 0, 1), produce)


def test_every_call_to_a_master_is_checked() -> None:
    bench = MasterBench(start_produce_authenticate=True, start_consume_authenticate=True)
    calls: list[Callable[[], Any]] = [
        bench.register_producer,
        bench.producer_heartbeat,
        bench.register_v2,
        bench.heartbeat_v2,
        bench.meta,
        bench.register,
        bench.heartbeat,
        bench.close,
        lambda: bench.call(pb.CloseRequestP2M(clientId="p")),
    ]
    for call in calls:
        reply = call()
        assert (reply.errCode, reply.errMsg) == (415, "Illegal value: authInfo.userName is Blank!")
    assert bench.register_v2(authInfo=claim(at=bench.clock.wall_ms())).errCode == 200


def test_rotate_creates_the_next_token_at_once() -> None:
    clock = StoppedClock()
    tokens = VisitTokens(clock, ServerConfig(visit_token_valid_period=300))
    first = tokens.current
    for _ in range(6):
        tokens.rotate()
    assert first not in tokens.accepted
    assert len(set(tokens.accepted)) == 6
    last = tokens.accepted[-1]
    clock.advance(239)
    assert tokens.accepted[-1] == last
    clock.advance(1)
    assert tokens.accepted[-1] > last
