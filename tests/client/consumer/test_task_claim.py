"""Tests of the claim of a task: when it asks for the new address of its broker."""

from __future__ import annotations

from tests.clocks import ManualClock
from tubemq_spark.client.consumer.task_claim import BrokerLocator
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.protocol.metadata import Address, Broker, Partition

OLD, NEW = Broker(1, Address("old", 8123)), Broker(1, Address("new", 8123))


def test_a_short_outage_asks_for_no_address_and_a_longer_one_does() -> None:
    clock, asked = ManualClock(), []

    def find(broker: Broker) -> Broker:
        asked.append(broker)
        return NEW

    locator = BrokerLocator(ClientSettings((), clock=clock), Partition(1, "demo", 0), OLD, find)
    for pause in (2.0, 0.9):
        locator.on_failed()
        clock.advance(pause)
    locator.on_connected()
    locator.on_failed()
    clock.advance(2.9)
    locator.on_failed()
    assert asked == []
    clock.advance(0.1)
    locator.on_failed()
    assert asked == [OLD]
    assert locator.where == f"1:demo:0 at {NEW}"
