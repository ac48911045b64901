"""Advice for TLS errors: what the user can do, derived from OpenSSL's reason.

A server that refuses a client sends an alert, which has a number and no text. The moment of the alert tells more than
its number: before the server has chosen a cipher, it knows only the versions and ciphers of the client.
"""

from __future__ import annotations

from collections.abc import Mapping

# OpenSSL's X509_V_ERR_… (include/openssl/x509_vfy.h).
_NOT_YET_VALID, _EXPIRED, _INVALID_PURPOSE, _HOSTNAME_MISMATCH, _IP_ADDRESS_MISMATCH = 9, 10, 26, 62, 64
_WEAK = (66, 67, 68)  # the server's key, an authority's key, an authority's signature

_OF_CERTIFICATE: Mapping[int, str] = {
    _NOT_YET_VALID: "check this machine's clock, or have the server's operator install a certificate that is valid now",
    _EXPIRED: "have the server's operator renew it, or the one of its authority; if they are valid, set this machine's "
    "clock",
    _INVALID_PURPOSE: "have the server's operator install a certificate that is for servers",
    **dict.fromkeys(
        (_HOSTNAME_MISMATCH, _IP_ADDRESS_MISMATCH),
        "connect by a name that it has, or set option 'tubemq.tls.verifyHostname' to false",
    ),
    **dict.fromkeys(_WEAK, "have the server's operator install one with a longer key and a newer signature"),
}
_OF_AUTHORITY = "name the file of the authority that signed it in option 'tubemq.tls.ca'"

_ENABLE_COMMON = "have the server's operator enable TLS 1.2 or 1.3 with a cipher that this machine's OpenSSL has"
_GIVE_CERTIFICATE = "give a certificate that the server trusts in options 'tubemq.tls.cert' and 'tubemq.tls.key'"

# Words in OpenSSL's reasons.
_ALERT = "ALERT"
_MISMATCH = (
    "PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL", "INSUFFICIENT_SECURITY", "NO_CIPHER", "NO_SHARED", "UNKNOWN_CIPHER",
    "WRONG_CIPHER", "DH_KEY_TOO_SMALL", "WRONG_CURVE", "WRONG_SIGNATURE_TYPE",
)  # fmt: skip
_OF_OWN_CERTIFICATE = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED", "HANDSHAKE_FAILURE", "DECRYPT_ERROR")
_HANDSHAKE_FAILURE = "HANDSHAKE_FAILURE"


def for_certificate(verify_code: int) -> str:
    """Return what to do about a server's certificate that is not trusted."""
    return _OF_CERTIFICATE.get(verify_code, _OF_AUTHORITY)


def is_alert(reason: str) -> bool:
    return _ALERT in reason


def is_mismatch(reason: str, *, has_cipher: bool) -> bool:
    """Return True if both sides have no version or cipher in common. `has_cipher`: the server has chosen a cipher."""
    return any(word in reason for word in _MISMATCH) or (_HANDSHAKE_FAILURE in reason and not has_cipher)


def mismatch(reason: str) -> str:
    return f"the server and this client have no version or cipher of TLS in common ({_words(reason)}); {_ENABLE_COMMON}"


def refusal(reason: str, *, shows_certificate: bool) -> str:
    """Return a description of an alert that is no mismatch. `shows_certificate`: this client has a certificate."""
    words = _words(reason)
    if not any(word in reason for word in _OF_OWN_CERTIFICATE):
        return f"the server refuses TLS with this client ({words}); if it asks for a certificate, {_GIVE_CERTIFICATE}"
    if not shows_certificate:
        return f"the server asks for this client's certificate, and there is none ({words}); {_GIVE_CERTIFICATE}"
    if "EXPIRED" in reason:
        return (
            f"the server refuses this client's certificate ({words}); renew the file of option 'tubemq.tls.cert', or "
            "set the clock that is wrong"
        )
    return (
        f"the server refuses this client's certificate ({words}); have its operator trust the authority that signed "
        "the file of option 'tubemq.tls.cert', or give another certificate"
    )


def _words(reason: str) -> str:
    return reason.lower().replace("_", " ")
