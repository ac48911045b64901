# SPDX-License-Identifier: Apache-2.0
"""Checks `connection`, `tls`, `framing`: can this process reach a server, trust it, and speak with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain

from tubemq_spark.checks.result import CheckResult, failed, ok, split_advice
from tubemq_spark.client.net.connection import FRAMINGS, connect
from tubemq_spark.client.net.open_socket import open_socket
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import ProtocolError, TransportError
from tubemq_spark.protocol.metadata import Address

MAX_TIMEOUT = 5.0  # seconds for a step with one server: a check must end soon
_MAX_AT_ONCE = 16
_NETWORK = (
    "open the port from this machine in firewalls, security groups and network policies; check that {} is its address "
    "as seen from here"
)
_PORT_OF = {
    "master": " in option 'tubemq.master'",
    "broker": ", which the master lists from the broker's configuration",
}
_ELSEWHERE = "; if this broker has another address here, name it in option 'tubemq.brokers.addresses'"


@dataclass(frozen=True)
class Server:
    """A master or a broker, and its name in results."""

    address: Address
    role: str

    @property
    def subject(self) -> str:
        return f"{self.role} at {self.address}"


def check_servers(settings: ClientSettings, servers: Iterable[Server]) -> list[CheckResult]:
    """Return the results of all servers, in their order; they are asked at the same time."""
    with ThreadPoolExecutor(_MAX_AT_ONCE, thread_name_prefix="tubemq-check") as pool:
        return list(chain.from_iterable(pool.map(lambda server: list(check_server(settings, server)), servers)))


def check_server(settings: ClientSettings, server: Server) -> Iterator[CheckResult]:
    """Yield the results of one server; the first failure is the last one."""
    seconds = min(MAX_TIMEOUT, settings.rpc_timeout)
    timings = replace(settings.timings, tls_handshake_timeout=min(seconds, settings.timings.tls_handshake_timeout))
    try:
        open_socket(server.address, seconds, None, timings).close()
    except TransportError as error:
        yield _unreachable(server, error)
        return
    yield ok("connection", server.subject, "TCP connects")
    if settings.tls is not None:
        try:
            open_socket(server.address, seconds, settings.tls, timings).close()
        except (TransportError, ProtocolError) as error:
            yield failed("tls", server.subject, *split_advice(error, "check the files of options 'tubemq.tls.…'"))
            return
        yield ok("tls", server.subject, "the server's certificate is trusted")
    yield _framing(replace(settings, timings=timings), server, seconds)


def _unreachable(server: Server, error: TransportError) -> CheckResult:
    text = str(error)
    host, port = server.address
    kind = server.role.split()[0]
    remedy = _NETWORK.format(host)
    if "refused" in text:
        remedy = f"start the {kind}, or correct the port ({port})" + _PORT_OF[kind]
    elif not any(words in text for words in ("timed out", "unreachable", "No route")):
        remedy = f"check that the name {host} can be resolved on this machine; {remedy}"
    return failed("connection", server.subject, text, remedy + ("" if kind == "master" else _ELSEWHERE))


def _framing(settings: ClientSettings, server: Server, seconds: float) -> CheckResult:
    """Find out the framing again, whatever this process knows and the options say."""
    address = server.address
    FRAMINGS().pop(address, None)
    try:
        connection = connect(address, None, seconds, settings.tls, settings.timings, settings.clock)
    except (TransportError, ProtocolError) as error:
        problem, remedy = split_advice(error, "")
        if settings.tls is None and "tubemq.tls.enabled" not in remedy:
            remedy = (
                f"check that {address.port} is the port of a TubeMQ master or broker; if it is a TLS port, set option "
                "'tubemq.tls.enabled' to true"
            )
        return failed("framing", server.subject, problem, remedy or f"check the port {address.port}")
    found = connection.framing
    connection.close()
    if settings.framing is not None and settings.framing is not found:
        FRAMINGS().pop(address, None)
        return failed(
            "framing",
            server.subject,
            f"the server speaks the {found.value} framing, but option 'tubemq.rpc.framing' is {settings.framing.value}",
            f"set option 'tubemq.rpc.framing' to {found.value}, or leave it out",
        )
    return ok("framing", server.subject, f"it answers in the {found.value} framing")
