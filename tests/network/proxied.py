# SPDX-License-Identifier: Apache-2.0
"""A cluster whose masters and brokers are reached through proxies.

A master tells clients the addresses of the brokers. The proxy before a master replaces them by those of the proxies
before the brokers. So brokers and masters need no settings, and talk to each other past the proxies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from google.protobuf.message import Message

from tests.network.proxy import Edit, Network, Proxy, Reply
from tubemq_spark.protocol.constants import Framing, Method
from tubemq_spark.protocol.envelope import Response, encode_reply
from tubemq_spark.protocol.frame import encode_frame
from tubemq_spark.protocol.metadata import Address, parse_master_addresses
from tubemq_spark.protocol.pb import MasterService_pb2 as pb

_LISTS: dict[
    Method, tuple[type[Message], str]
] = {  # the replies of a master that list brokers, and the field that does
    Method.PRODUCER_REGISTER: (pb.RegisterResponseM2P, "brokerInfos"),
    Method.PRODUCER_HEARTBEAT: (pb.HeartResponseM2P, "brokerInfos"),
    Method.CONSUMER_REGISTER_V2: (pb.RegisterResponseM2CV2, "brokerConfigList"),
    Method.CONSUMER_HEARTBEAT_V2: (pb.HeartResponseM2CV2, "brokerConfigList"),
    Method.GET_PARTITION_META: (pb.GetPartMetaResponseM2C, "brokerConfigList"),
}


class Proxied:
    """Proxies before the masters and the brokers of a cluster. `master` is the value of option `tubemq.master`."""

    def __init__(self, network: Network, master: str, brokers: Mapping[int, str]) -> None:
        self.brokers = {number: network.proxy(_address(text)) for number, text in brokers.items()}
        self.masters = [network.proxy(address) for address in parse_master_addresses(master)]
        self.calm()

    @property
    def master(self) -> str:
        return ",".join(str(proxy.address) for proxy in self.masters)

    @property
    def all(self) -> list[Proxy]:
        return [*self.masters, *self.brokers.values()]

    def calm(self) -> None:
        for proxy in self.all:
            proxy.calm()
        for proxy in self.masters:
            proxy.edit = self.announcing()

    def announcing(self, more: Callable[[int, Reply], Iterable[bytes] | None] = lambda serial_no, reply: None) -> Edit:
        """Return an edit of a master's replies that names the proxies of the brokers. `more` may replace the reply."""
        moved = {str(proxy.target): str(proxy.address) for proxy in self.brokers.values()}

        def edit(serial_no: int, reply: Reply) -> Iterable[bytes] | None:
            if not isinstance(reply, Response) or reply.method not in _LISTS:
                return more(serial_no, reply)
            kind, name = _LISTS[Method(reply.method)]
            message = kind.FromString(reply.data)
            listed = getattr(message, name)
            listed[:] = [_moved(text, moved) for text in listed]
            changed = Response(reply.method, message.SerializeToString())
            return more(serial_no, changed) or [encode_frame(serial_no, encode_reply(changed), Framing.STANDARD)]

        return edit


def _address(text: str) -> Address:
    (address,) = parse_master_addresses(text)
    return address


def _moved(text: str, moved: Mapping[str, str]) -> str:
    number, _, address = text.partition(":")
    return f"{number}:{moved.get(address.strip(), address)}"
