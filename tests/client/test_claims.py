"""The driver's claims at a broker that fails at chosen moments."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import pytest

from tests.fake_broker import OURS, PARTITION, Break, FakeBroker
from tests.peers import refused_address
from tests.protocol.simulated_store import UNIT, SimulatedStore
from tubemq_spark.client import backoff, claims
from tubemq_spark.client.claims import DriverClaims, Standing
from tubemq_spark.client.heartbeat import Heartbeat
from tubemq_spark.client.master import ConsumerSession
from tubemq_spark.client.pool import POOL
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import ServerError, TransportError
from tubemq_spark.protocol.constants import UNKNOWN_ID, Framing
from tubemq_spark.protocol.consume import ClaimId
from tubemq_spark.protocol.metadata import Address, Broker, Partition

CLAIM = ClaimId("query", run=1, batch=1)
END, HERE = 100 * UNIT, 40 * UNIT


@dataclass
class Session:
    """What the claims need of a session at a master."""

    address: Address
    group: str = "g"
    visit_token: int = UNKNOWN_ID

    @property
    def settings(self) -> ClientSettings:
        return ClientSettings(masters=(), framing=Framing.STANDARD, retry_for=0.5)

    def broker(self, partition: Partition) -> Broker:
        return Broker(partition.broker_id, self.address)


def claims_at(address: Address) -> DriverClaims:
    return DriverClaims(cast(ConsumerSession, Session(address)), CLAIM, claim_timeout=0.0)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    store = SimulatedStore(minimum=3)
    store.append(*[OURS] * 100)
    broker = FakeBroker(store)
    with broker.peer:
        yield broker
        POOL.close()


@pytest.fixture
def driver(broker: FakeBroker) -> Iterator[DriverClaims]:
    driver = claims_at(broker.peer.address)
    yield driver
    driver.release()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """`advance` is how many seconds the clocks are ahead."""
    ahead = SimpleNamespace(advance=0.0)
    fake = SimpleNamespace(monotonic=lambda: time.monotonic() + ahead.advance, sleep=time.sleep)
    monkeypatch.setattr(claims, "time", fake)
    monkeypatch.setattr(backoff, "time", fake)
    return ahead


@pytest.mark.parametrize("fault", [Break("seek"), lambda step: 503 if step == "seek" else None])
def test_taking_tries_again(broker: FakeBroker, driver: DriverClaims, fault: Callable[[str], int | None]) -> None:
    tries = 0

    def once(step: str) -> int | None:
        nonlocal tries
        tries += 1
        return fault(step) if tries == 1 else None

    broker.script = once
    driver.take({PARTITION: HERE})
    assert driver.holds(PARTITION)
    assert driver.standing(PARTITION) == Standing(HERE, END)


def test_a_broker_that_stays_away() -> None:
    driver = claims_at(refused_address())
    with pytest.raises(TransportError, match=r"cannot connect.*gave up after 0\.5 s. Check that the broker runs"):
        driver.take({PARTITION: HERE})
    assert not driver.holds(PARTITION)
    driver.release()


def test_a_refusal_that_time_does_not_heal(broker: FakeBroker, driver: DriverClaims) -> None:
    broker.script = lambda step: 400
    with pytest.raises(ServerError, match=f"claiming {PARTITION} for group g at broker 1 .* failed with 400"):
        driver.take({PARTITION: HERE})
    assert broker.log == ["seek"]


@pytest.mark.parametrize("seek", [0, 1], ids=["before", "after"])
def test_a_connection_that_breaks_while_the_earliest_position_is_looked_up(
    broker: FakeBroker, driver: DriverClaims, seek: int
) -> None:
    driver.take({PARTITION: HERE})
    broker.script = Break("seek", seek)
    assert driver.earliest([PARTITION]) == {PARTITION: 3 * UNIT}
    assert broker.store.confirmed == HERE // UNIT


@pytest.mark.parametrize("fault", ["broken connection", "forgotten claim", "moved group"])
def test_asking_puts_everything_back(broker: FakeBroker, driver: DriverClaims, fault: str) -> None:
    driver.take({PARTITION: HERE})
    broker.store.append(OURS)
    if fault == "broken connection":
        broker.script = Break("roll back")
    elif fault == "forgotten claim":
        broker.holder, broker.store.confirmed = None, 0
    else:
        broker.store.confirmed = 60
    driver.ask(time.monotonic())
    assert broker.holder == str(CLAIM)
    assert driver.standing(PARTITION) == Standing(HERE, END + UNIT)
    assert broker.store.confirmed == HERE // UNIT


def test_positions_are_said_again_once_an_hour(
    broker: FakeBroker, driver: DriverClaims, clock: SimpleNamespace
) -> None:
    driver.take({PARTITION: HERE})
    for hours, seeks in [(0.9, 1), (1.1, 2), (1.9, 2), (2.2, 3)]:
        clock.advance = hours * 3600
        driver.ask(time.monotonic() + clock.advance)
        assert broker.log.count("seek") == seeks


def test_claims_beat_while_they_are_held(
    broker: FakeBroker, driver: DriverClaims, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "HEARTBEAT", Heartbeat(0.01))

    def next_beats() -> None:
        beats = broker.log.count("beat")
        while broker.log.count("beat") < beats + 2:
            time.sleep(0.001)

    driver.take({PARTITION: HERE})
    next_beats()
    driver.lend([PARTITION])
    driver.take({PARTITION: None})
    next_beats()
    driver.release()
    assert broker.holder is None


def test_lent_claims_do_not_beat(broker: FakeBroker, driver: DriverClaims) -> None:
    driver.take({PARTITION: HERE})
    driver._beat()
    driver.lend([PARTITION])
    driver._beat()
    assert broker.log.count("beat") == 1
    driver.release()
    assert "release" not in broker.log


def test_a_stop_does_not_fail_when_the_broker_is_away(broker: FakeBroker, driver: DriverClaims) -> None:
    driver.take({PARTITION: HERE})
    broker.peer.hang_up()
    driver.release()
    driver.release()
    assert not driver.holds(PARTITION)


def test_it_shows_its_claims(broker: FakeBroker, driver: DriverClaims) -> None:
    driver.take({PARTITION: HERE})
    assert repr(driver) == f"<DriverClaims {CLAIM} of group g: {{'HELD': 1}}>"
    assert driver.client_id(PARTITION) == str(CLAIM)
    assert driver.client_id(Partition(1, "demo", 8)) is None
    assert driver.next_batch() == CLAIM
    assert driver.claim.batch == CLAIM.batch + 1
