# SPDX-License-Identifier: Apache-2.0
"""Disturbances of the network, and how long they last."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

from tests.network.proxied import Proxied
from tests.network.proxy import Proxy

FULL_TIMES = os.environ.get("TUBEMQ_FULL_TIMES") == "1"
"""Whether outages last as long as the documentation says, or are shorter: two minutes instead of five seconds."""


def seconds(short: float, full: float) -> float:
    return full if FULL_TIMES else short


@dataclass(frozen=True)
class Scenario:
    """A disturbance that lasts for `seconds`."""

    name: str
    disturb: Callable[[Proxied], None]
    seconds: float
    every: float | None = None  # seconds after which it is repeated

    def __str__(self) -> str:
        return self.name

    def run(self, proxied: Proxied) -> None:
        """Disturb the network, and calm it at the end."""
        waiting = threading.Event()  # nobody sets it: the network is disturbed for a time, whatever happens
        left = self.seconds
        while left > 0:
            self.disturb(proxied)
            step = left if self.every is None else min(self.every, left)
            waiting.wait(step)
            left -= step
        for proxy in proxied.all:
            _calm(proxy)


def _calm(proxy: Proxy) -> None:
    lost = proxy.up.swallows or proxy.down.swallows
    proxy.disturb(latency=0.0, jitter=0.0, rate=None, is_down=False, swallows=False)
    if lost:
        proxy.reset()


def _each(choose: Callable[[Proxied], list[Proxy]], **changes: object) -> Callable[[Proxied], None]:
    def disturb(proxied: Proxied) -> None:
        for proxy in choose(proxied):
            proxy.disturb(**changes)

    return disturb


def _everything(proxied: Proxied) -> list[Proxy]:
    return proxied.all


def _brokers(proxied: Proxied) -> list[Proxy]:
    return list(proxied.brokers.values())


def _first_broker(proxied: Proxied) -> list[Proxy]:
    return [proxied.brokers[1]]


def _masters(proxied: Proxied) -> list[Proxy]:
    return proxied.masters


def _reset(proxied: Proxied) -> None:
    for proxy in proxied.all:
        proxy.reset()


SCENARIOS = [
    Scenario("200 ms latency", _each(_everything, latency=0.1), seconds(8, 60)),  # in each direction
    Scenario("up to 300 ms jitter", _each(_everything, jitter=0.3), seconds(8, 60)),
    Scenario("100 KB/s", _each(_everything, rate=100_000.0), seconds(8, 60)),
    Scenario("resets every 2 s", _reset, seconds(10, 60), every=2.0),
    Scenario("half-open connections to brokers", _each(_brokers, swallows=True), seconds(6, 40)),
    Scenario("half-open connections to masters", _each(_masters, swallows=True), seconds(6, 40)),
    Scenario("no network to one broker", _each(_first_broker, is_down=True), seconds(5, 120)),
    Scenario("no network to all brokers", _each(_brokers, is_down=True), seconds(5, 120)),
    Scenario("no network to the masters", _each(_masters, is_down=True), seconds(5, 120)),
    Scenario("no network at all", _each(_everything, is_down=True), seconds(5, 120)),
]
