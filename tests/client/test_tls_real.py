# SPDX-License-Identifier: Apache-2.0
"""TLS with real servers. With one-way TLS they end at the first connection, so they get a corrected class for it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.certificates import Authority, Certificate, trusting
from tests.clusters.servers import needs_tools
from tests.interop.java_client import JavaStores
from tests.real import jars
from tests.real.cluster import RealTubeMQ
from tests.real.jars import Framing
from tests.real.topics import TopicSpec
from tests.without_spark.query import Query, write
from tubemq_spark.client import forget_servers
from tubemq_spark.client.net.connection import connect
from tubemq_spark.client.timings import Timings
from tubemq_spark.client.tls import TlsSettings
from tubemq_spark.errors import ProtocolError, TransportError
from tubemq_spark.protocol.metadata import Address

pytestmark = [pytest.mark.real, pytest.mark.thorough, pytest.mark.timeout(300)]

TIMEOUT = 20.0  # seconds
FRAMING: Framing = "standard" if os.environ.get("TUBEMQ_SERVER_JARS") else "prefixed"  # as it is published


class TlsTubeMQ(RealTubeMQ):
    """One master and one broker with a TLS port each. They trust what the key stores `stores` trust."""

    def __init__(self, stores: JavaStores, *, is_two_way: bool) -> None:
        super().__init__(topics={"pair": TopicSpec(partitions=2)}, framing=FRAMING)
        self._is_two_way = is_two_way
        if not is_two_way:
            corrected, _, _ = jars.compile_java(Path(__file__).with_name("TSSLEngineUtil.java")).partition(os.pathsep)
            self._class_path = os.pathsep.join([corrected, self._class_path])
        self.tls_ports = {"master": self._ports.free(), "broker-1": self._ports.free()}
        self._stores = stores

    def admin(self, **params: object) -> dict[str, object]:
        if params["method"] == "admin_add_broker_configure":
            params["brokerTLSPort"] = self.tls_ports["broker-1"]
        return super().admin(**params)

    def _java_start(self, name: str, heap: str, main_class: str, *arguments: str) -> None:
        if name in self.tls_ports:
            section = {
                "tlsEnable": "true",
                "tlsPort": self.tls_ports[name],
                "tlsKeyStorePath": self._stores.own,
                "tlsKeyStorePassword": self._stores.password,
                "tlsTwoWayAuthEnable": str(self._is_two_way).lower(),
            }
            if self._is_two_way:
                section |= {
                    "tlsTrustStorePath": self._stores.trusted,
                    "tlsTrustStorePassword": self._stores.password,
                }
            with (self._folder / arguments[-1]).open("a") as file:
                file.write("\n".join(["", "[tlsSetting]", *(f"{key}={value}" for key, value in section.items())]))
        super()._java_start(name, heap, main_class, *arguments)


@contextmanager
def running(authority: Authority, server: Certificate, folder: Path, *, is_two_way: bool) -> Iterator[TlsTubeMQ]:
    with needs_tools():
        cluster = TlsTubeMQ(authority.java_stores(server, folder), is_two_way=is_two_way)
    with cluster:
        yield cluster
        forget_servers()


@pytest.fixture(scope="module")
def tubemq(
    authority: Authority, server_cert: Certificate, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TlsTubeMQ]:
    with running(authority, server_cert, tmp_path_factory.mktemp("java"), is_two_way=True) as cluster:
        yield cluster


@pytest.fixture
def tls(authority: Authority, client_cert: Certificate) -> TlsSettings:
    return trusting(authority, client_cert)


def assert_rows_are_written_and_read(tubemq: TlsTubeMQ, tls: TlsSettings) -> None:
    rows = [b"row %d" % number for number in range(2000)] + [bytes([number]) * 900_000 for number in range(20)]
    master = Address("127.0.0.1", tubemq.tls_ports["master"])
    client = {"masters": (master,), "tls": tls, "rpc_timeout": TIMEOUT, "retry_for": TIMEOUT, "framing": None}
    assert write(tubemq, rows, **client) == len(rows)  # type: ignore[arg-type]  # only its address is asked for
    query = Query(tubemq, "pair", **client)  # type: ignore[arg-type]
    query.run()
    assert Counter(row.body for given in query.rows.values() for row in given) == Counter(rows)


def test_rows_are_written_and_read_over_tls(tubemq: TlsTubeMQ, tls: TlsSettings) -> None:
    assert_rows_are_written_and_read(tubemq, tls)


def test_rows_are_written_and_read_over_one_way_tls(
    authority: Authority, server_cert: Certificate, client_cert: Certificate, tmp_path: Path
) -> None:
    with running(authority, server_cert, tmp_path, is_two_way=False) as tubemq:
        assert_rows_are_written_and_read(tubemq, trusting(authority))


@pytest.mark.parametrize("server", ["master", "broker-1"])
def test_wrong_tls_settings_are_explained(tubemq: TlsTubeMQ, tls: TlsSettings, server: str) -> None:
    forget_servers()
    secure = Address("127.0.0.1", tubemq.tls_ports[server])
    with pytest.raises(TransportError, match=r"'tubemq\.tls\.cert' and 'tubemq\.tls\.key'"):
        connect(secure, None, TIMEOUT, TlsSettings(ca=tls.ca))
    with pytest.raises(ProtocolError, match=r"is not trusted: .*'tubemq\.tls\.ca'"):
        connect(secure, None, TIMEOUT, TlsSettings(cert=tls.cert, key=tls.key))
    with pytest.raises(TransportError, match=r"if the port uses TLS, set option 'tubemq\.tls\.enabled'"):
        connect(secure, None, TIMEOUT)
    host, _, port = (tubemq.master if server == "master" else tubemq.broker_address(1)).partition(":")
    with pytest.raises(TransportError, match=r"no answer to the TLS handshake .* Check that it is the TLS port"):
        connect(Address(host, int(port)), None, TIMEOUT, tls, Timings(tls_handshake_timeout=1.0))
