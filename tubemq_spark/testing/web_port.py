# SPDX-License-Identifier: Apache-2.0
"""HTTP ports of the servers: requests of the administration API, answered with JSON.

wire: WebMethodMapper and WebApiServlet on a master, BrokerAdminServlet on a broker. Refusals come with status 200.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tubemq_spark.testing.port import Connection, Host, Port

Params = Mapping[str, str]
WebAnswer = dict[str, Any]

_MOST = 1 << 20  # bytes of a request


class WebError(Exception):
    """A refusal of the API: its number and its text."""

    def __init__(self, text: str, code: int = 400) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class Redirect:
    """The answer of a standby master: the address of the active one as `host:port`."""

    address: str


WebApi = Callable[[Params], "WebAnswer | Redirect"]
"""Answers a call; raises `WebError` to refuse it."""


def names_in(params: Params, name: str) -> set[str]:
    """Return the names in a parameter, which commas separate."""
    return {part.strip() for part in params.get(name, "").split(",") if part.strip()}


class WebPort(Port):
    """An HTTP port. Each connection serves one request."""

    def __init__(self, name: str, host: Host, api: WebApi) -> None:
        super().__init__(f"the HTTP port of {name}", host)
        self.api = api

    def connect(self) -> Connection:
        return _WebConnection(self)


class _WebConnection(Connection):
    def __init__(self, port: WebPort) -> None:
        super().__init__(port)
        self._api = port.api
        self._received = bytearray()

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, separator, body = bytes(self._received).partition(b"\r\n\r\n")
        if not separator and len(self._received) < _MOST:
            return
        lines = head.decode("latin-1").split("\r\n")
        fields = dict(line.lower().split(":", 1) for line in lines[1:] if ":" in line)
        length = fields.get("content-length", "0").strip()
        size = int(length) if length.isdecimal() else _MOST
        if len(body) < size < _MOST:
            return
        target = lines[0].split(" ")[1] if lines[0].count(" ") == 2 else ""
        self._answer(target, "" if size >= _MOST else body[:size].decode("latin-1"))

    def _answer(self, target: str, form: str) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        query = urlsplit(target).query
        params = dict(parse_qsl(query, keep_blank_values=True) + parse_qsl(form, keep_blank_values=True))
        try:
            answer = self._api(params)
        except WebError as error:
            answer = {"result": False, "errCode": error.code, "errMsg": str(error)}
        if isinstance(answer, Redirect):
            head, content = f"302 Found\r\nLocation: http://{answer.address}{target}", b""
        else:
            head, content = "200 OK", json.dumps(answer, separators=(",", ":")).encode()
        self._transport.write(f"HTTP/1.1 {head}\r\nContent-Length: {len(content)}\r\n".encode())
        self._transport.write(b"Connection: close\r\n\r\n" + content)
        self._transport.close()
