"""Credentials as the wire carries them (wire: SimpleClientAuthenticateHandler, SimpleCertificateMasterHandler)."""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass, field
from urllib.parse import quote_plus

from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.protocol.pb import MasterService_pb2 as master_pb


@dataclass(frozen=True)
class Credentials:
    user: str
    password: str = field(repr=False)


def signature(credentials: Credentials, timestamp_ms: int, nonce: int) -> str:
    """HMAC-SHA1 over user, timestamp and nonce written one after another, as form-encoded Base64."""
    text = f"{credentials.user}{timestamp_ms}{nonce}"
    digest = hmac.new(credentials.password.encode(), text.encode(), hashlib.sha1).digest()
    return quote_plus(base64.b64encode(digest))


def master_certificate(credentials: Credentials, timestamp_ms: int, nonce: int) -> master_pb.MasterCertificateInfo:
    """Fresh for every call: the master takes a timestamp of at most 20 s from its own clock."""
    return master_pb.MasterCertificateInfo(
        authInfo=master_pb.AuthenticateInfo(
            userName=credentials.user,
            timestamp=timestamp_ms,
            nonce=nonce,
            othParams="",
            signature=signature(credentials, timestamp_ms, nonce),
        )
    )


def broker_authorization(
    credentials: Credentials | None, visit_token: int, timestamp_ms: int, nonce: int
) -> broker_pb.AuthorizedInfo:
    """`visit_token` is the last one the master gave, -2 without any."""
    info = broker_pb.AuthorizedInfo(visitAuthorizedToken=visit_token)
    if credentials is not None:
        info.authAuthorizedToken = (
            f"{credentials.user} {timestamp_ms} {nonce} {signature(credentials, timestamp_ms, nonce)}"
        )
    return info
