"""Certificates made with openssl for one test run, and the key stores that Java wants of them."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.interop.java_client import JavaStores
from tests.real import jars

_PASSWORD = "changeit"  # Java wants six characters at least
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Certificate:
    """PEM files. Those of an authority certify others."""

    cert: Path
    key: Path


class Authority:
    """Certifies itself and others, in files of `folder`; skips the test without openssl."""

    def __init__(self, folder: Path, name: str) -> None:
        if shutil.which("openssl") is None and os.environ.get("CI") != "true":
            pytest.skip("openssl, which makes the certificates, is not installed")
        self._folder = folder
        self.own = self._files(name)
        self._openssl("req", "-x509", *_NEW_KEY, "-keyout", self.own.key, "-out", self.own.cert, "-subj", f"/CN={name}")

    def certify(self, name: str) -> Certificate:
        """Of a server on 127.0.0.1, or of a client."""
        made = self._files(name)
        request, extensions = self._folder / f"{name}.csr", self._folder / f"{name}.ext"
        extensions.write_text("subjectAltName=IP:127.0.0.1\n")
        self._openssl("req", *_NEW_KEY, "-keyout", made.key, "-out", request, "-subj", f"/CN={name}")
        signing = ("-CA", self.own.cert, "-CAkey", self.own.key, "-CAcreateserial", "-extfile", extensions)
        self._openssl("x509", "-req", "-in", request, "-out", made.cert, *signing)
        return made

    def java_stores(self, client: Certificate) -> JavaStores:
        """Who trusts this authority, and shows `client`."""
        trusted, own = self._folder / "trusted.jks", self._folder / f"{client.cert.stem}.p12"
        self._openssl(
            "pkcs12", "-export", "-in", client.cert, "-inkey", client.key, "-out", own, "-passout", f"pass:{_PASSWORD}"
        )
        keytool = Path(jars.tool("java")).resolve().with_name("keytool")
        importing = ("-importcert", "-noprompt", "-alias", "authority", "-file", self.own.cert)
        _run(keytool, *importing, "-keystore", trusted, "-storepass", _PASSWORD, "-storetype", "JKS")
        return JavaStores(trusted, own, _PASSWORD)

    def _files(self, name: str) -> Certificate:
        return Certificate(self._folder / f"{name}.pem", self._folder / f"{name}.key")

    def _openssl(self, *arguments: str | Path) -> None:
        _run("openssl", *arguments)


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{command} said {done.stderr}"
