# SPDX-License-Identifier: Apache-2.0
"""An HTTP server that answers too slowly, or in parts."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import repeat

import pytest

from tubemq_spark.client.http_post import post

HEAD = b"HTTP/1.0 200 OK\r\n"


@contextmanager
def server(parts: Iterator[bytes], pause: float) -> Iterator[str]:
    """A server that sends one part after the other, as long as somebody reads."""
    is_over = threading.Event()

    def serve() -> None:
        connected, _ = listener.accept()
        with connected, suppress(OSError):
            connected.recv(1 << 16)
            for part in parts:
                connected.sendall(part)
                if is_over.wait(pause):
                    return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/webapi.htm"
        finally:
            is_over.set()
            thread.join()


@pytest.mark.parametrize(
    ("head", "part"),
    [(b"", b"a"), (HEAD + b"A: ", b"a"), (HEAD + b"\r\n", b"a"), (HEAD + b"\r\n", b"a" * 8192)],
    ids=["nothing", "a header", "a body", "a fast body"],
)
def test_an_answer_that_never_ends_is_given_up(head: bytes, part: bytes) -> None:
    with server(iter([head, *repeat(part, 10_000)]), 0.01) as url, pytest.raises(TimeoutError):
        post(url, b"", 0.3)


def test_lines_before_an_answer_that_never_end_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tubemq_spark.client.http_post._MOST", 1 << 16)
    with server(repeat(b"HTTP/1.1 100 Continue\r\n\r\n" * 100), 0.0) as url, pytest.raises(TimeoutError):
        post(url, b"", 10.0)


def test_an_answer_in_parts_is_whole() -> None:
    with server(iter([HEAD, b"\r\n", b"some ", b"text"]), 0.001) as url:
        assert post(url, b"", 10.0) == b"some text"
