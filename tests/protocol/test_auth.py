# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from tubemq_spark.protocol.auth import Credentials, broker_authorization, master_certificate, signature
from tubemq_spark.protocol.constants import UNKNOWN_ID

CREDENTIALS = Credentials("spark", "gehéim")


@pytest.mark.parametrize(
    ("password", "timestamp", "nonce", "signed"),
    [
        # `openssl dgst -sha1 -hmac <password> -binary | base64` over spark<timestamp><nonce>, then form-encoded by hand
        ("secret", 1700000000000, 12345, "30L9RzmMH28ezjxE8avl3P6EJi4%3D"),
        ("gehéim", 1700000000000, 12345, "hdFhKHozmPyHbZpqbzH%2FSSmjlT8%3D"),
        ("gehéim", 1700000000000, 10, "7D%2Bd%2BfHLuw79QkAKlJjCTLA2EHQ%3D"),
        ("gehéim", 1700000000000, 9, "m%2FEh%2FBqnMIuh9K43mSBQq%2Fw32d4%3D"),
    ],
)
def test_signature(password: str, timestamp: int, nonce: int, signed: str) -> None:
    assert signature(Credentials("spark", password), timestamp, nonce) == signed


def test_the_masters_certificate_has_all_its_fields() -> None:
    certificate = master_certificate(CREDENTIALS, 1700000000000, 10)
    assert certificate.IsInitialized()
    assert not certificate.HasField("authorizedToken")
    info = certificate.authInfo
    assert (info.userName, info.timestamp, info.nonce, info.othParams) == ("spark", 1700000000000, 10, "")
    assert info.HasField("othParams")
    assert info.signature == "7D%2Bd%2BfHLuw79QkAKlJjCTLA2EHQ%3D"


def test_the_brokers_token_is_the_four_values() -> None:
    info = broker_authorization(CREDENTIALS, 77, 1700000000000, 10)
    assert info.visitAuthorizedToken == 77
    assert info.authAuthorizedToken == "spark 1700000000000 10 7D%2Bd%2BfHLuw79QkAKlJjCTLA2EHQ%3D"


def test_without_credentials_there_is_only_the_visit_token() -> None:
    info = broker_authorization(None, UNKNOWN_ID, 1700000000000, 10)
    assert info.IsInitialized()
    assert info.visitAuthorizedToken == -2
    assert not info.HasField("authAuthorizedToken")


def test_the_password_is_not_shown() -> None:
    assert repr(CREDENTIALS) == "Credentials(user='spark')"
    assert "gehéim" not in str(CREDENTIALS)
