# SPDX-License-Identifier: Apache-2.0
"""A cluster whose masters and brokers are reached through proxies, as behind NAT or forwarded ports.

Brokers and masters need no settings, and talk to each other past the proxies.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.network.proxy import Network, Proxy
from tubemq_spark.protocol.metadata import Address, parse_addresses


class Proxied:
    """Proxies before the masters and the brokers of a cluster. With `options`, a client finds them."""

    def __init__(self, network: Network, master: str, brokers: Mapping[int, str]) -> None:
        self.brokers = {number: network.proxy(_address(text)) for number, text in brokers.items()}
        self.masters = [network.proxy(address) for address in parse_addresses(master)]

    @property
    def options(self) -> dict[str, str]:
        return {
            "tubemq.master": ",".join(str(proxy.address) for proxy in self.masters),
            "tubemq.brokers.addresses": ",".join(f"{one}={proxy.address}" for one, proxy in self.brokers.items()),
        }

    @property
    def all(self) -> list[Proxy]:
        return [*self.masters, *self.brokers.values()]

    def calm(self) -> None:
        for proxy in self.all:
            proxy.calm()


def _address(text: str) -> Address:
    (address,) = parse_addresses(text)
    return address
