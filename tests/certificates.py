# SPDX-License-Identifier: Apache-2.0
"""Certificates, made with openssl for one test run: for servers, clients, and Java's key stores.

The fixtures `authority`, `server_cert`, `client_cert` and `other_authority` are in tests/conftest.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.interop.java_client import JavaStores
from tests.real import jars
from tubemq_spark.client.tls import TlsSettings
from tubemq_spark.testing import TLSFiles

_PASSWORD = "changeit"  # Java wants six characters at least
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Certificate:
    """PEM files. Those of an authority certify others."""

    cert: Path
    key: Path


class Authority:
    """Certifies itself and others, in files of `folder`. Without openssl the test is skipped."""

    def __init__(self, folder: Path, name: str) -> None:
        if shutil.which("openssl") is None and os.environ.get("CI") != "true":
            pytest.skip("openssl, which makes the certificates, is not installed")
        self._folder = folder
        self.own = self._files(name)
        openssl("req", "-x509", *_NEW_KEY, "-keyout", self.own.key, "-out", self.own.cert, "-subj", f"/CN={name}")

    def certify(self, name: str, host: str = "IP:127.0.0.1") -> Certificate:
        """Return the certificate of a server on `host`, or of a client."""
        made, request = self._request(name)
        extensions = self._folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={host}\n")
        signing = ("-CA", self.own.cert, "-CAkey", self.own.key, "-CAcreateserial", "-extfile", extensions)
        openssl("x509", "-req", "-in", request, "-out", made.cert, *signing)
        return made

    def certify_between(self, name: str, since: str, until: str, usage: str = "serverAuth") -> Certificate:
        """Return a certificate for 127.0.0.1 that is valid between two times, such as `20200101000000Z`."""
        made, request = self._request(name)
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        database, config = folder / "index", folder / "config"
        database.touch()
        config.write_text(
            f"[ca]\ndefault_ca=d\n[d]\ndatabase={database}\nnew_certs_dir={folder}\nrand_serial=yes\n"
            "default_md=sha256\npolicy=p\nx509_extensions=x\n[p]\ncommonName=supplied\n"
            f"[x]\nsubjectAltName=IP:127.0.0.1\nextendedKeyUsage={usage}\n"
        )
        signing = ("-cert", self.own.cert, "-keyfile", self.own.key, "-startdate", since, "-enddate", until)
        openssl("ca", "-batch", "-notext", "-config", config, *signing, "-in", request, "-out", made.cert)
        return made

    def java_stores(self, client: Certificate, folder: Path) -> JavaStores:
        """Return the key stores of a client that trusts this authority and shows `client`."""
        trusted, own = folder / "trusted.jks", folder / f"{client.cert.stem}.p12"
        openssl(
            "pkcs12", "-export", "-in", client.cert, "-inkey", client.key, "-out", own, "-passout", f"pass:{_PASSWORD}"
        )
        keytool = Path(jars.tool("java")).resolve().with_name("keytool")
        importing = ("-importcert", "-noprompt", "-alias", "authority", "-file", self.own.cert)
        _run(keytool, *importing, "-keystore", trusted, "-storepass", _PASSWORD, "-storetype", "JKS")
        return JavaStores(trusted, own, _PASSWORD)

    def _request(self, name: str) -> tuple[Certificate, Path]:
        made, request = self._files(name), self._folder / f"{name}.csr"
        openssl("req", *_NEW_KEY, "-keyout", made.key, "-out", request, "-subj", f"/CN={name}")
        return made, request

    def _files(self, name: str) -> Certificate:
        return Certificate(self._folder / f"{name}.pem", self._folder / f"{name}.key")


def tls_files(server: Certificate, client_authority: Authority | None = None) -> TLSFiles:
    """Return the files of a server. With `client_authority` it asks clients for a certificate of that authority."""
    client_ca = None if client_authority is None else str(client_authority.own.cert)
    return TLSFiles(str(server.cert), str(server.key), client_ca=client_ca)


def trusting(authority: Authority, own: Certificate | None = None, **others: Any) -> TlsSettings:
    """Return the settings of a client that trusts `authority`, and shows `own`."""
    tls = TlsSettings(ca=str(authority.own.cert))
    if own is not None:
        tls = replace(tls, cert=str(own.cert), key=str(own.key))
    return replace(tls, **others)


def openssl(*arguments: str | Path) -> None:
    _run("openssl", *arguments)


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{command} said {done.stderr}"
