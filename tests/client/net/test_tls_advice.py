"""What users are told to do about each way in which TLS fails."""

from __future__ import annotations

import logging
import ssl
import subprocess
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.net.test_tls import TIMEOUT, TLS_1_2, TLS_1_3, trusting
from tests.interop.certificates import Authority, Certificate
from tests.peers import Peer, answering, echo
from tubemq_spark.client import forget_servers, tls
from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.net.connect import connect
from tubemq_spark.client.net.connection import Connection
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.client.tls import TlsSettings
from tubemq_spark.errors import ProtocolError, TransportError
from tubemq_spark.protocol.constants import Framing, Method, ServiceType
from tubemq_spark.testing import EmbeddedTubeMQ, TLSFiles

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    forget_servers()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "authority")


@pytest.fixture(scope="module")
def server(authority: Authority) -> Certificate:
    return authority.certify("server")


def certified(authority: Authority, folder: Path, *, since: str, until: str, usage: str = "serverAuth") -> Certificate:
    """A certificate of the authority that is valid between two times, for 127.0.0.1."""
    made = Certificate(folder / "cert.pem", folder / "key.pem")
    config, request = folder / "config", folder / "request"
    (folder / "index").touch()
    (folder / "serial").write_text("01\n")
    config.write_text(
        f"[ca]\ndefault_ca=us\n[us]\ndatabase={folder}/index\nserial={folder}/serial\nnew_certs_dir={folder}\n"
        "default_md=sha256\npolicy=any\nx509_extensions=own\n[any]\ncommonName=supplied\n"
        f"[own]\nsubjectAltName=IP:127.0.0.1\nextendedKeyUsage={usage}\n"
    )
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", *new_key, "-keyout", made.key, "-out", request, "-subj", "/CN=made")
    signing = ("-cert", authority.own.cert, "-keyfile", authority.own.key, "-startdate", since, "-enddate", until)
    openssl("ca", "-batch", "-notext", "-config", config, *signing, "-in", request, "-out", made.cert)
    return made


def openssl(*arguments: str | Path) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


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
        connection.reply(connection.submit_bytes(ServiceType.BROKER_READ, Method.GET_MESSAGE, b"hello", TIMEOUT))
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
def test_a_servers_certificate(
    authority: Authority, tmp_path: Path, since: str, until: str, usage: str, says: str
) -> None:
    own = certified(authority, tmp_path, since=since, until=until, usage=usage)
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
def test_nothing_in_common(authority: Authority, server: Certificate, change: Callable[[ssl.SSLContext], None]) -> None:
    with (
        serving(server, change) as peer,
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
def test_this_clients_certificate(
    authority: Authority, server: Certificate, tmp_path: Path, version: ssl.TLSVersion, kind: str
) -> None:
    if kind == "missing":
        own = None
        says = r"asks for this client's certificate, and there is none .*'tubemq\.tls\.cert' and 'tubemq\.tls\.key'"
    elif kind == "expired":
        own = certified(authority, tmp_path, since=LONG_AGO, until=JUST_NOW, usage="clientAuth")
        says = r"refuses this client's certificate .*expired.*renew the file of option 'tubemq\.tls\.cert'"
    else:
        own = Authority(tmp_path, "other").certify("stranger")
        says = (
            r"refuses this client's certificate .*have its operator trust the authority that signed the file of option"
        )
    with (
        serving(server, asking(authority, version)) as peer,
        pytest.raises(TransportError, match=says),
    ):
        call(peer, trusting(authority, own))


# Any host of the authority


def test_unverified_names_are_warned_of_once(
    authority: Authority, server: Certificate, caplog: pytest.LogCaptureFixture
) -> None:
    tls._warned.clear()
    with EmbeddedTubeMQ({"one": 1}, tls=TLSFiles(str(server.cert), str(server.key))) as tubemq:
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
    assert line.startswith("OPTION 'tubemq.tls.verifyHostname' IS FALSE: ")
