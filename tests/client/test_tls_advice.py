# SPDX-License-Identifier: Apache-2.0
"""What each TLS error tells users to do."""

from __future__ import annotations

import logging
import ssl
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import Authority, Certificate, tls_files, trusting
from tests.client.test_tls import TIMEOUT, TLS_1_2, TLS_1_3
from tests.peers import Peer, answering, echo
from tubemq_spark.client import forget_servers, tls
from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.net.connection import Connection, connect
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.client.tls import TlsSettings
from tubemq_spark.errors import ProtocolError, TransportError
from tubemq_spark.protocol.constants import Framing
from tubemq_spark.testing import EmbeddedTubeMQ

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    forget_servers()


LONG_AGO, JUST_NOW, SOON, FAR = "20000101000000Z", "20010101000000Z", "20900101000000Z", "20910101000000Z"


def serving(own: Certificate, change: Callable[[ssl.SSLContext], None] = lambda context: None) -> Peer:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.cert, own.key)
    change(context)

    def serve(connection: Any) -> None:
        with context.wrap_socket(connection.dup(), server_side=True) as secure:
            answering(echo)(secure)

    return Peer(serve)


def call(peer: Peer, settings: TlsSettings) -> None:
    connection: Connection = connect(peer.address, Framing.STANDARD, TIMEOUT, settings)
    try:
        connection.ping(TIMEOUT)
    finally:
        connection.close()


# The server's certificate


@pytest.mark.parametrize(
    ("since", "until", "usage", "says"),
    [
        (LONG_AGO, JUST_NOW, "serverAuth", r"certificate has expired; have the server's operator renew it, .* clock$"),
        (SOON, FAR, "serverAuth", r"certificate is not yet valid; check this machine's clock, or .* valid now$"),
        (LONG_AGO, FAR, "clientAuth", r"have the server's operator install a certificate that is for servers$"),
    ],
    ids=["expired", "not yet valid", "of a client"],
)
def test_errors_about_a_servers_certificate_say_what_to_do(
    authority: Authority, tmp_path: Path, since: str, until: str, usage: str, says: str
) -> None:
    own = authority.certify_between("server between", since, until, usage)
    with (
        serving(own) as peer,
        pytest.raises(ProtocolError, match=rf"of {peer.address} is not trusted: .*{says}") as told,
    ):
        call(peer, trusting(authority))
    assert "tubemq.tls.ca" not in str(told.value)


# Versions and ciphers


def old(context: ssl.SSLContext) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.set_ciphers("DEFAULT:@SECLEVEL=0")
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1


def strange(context: ssl.SSLContext) -> None:
    context.maximum_version = TLS_1_2
    context.set_ciphers("AES128-GCM-SHA256")  # which needs a certificate of another kind


@pytest.mark.parametrize("change", [old, strange])
def test_no_common_version_or_cipher_is_said(
    authority: Authority, server_cert: Certificate, change: Callable[[ssl.SSLContext], None]
) -> None:
    with (
        serving(server_cert, change) as peer,
        pytest.raises(
            ProtocolError, match=r"have no version or cipher of TLS in common .*enable TLS 1\.2 or 1\.3"
        ) as told,
    ):
        call(peer, trusting(authority))
    assert "certificate" not in str(told.value)
    assert "plain port" not in str(told.value)


# This client's certificate


def asking(authority: Authority, version: ssl.TLSVersion) -> Callable[[ssl.SSLContext], None]:
    def change(context: ssl.SSLContext) -> None:
        context.minimum_version = context.maximum_version = version
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority.own.cert)

    return change


@pytest.mark.parametrize("version", [TLS_1_2, TLS_1_3])
@pytest.mark.parametrize("kind", ["missing", "of a stranger", "expired"])
def test_errors_about_this_clients_certificate_say_what_to_do(
    authority: Authority, server_cert: Certificate, tmp_path: Path, version: ssl.TLSVersion, kind: str
) -> None:
    if kind == "missing":
        own = None
        says = r"asks for this client's certificate, and there is none .*'tubemq\.tls\.cert' and 'tubemq\.tls\.key'"
    elif kind == "expired":
        own = authority.certify_between("expired client", LONG_AGO, JUST_NOW, "clientAuth")
        says = r"refuses this client's certificate .*expired.*renew the file of option 'tubemq\.tls\.cert'"
    else:
        own = Authority(tmp_path, "other").certify("stranger")
        says = (
            r"refuses this client's certificate .*have its operator trust the authority that signed the file of option"
        )
    with (
        serving(server_cert, asking(authority, version)) as peer,
        pytest.raises(TransportError, match=says),
    ):
        call(peer, trusting(authority, own))


# Any host of the authority


def test_the_warning_about_unverified_names_comes_once(
    authority: Authority, server_cert: Certificate, caplog: pytest.LogCaptureFixture
) -> None:
    tls._warned().clear()
    with EmbeddedTubeMQ({"one": 1}, tls=tls_files(server_cert)) as tubemq:
        for verify in (True, False, False):
            settings = ClientSettings.from_options(
                {
                    "tubemq.master": tubemq.tls_master,
                    "tubemq.tls.enabled": "true",
                    "tubemq.tls.ca": str(authority.own.cert),
                    **({} if verify else {"tubemq.tls.verifyHostname": "false"}),
                }
            )
            consumer = ConsumerSession(settings, "g", ["one"])
            consumer.register()
            consumer.close()
            assert [record.levelno for record in caplog.records if "verifyHostname" in record.message] == (
                [] if verify else [logging.WARNING]
            )
    (line,) = (record.message for record in caplog.records if "verifyHostname" in record.message)
    assert line.startswith("[hostname-unverified] OPTION 'tubemq.tls.verifyHostname' IS FALSE: ")
