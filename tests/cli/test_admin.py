# SPDX-License-Identifier: Apache-2.0
"""The client of TubeMQ's HTTP API, when another service answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tubemq_spark.cli.admin import AdminApi, AdminError
from tubemq_spark.protocol.metadata import Address


@contextmanager
def service(answer: bytes) -> Iterator[Address]:
    """A service that answers each call so."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield Address("127.0.0.1", server.server_port)
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    "answer",
    [b"", b"<html>", b"[]", b"\xff", b"[" * 200_000, b'{"a":' * 200_000],
    ids=["nothing", "a page", "a list", "no text", "deep lists", "deep objects"],
)
def test_an_answer_of_another_service_is_refused(answer: bytes) -> None:
    with service(answer) as address, pytest.raises(AdminError, match="does not answer as TubeMQ's HTTP API does"):
        AdminApi([address]).query("admin_query_broker_run_status")
