# SPDX-License-Identifier: Apache-2.0
"""Topics through the master's HTTP API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Run, variables_of
from tests.cli.terminal import Terminal
from tests.clusters import LAYOUTS, Cluster
from tests.clusters.servers import EMBEDDED, REAL_THOROUGHLY, running
from tubemq_spark.cli.topics import deployments
from tubemq_spark.client.admin_api import AdminApi, check_rows
from tubemq_spark.protocol.metadata import parse_addresses
from tubemq_spark.testing import EmbeddedTubeMQ


def test_the_list_and_the_description_have_the_topic(named: Cluster, run: Run) -> None:
    topic = named.new_topic("stores")
    spec, brokers = LAYOUTS["stores"], list(named.broker_ids)
    listed = run("topics", "list", "--json")
    assert (listed.returncode, listed.stderr) == (0, "")
    count = spec.partitions * spec.stores * len(brokers)
    assert {"topic": topic, "brokers": brokers, "partitions": count, "is_ready": True} in listed.json
    assert not any(row["topic"].startswith("__") for row in listed.json)
    described = run("topics", "describe", topic, "--json").json
    assert [(row["broker_id"], row["partitions"], row["stores"], row["is_ready"]) for row in described] == [
        (broker_id, spec.partitions, spec.stores, True) for broker_id in brokers
    ]
    assert {row["address"] for row in described} == set(map(named.broker_address, brokers))


def test_output_is_plain_columns_in_a_pipe_and_a_table_on_a_terminal(
    named: Cluster, run: Run, terminal: Terminal
) -> None:
    topic = named.new_topic("one")
    piped = run("topics", "describe", topic)
    assert piped.stdout.splitlines()[0].split() == [
        "broker", "address", "stores", "partitions", "of", "each", "publish", "subscribe", "retention", "ready",
    ]  # fmt: skip
    assert "\x1b" not in piped.stdout
    shown = terminal.run("topics", "describe", topic, variables=variables_of(named))
    assert shown.status == 0
    assert "\x1b" in shown.raw
    assert named.broker_address(1) in shown.text


@pytest.fixture(scope="module", params=[EMBEDDED, *REAL_THOROUGHLY])
def own_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster whose brokers a test may reload."""
    with running(request.param, brokers=1, topics={"demo": LAYOUTS["one"]}) as started:
        yield started


def test_a_topic_can_be_created_used_changed_and_deleted(
    own_cluster: Cluster, run: Run, monkeypatch: pytest.MonkeyPatch, terminal: Terminal
) -> None:
    for name, value in variables_of(own_cluster).items():
        monkeypatch.setenv(name, value)
    done = run(
        "topics", "create", "made", "--partitions", "2", "--retention", "delete,90m", "--json", *(["--broker", "1"] * 2)
    )
    assert (done.returncode, done.json, done.stderr) == (0, [{"topic": "made", "brokers": [1], "partitions": 2}], "")
    assert run("topics", "describe", "made", "--json").json[0]["retention"] == "delete,90m"
    changed = run("topics", "alter", "made", "--partitions", "3", "--stores", "2", "--retention", "delete,2h")
    assert (changed.returncode, changed.stdout, changed.stderr) == (0, "changed topic made on broker 1\n", "")
    (described,) = run("topics", "describe", "made", "--json").json
    assert (described["partitions"], described["stores"], described["retention"]) == (3, 2, "delete,2h")
    for number in ("--partitions", "--stores"):
        fewer = run("topics", "alter", "made", number, "1")
        assert (fewer.returncode, fewer.stdout) == (2, "")
        assert "topic made has 2 stores of 3 partitions on broker 1; expected at least" in fewer.stderr
    again = run("topics", "create", "made")
    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr.startswith("tubemq-spark: topic made exists already")
    assert run("produce", "made", stdin=b"hello\n").returncode == 0
    (message,) = run("consume", "made").json
    assert message["value"] == "hello"
    kept = terminal.run("topics", "delete", "made", typed="n\n", variables=variables_of(own_cluster))
    assert kept.status == 1
    assert "Delete topic made and all its messages on broker 1?" in kept.text
    assert [row["topic"] for row in run("topics", "list", "--json").json] == ["demo", "made"]
    deleted = terminal.run("topics", "delete", "made", typed="y\n", variables=variables_of(own_cluster))
    assert deleted.status == 0, deleted.text
    assert [row["topic"] for row in run("topics", "list", "--json").json] == ["demo"]
    missing = run("topics", "delete", "made", "--yes")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "there is no topic made" in missing.stderr


def test_a_change_that_was_interrupted_can_be_made_again(
    own_cluster: Cluster, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables_of(own_cluster).items():
        monkeypatch.setenv(name, value)
    (address,) = parse_addresses(own_cluster.web_master)
    admin = AdminApi([address], token=own_cluster.admin_token)
    close = {"acceptPublish": False, "acceptSubscribe": False}
    calls = [("admin_modify_topic_info", close), ("admin_delete_topic_info", {}), ("admin_remove_topic_info", {})]
    states = {"half_closed": "normal", "half_deleted": "deleted", "half_removed": "removed"}
    for number, (name, state) in enumerate(states.items(), 1):
        assert run("topics", "create", name, "--partitions", "1").returncode == 0
        check_rows(admin.change("admin_modify_topic_info", brokerId=1, topicName=name, numPartitions=2), "changing")
        altered = run("topics", "alter", name, "--partitions", "2")
        assert (altered.returncode, altered.stderr) == (0, "")
        for method, params in calls[:number]:
            check_rows(admin.change(method, brokerId=1, topicName=name, **params), method)
        assert [row["state"] for row in run("topics", "describe", name, "--json").json] == [state]
        deleted = run("topics", "delete", name, "--yes")
        assert (deleted.returncode, deleted.stdout, deleted.stderr) == (0, f"deleted topic {name}\n", "")
    assert [row["topic"] for row in run("topics", "list", "--json").json] == ["demo"]


def test_a_topic_that_a_master_removed_for_ever_is_removed(
    tubemq: EmbeddedTubeMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TubeMQ's enumeration has this state, 3; no server was seen to show it."""
    tubemq.create_topic("removed")
    admin = AdminApi(parse_addresses(tubemq.web_master), token=tubemq.admin_token)
    rows = [{**row, "topicStatusId": 3} for row in admin.topics()]
    monkeypatch.setattr(AdminApi, "topics", lambda self, name: rows)
    assert {row["state"] for row in deployments(admin)} == {"removed"}


def test_an_interrupted_change_names_the_command_that_shows_it(tubemq: EmbeddedTubeMQ, terminal: Terminal) -> None:
    tubemq.stop_broker(1)
    connection = ["--master", tubemq.master, "--admin", tubemq.web_master, "--token", tubemq.admin_token]
    terminal.begin("topics", "create", "late", *connection)
    terminal.wait_for(lambda text: "waiting for broker 1" in text)
    done = terminal.interrupt()
    assert (done.status, "`tubemq-spark topics describe late` shows what is changed" in done.text) == (130, True)


def test_a_wrong_token_is_refused(named: Cluster, run: Run) -> None:
    done = run("topics", "create", "never_made", "--token", "wrong")
    assert (done.returncode, done.stdout) == (1, "")
    warning, refusal = done.stderr.splitlines()
    assert warning.startswith("tubemq-spark: warning: all users of this machine can see --token")
    assert refusal == "tubemq-spark: the master refused the administration token (confModAuthToken in master.ini)"


def test_a_token_comes_from_a_file_or_is_asked_for(
    named: Cluster, run: Run, terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blank = run("topics", "create", "never_made", "--token", "")
    assert (blank.returncode, "changes need the administration token" in blank.stderr) == (1, True), blank.stderr
    monkeypatch.delenv("TUBEMQ_ADMIN_TOKEN")
    missing = run("topics", "create", "never_made")
    assert (missing.returncode, "TUBEMQ_ADMIN_TOKEN" in missing.stderr) == (1, True)
    (tmp_path / "token").write_text(named.admin_token + "\n")
    (tmp_path / "token").chmod(0o600)
    done = run("topics", "delete", "no_such_topic", "--token-file", str(tmp_path / "token"))
    assert (done.returncode, done.stderr.count("\n"), "there is no topic" in done.stderr) == (2, 1, True)
    (tmp_path / "token").chmod(0o604)
    open_to_all = run("topics", "delete", "no_such_topic", "--token-file", str(tmp_path / "token"))
    assert f"chmod 600 {tmp_path}/token" in open_to_all.stderr
    variables = {**variables_of(named), "TUBEMQ_ADMIN_TOKEN": ""}
    terminal.begin("topics", "delete", "no_such_topic", variables=variables)
    terminal.wait_for(lambda text: text.endswith("master.ini): "))  # what is typed before is dropped
    terminal.type(f"{named.admin_token}\n")
    assert "there is no topic no_such_topic" in terminal.finish().text


def test_an_unreachable_http_port_is_reported(run: Run) -> None:
    done = run("topics", "list", "--master", "127.0.0.1:1", "--admin", "127.0.0.1:1")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Name the addresses of all masters with --admin" in done.stderr
