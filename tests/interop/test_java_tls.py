"""The official Java client over TLS. It can speak two-way TLS only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.certificates import Authority
from tests.interop.conftest import RELEASES
from tests.interop.java_client import JavaClient, JavaClientError, Outgoing
from tubemq_spark.testing import EmbeddedTubeMQ, TLSFiles


@pytest.mark.parametrize("release", RELEASES)
def test_java_sends_and_pulls_over_two_way_tls(
    java_at: Callable[..., JavaClient], tmp_path: Path, release: str
) -> None:
    authority = Authority(tmp_path, "authority")
    server, client = authority.certify("server"), authority.certify("client")
    tls = TLSFiles(str(server.cert), str(server.key), client_ca=str(authority.own.cert))
    with EmbeddedTubeMQ({"demo": 3}, release=release, tls=tls) as tubemq:
        java = java_at(tubemq.tls_master, RELEASES[release], authority.java_stores(client))
        bodies = [f"message {n}".encode() * 1000 for n in range(60)]

        java.produce("demo", [Outgoing(body) for body in bodies])
        received = java.consume("demo", "readers", count=len(bodies))

        assert sorted(message.body for message in received) == sorted(bodies)


def test_java_without_a_certificate_that_the_server_knows_gets_nowhere(
    java_at: Callable[..., JavaClient], tmp_path: Path
) -> None:
    authority = Authority(tmp_path, "authority")
    (tmp_path / "other").mkdir()
    server, stranger = authority.certify("server"), Authority(tmp_path / "other", "other").certify("stranger")
    tls = TLSFiles(str(server.cert), str(server.key), client_ca=str(authority.own.cert))
    with EmbeddedTubeMQ({"demo": 1}, tls=tls) as tubemq:
        java = java_at(tubemq.tls_master, "standard", authority.java_stores(stranger))
        with pytest.raises(JavaClientError):
            java.produce("demo", [Outgoing(b"message")])
        assert tubemq.messages("demo") == []
