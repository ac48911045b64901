# SPDX-License-Identifier: Apache-2.0
"""The official Java client over TLS. It supports two-way TLS only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.certificates import Authority, Certificate, tls_files
from tests.interop.conftest import RELEASES
from tests.interop.java_client import JavaClient, JavaClientError, Outgoing
from tubemq_spark.testing import EmbeddedTubeMQ


@pytest.mark.parametrize("release", ["2.5", pytest.param("1.2", marks=pytest.mark.thorough)])
def test_java_sends_and_pulls_over_two_way_tls(
    java_at: Callable[..., JavaClient],
    authority: Authority,
    server_cert: Certificate,
    client_cert: Certificate,
    tmp_path: Path,
    release: str,
) -> None:
    with EmbeddedTubeMQ({"demo": 3}, release=release, tls=tls_files(server_cert, authority)) as tubemq:
        java = java_at(tubemq.tls_master, RELEASES[release], authority.java_stores(client_cert, tmp_path))
        bodies = [f"message {n}".encode() * 1000 for n in range(60)]

        java.produce("demo", [Outgoing(body) for body in bodies])
        received = java.consume("demo", "readers", count=len(bodies))

        assert sorted(message.body for message in received) == sorted(bodies)


@pytest.mark.thorough
def test_the_server_refuses_a_java_client_with_an_untrusted_certificate(
    java_at: Callable[..., JavaClient],
    authority: Authority,
    other_authority: Authority,
    server_cert: Certificate,
    tmp_path: Path,
) -> None:
    with EmbeddedTubeMQ({"demo": 1}, tls=tls_files(server_cert, authority)) as tubemq:
        stranger = authority.java_stores(other_authority.certify("stranger"), tmp_path)
        java = java_at(tubemq.tls_master, "standard", stranger)
        with pytest.raises(JavaClientError):
            java.produce("demo", [Outgoing(b"message")])
        assert tubemq.messages("demo") == []
