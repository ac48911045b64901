# SPDX-License-Identifier: Apache-2.0
"""The options that source and sink share."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tests.certificates import Authority, Certificate
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.client.tls import TlsSettings
from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.metadata import Address

MASTER = {"tubemq.master": "m"}
ON = {**MASTER, "tubemq.tls.enabled": "true"}
SECRET = "open sesame"


def refusal(raw: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as raised:
        ClientSettings.from_options(raw)
    return str(raised.value)


def test_every_option_of_tls(authority: Authority, client_cert: Certificate) -> None:
    ca, cert, key = str(authority.own.cert), str(client_cert.cert), str(client_cert.key)
    raw = {
        **ON,
        "tubemq.tls.ca": ca,
        "tubemq.tls.cert": cert,
        "tubemq.tls.key": key,
        "tubemq.tls.keyPassword": SECRET,  # which an open key does not need
        "tubemq.tls.verifyHostname": "false",
    }
    settings = ClientSettings.from_options({name.lower(): text for name, text in raw.items()})  # as Spark gives them
    assert settings.tls == TlsSettings(ca, cert, key, SECRET, verify_hostname=False)
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert SECRET not in repr(settings)
    assert hash(settings) == hash(pickle.loads(pickle.dumps(settings)))


@pytest.mark.parametrize(
    ("masters", "plain", "over_tls"),
    [
        ("a", [8715], [8716]),
        ("a:9000", [9000], [9000]),
        ("a:8715", [8715], [8715]),
        (" a , b:9 ,c", [8715, 9, 8715], [8716, 9, 8716]),
    ],
)
def test_default_port_of_a_master(masters: str, plain: list[int], over_tls: list[int]) -> None:
    hosts = [part.strip().partition(":")[0] for part in masters.split(",")]
    for raw, ports in ((MASTER, plain), (ON, over_tls)):
        found = ClientSettings.from_options({**raw, "tubemq.master": masters}).masters
        assert found == tuple(Address(host, port) for host, port in zip(hosts, ports, strict=True))


def test_default_port_of_a_broker() -> None:
    assert ClientSettings.from_options(MASTER).default_broker_port == 8123
    assert ClientSettings.from_options(ON).default_broker_port == 8124


@pytest.mark.parametrize("raw", [MASTER, ON], ids=["plain", "TLS"])
def test_missing_masters_are_an_error(raw: dict[str, str]) -> None:
    assert refusal({**raw, "tubemq.master": "a b"}).startswith("option 'tubemq.master' is 'a b'; expected host:port")


@pytest.mark.parametrize("enabled", [{}, {"tubemq.tls.enabled": "false"}], ids=["not given", "false"])
@pytest.mark.parametrize("name", ["ca", "cert", "key", "keyPassword", "verifyHostname"])
def test_tls_options_need_tls_enabled(name: str, enabled: dict[str, str]) -> None:
    assert refusal({**MASTER, **enabled, f"tubemq.tls.{name}": "true"}) == (
        f"option 'tubemq.tls.{name}' needs TLS: set option 'tubemq.tls.enabled' to true, or remove it"
    )


@pytest.mark.parametrize(
    ("given", "missing"), [("cert", "key"), ("key", "cert"), ("keyPassword", "key")], ids=lambda name: name
)
def test_tls_options_that_need_another_option(given: str, missing: str) -> None:
    problem = refusal({**ON, f"tubemq.tls.{given}": SECRET})
    assert problem.startswith(f"option 'tubemq.tls.{given}' needs 'tubemq.tls.{missing}' beside it: ")
    assert SECRET not in problem


@pytest.mark.parametrize("name", ["ca", "cert", "key"])
@pytest.mark.parametrize("kind", ["missing", "a folder", "no name of a file"])
def test_a_file_that_cannot_be_read_is_an_error(
    authority: Authority, client_cert: Certificate, tmp_path: Path, name: str, kind: str
) -> None:
    path, reason = {
        "missing": (tmp_path / "none.pem", "No such file or directory"),
        "a folder": (tmp_path, "Is a directory"),
        "no name of a file": ("x\0y", "embedded null byte"),
    }[kind]
    raw = {
        **ON,
        "tubemq.tls.ca": authority.own.cert,
        "tubemq.tls.cert": client_cert.cert,
        "tubemq.tls.key": client_cert.key,
    }
    problem = refusal({option: str(text) for option, text in {**raw, f"tubemq.tls.{name}": path}.items()})
    shown = str(path).replace("\0", r"\x00")
    assert problem == f"option 'tubemq.tls.{name}': cannot read {shown} ({reason})"


def test_a_file_that_is_no_pem_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("no certificate")
    assert refusal({**ON, "tubemq.tls.ca": str(file)}).startswith(
        f"option 'tubemq.tls.ca': no PEM certificate in {file}"
    )
