# SPDX-License-Identifier: Apache-2.0
"""An S3 endpoint on this machine: moto's server."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any


class S3:
    """moto's S3 in a thread, best used as a context manager. It lists its requests, and delays them if told to.

    Attributes:
        requests: method and path of each request since the list was last cleared.
        delay: seconds before each reply.
    """

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import WSGIRequestHandler, make_server

        class Handler(WSGIRequestHandler):  # type: ignore[misc]
            protocol_version = "HTTP/1.1"  # or each request would need a connection, unlike those to S3

            def log(self, *_: object) -> None:
                pass

        self.requests: list[str] = []
        self.delay = 0.0
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="S3", daemon=True)

    def __enter__(self) -> S3:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def environment(self) -> Mapping[str, str]:
        """What a user sets for the driver's Python."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def create_bucket(self, name: str) -> None:
        with urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")):
            pass

    def _answer(self, environment: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        self.requests.append(f"{environment['REQUEST_METHOD']} {environment['PATH_INFO']}")
        time.sleep(self.delay)
        return self._moto(environment, start)  # type: ignore[no-any-return]
