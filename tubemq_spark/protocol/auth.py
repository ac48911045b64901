# SPDX-License-Identifier: Apache-2.0
"""Authentication: the signed credentials in requests to masters and brokers.

Wire: SimpleClientAuthenticateHandler, SimpleCertificateMasterHandler.
"""

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
    """Return the HMAC-SHA1 of user, timestamp and nonce, concatenated, as form-encoded Base64."""
    text = f"{credentials.user}{timestamp_ms}{nonce}"
    digest = hmac.new(credentials.password.encode(), text.encode(), hashlib.sha1).digest()
    return quote_plus(base64.b64encode(digest))


def master_certificate(credentials: Credentials, timestamp_ms: int, nonce: int) -> master_pb.MasterCertificateInfo:
    """Return the certificate for one request. Make one for each: the master refuses timestamps more than 20 s off."""
    signed = signature(credentials, timestamp_ms, nonce)
    info = master_pb.AuthenticateInfo(
        userName=credentials.user, timestamp=timestamp_ms, nonce=nonce, othParams="", signature=signed
    )
    return master_pb.MasterCertificateInfo(authInfo=info)


def broker_authorization(
    credentials: Credentials | None, visit_token: int, timestamp_ms: int, nonce: int
) -> broker_pb.AuthorizedInfo:
    """Return the authorization for one request. `visit_token` is the last one from the master, -2 if there is none."""
    info = broker_pb.AuthorizedInfo(visitAuthorizedToken=visit_token)
    if credentials is not None:
        info.authAuthorizedToken = (
            f"{credentials.user} {timestamp_ms} {nonce} {signature(credentials, timestamp_ms, nonce)}"
        )
    return info
