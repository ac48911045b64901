# SPDX-License-Identifier: Apache-2.0
"""TubeMQ's HTTP administration calls (WebMethodMapper on the master, BrokerAdminServlet on a broker)."""

from __future__ import annotations

import json
import urllib.parse
from typing import Any

from tests.real.ini import AUTH_TOKEN
from tubemq_spark.client.http_post import post

_USER = "tests"
_QUERIES = ("admin_query", "admin_get", "admin_snapshot")
_TIMEOUT = 30.0


class AdminError(RuntimeError):
    """The server refused a call, or answered without JSON."""


def call(url: str, params: dict[str, object]) -> dict[str, Any]:
    """Make one call and return its answer, whose ``result`` is true.

    ``params`` holds ``method`` and its parameters; booleans become ``true`` and ``false``. The user names and the token
    are added to calls that change something.

    Raises:
        AdminError: the call was refused.
        OSError: the server was not reached, or answered with an HTTP error.
    """
    if not str(params["method"]).startswith(_QUERIES):  # user names in a query would select records
        params = {"createUser": _USER, "modifyUser": _USER, "confModAuthToken": AUTH_TOKEN, **params}
    form = urllib.parse.urlencode({key: _text(value) for key, value in params.items()})
    text = post(url, form.encode(), _TIMEOUT).decode()
    try:
        answer = json.loads(text)
    except ValueError:
        raise AdminError(f"{params['method']} at {url}: the answer is not JSON: {text[:300]!r}") from None
    if not isinstance(answer, dict) or not answer.get("result"):
        raise AdminError(f"{params['method']} at {url} with {params}: {text[:1000]}")
    return answer


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
