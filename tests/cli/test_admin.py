# SPDX-License-Identifier: Apache-2.0
"""The client of TubeMQ's HTTP API, when another service answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import quote_plus

import pytest
import typer

from tests.cli.conftest import Run
from tubemq_spark.cli.app import app
from tubemq_spark.client.admin_api import AdminApi, AdminError, check_rows
from tubemq_spark.client.retries import Deadline
from tubemq_spark.errors import TransportError, TubeMQError
from tubemq_spark.protocol.metadata import Address


@contextmanager
def service(answer: bytes, redirect: str | None = None) -> Iterator[Address]:
    """A service that answers each call so, or redirects it."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(302 if redirect else 200)
            if redirect:
                self.send_header("Location", redirect)
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


def test_only_the_json_value_true_means_success() -> None:
    with service(b'{"result": "false", "errMsg": "no"}') as address, pytest.raises(AdminError, match="no"):
        AdminApi([address]).query("admin_query_broker_run_status")


@pytest.mark.parametrize("redirect", ["http://[", "http://x\x1b[2J/"])
def test_a_redirect_to_no_address_is_refused(redirect: str) -> None:
    with service(b"", redirect) as address, pytest.raises(TransportError, match="does not answer"):
        AdminApi([address]).query("admin_query_broker_run_status")


def test_a_broker_at_no_address_is_refused() -> None:
    with pytest.raises(TransportError, match=r"the HTTP port .* of broker 1 does not answer"):
        AdminApi([]).ask_broker({"brokerId": 1, "brokerIp": "[[", "brokerWebPort": 1}, "admin_query_offset")


def test_calls_end_with_their_deadline() -> None:
    with service(b'{"result": true, "data": []}') as address:
        assert AdminApi([address], deadline=Deadline(60)).query("admin_query_broker_run_status")
        with pytest.raises(TransportError, match="does not answer"):
            AdminApi([address], deadline=Deadline(0)).query("admin_query_broker_run_status")


@pytest.mark.parametrize("token", ["secret token", "s3cret"])
def test_a_server_that_quotes_the_call_shows_no_token(token: str) -> None:
    quoted = f"method=x&confModAuthToken={quote_plus(token)} {token}"
    refused = json.dumps({"result": False, "errMsg": quoted}).encode()
    rows = json.dumps({"result": True, "data": [{"success": False, "errInfo": quoted}]}).encode()
    with service(refused) as address, pytest.raises(AdminError, match=r"confModAuthToken=\*\*\* \*\*\*$"):
        AdminApi([address], token).change("admin_reload_broker_configure")
    with service(rows) as address, pytest.raises(AdminError, match=r"confModAuthToken=\*\*\* \*\*\*$"):
        check_rows(AdminApi([address], token).change("admin_reload_broker_configure"), "it")
    with service(b"", f"http://x/?{quoted}") as address, pytest.raises(TransportError, match=r"=\*\*\* \*\*\*"):
        AdminApi([address], token).change("admin_reload_broker_configure")


@pytest.mark.parametrize(
    ("token", "text", "shown"),
    [
        ("the", "unauthorized", "the master refused the administration token"),
        ("secret", "x" * 297 + "secret", "xxx***"),
    ],
)
def test_the_token_is_hidden_in_the_text_of_the_server_alone(token: str, text: str, shown: str) -> None:
    """Also where that text is cut."""
    refused = json.dumps({"result": False, "errMsg": text}).encode()
    with service(refused) as address, pytest.raises(TubeMQError) as caught:
        AdminApi([address], token).change("admin_reload_broker_configure")
    assert shown in str(caught.value)


def test_the_token_goes_to_no_other_address_than_the_named_ones() -> None:
    answer = b'{"result": true, "data": []}'
    with service(answer) as other, service(b"", f"http://{other}/webapi.htm") as standby:
        with pytest.raises(TransportError, match=f"a redirect to http://{other}/webapi.htm.*addresses of all masters"):
            AdminApi([standby], "secret").change("admin_reload_broker_configure")
        assert AdminApi([standby, other], "secret").change("admin_reload_broker_configure") == json.loads(answer)


ROWS = [b"[{}]", b'[{"brokerId": "x"}]', b'[{"brokerId": Infinity}]', b'[{"topicInfo": 5}]', b'[{"topicInfo": [{}]}]',
        b'[{"brokerId": 1, "isBrokerOnline": "true"}]', b"[5]", b"5", b"null", b'{"a": 1}',
        b'[{"brokerId": "' + b"x" * 100_000 + b'"}]',
        b'[{"success": false, "errInfo": "' + b"x" * 100_000 + b'"}]']  # fmt: skip


def calls(command: Any, *path: str) -> Iterator[str]:
    """Yield a call of each command that uses the HTTP API, as people and as programs call it."""
    for name, one in getattr(command, "commands", {}).items():
        yield from calls(one, *path, name)
    flags = {flag for parameter in command.params for flag in parameter.opts}
    if "--admin" in flags:
        needed = ["my_name" for one in command.params if one.param_type_name == "argument" and one.required]
        needed += [
            f"{one.opts[0]}=latest" for one in command.params if one.param_type_name == "option" and one.required
        ]
        yield " ".join([*path, *needed, *sorted(flags & {"--yes"})])
        yield " ".join([*path, *needed, *sorted(flags & {"--yes", "--json"})])


@pytest.mark.parametrize("rows", ROWS, ids=lambda rows: rows.decode()[:40])
@pytest.mark.parametrize("command", dict.fromkeys(calls(typer.main.get_command(app))))
def test_no_answer_of_a_master_ends_a_command_with_a_traceback(
    run: Run, command: str, rows: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUBEMQ_ADMIN_TOKEN", "secret")
    with service(b'{"result": true, "data": ' + rows + b"}") as address:
        master = ["--master", "127.0.0.1:1", "-X", "retry.maxElapsedMs=1"]
        done = run(*command.split(), *master, "--admin", str(address))
    assert done.returncode in (0, 1, 2)
    lines = [line for line in done.stderr.splitlines() if "it is not known whether there is a group" not in line]
    assert len(lines) == (done.returncode != 0 or "nothing to list" in done.stderr)
    assert "internal error" not in done.stderr
    assert len(done.stderr) < 1000


def test_a_client_of_a_group_commands_no_terminal(run: Run) -> None:
    evil = {
        "groupName": "my_group",
        "topicName": "t\x1b[2J",
        "partitionId": 0,
        "consumerId": "evil\x1b]0;x\x07\u202e",
        "zkOffset": 0,
        "subInfo": [],
    }
    with service(json.dumps({"result": True, "data": [evil], "dataSet": [evil]}).encode()) as broker:
        status = {"brokerId": 1, "brokerIp": broker.host, "brokerWebPort": broker.port, "isBrokerOnline": "true"}
        with service(json.dumps({"result": True, "data": [status]}).encode()) as master:
            for arguments in ([], ["--json"]):
                done = run("lag", "my_group", "--master", "127.0.0.1:1", "--admin", str(master), *arguments)
                assert done.returncode == 0, done.stderr
                assert "evil\\" in done.stdout
                assert all(line.isprintable() for line in done.stdout.splitlines())
