# SPDX-License-Identifier: Apache-2.0
"""Groups through the HTTP APIs: the list, and who may read a topic."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import messages
from tests.cli.conftest import Run
from tests.clocks import UseTimings
from tests.clusters import Cluster
from tests.clusters.embedded import EmbeddedCluster
from tests.real import admin
from tests.sink_options.effectively_once import plan_batch, rows
from tests.waiting import wait_until
from tests.without_spark.sink import Task
from tests.without_spark.source import GROUP, Stream, fill, read_batch
from tubemq_spark.cli.reading import GroupMember, temporary_group
from tubemq_spark.client.admin_api import AdminApi, Answer
from tubemq_spark.client.consumer.working_group import OWN_GROUPS, look_group, stream_group
from tubemq_spark.protocol.constants import IDENTITY_GROUP
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.testing import EmbeddedTubeMQ, ServerConfig

SINK = "marks and searches of effectivelyOnce"
PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "monitoring.md").read_text(encoding="utf-8")


def test_the_list_has_groups_in_use_but_not_their_working_groups(named: Cluster, run: Run, group: str) -> None:
    topic = named.new_topic("one")
    messages.send(named, messages.numbered(messages.partitions(named, topic), 10))
    with (
        GroupMember(messages.settings(named), group, topic) as member,
        GroupMember(messages.settings(named), stream_group(group), topic) as working,
    ):
        member.claims.take({Partition(1, topic, 0): 28, Partition(2, topic, 0): 140})
        working.claims.take({Partition(1, topic, 0): 0, Partition(2, topic, 0): 0})
        row = {"group": group, "topics": [topic], "lag": 4, "clients": 1}

        def found() -> list[dict[str, object]]:  # release 2.5 shows a new group after some seconds
            return [one for one in run("groups", "list", "--json").json if str(one["group"]).startswith(group)]

        wait_until(lambda: found() == [row])
        piped = run("groups", "list", "--topic", topic)
        assert piped.stdout.splitlines()[0].split() == ["group", "topics", "lag", "clients"]
        assert [group, topic, "4", "1"] in [line.split() for line in piped.stdout.splitlines()]


def test_all_groups_of_the_connector_are_hidden_and_marked_on_demand(
    own_tubemq: EmbeddedTubeMQ, run: Run, use_timings: UseTimings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    use_timings(task_settling=0.05, closed_connection_settling=0.05, broker_away_after=30.0)
    fill(own_tubemq, "t", 50)
    Stream(own_tubemq, "t").run()
    read_batch(own_tubemq, "t", tubemq_group="looks")
    assert run("consume", "t").returncode == 0
    cluster, of = EmbeddedCluster(own_tubemq, ServerConfig()), rows("a", 3)
    writing = plan_batch(cluster, of, "t")
    writing.write(of, task := Task())
    writing.write(of, task.again())
    for name in ("orders_read", "orders_batch"):  # of a user, who is free to choose them
        own_tubemq.move_group(name, "t", 1, 0, 0)

    users = {GROUP, "orders_read", "orders_batch"}
    assert {one["group"] for one in run("groups", "list", "--json").json} == users
    own = {one["group"]: one["connector"] for one in run("groups", "list", "--all", "--json").json}
    assert {name for name, purpose in own.items() if purpose is None} == users
    assert {own.pop(name) for name in users} == {None}
    for name, purpose in {
        IDENTITY_GROUP: "asks brokers who they are",
        f"{GROUP}_spark_read": "read by Spark's tasks",
        "looks_spark_batch": "read by Spark's tasks",
    }.items():
        assert own[name] == purpose
    for prefix, purpose in {"tubemq_cli_": "read by a command", "spark_sink_": SINK}.items():
        assert {one for name, one in own.items() if name.startswith(prefix)} == {purpose}
    [expression] = re.findall(r'group!~"(.*)"', PAGE)  # which alerts use
    assert [name for name in own if not re.fullmatch(expression, name)] == []
    assert re.fullmatch(expression, GROUP) is None
    assert expression == OWN_GROUPS
    shown = run("groups", "list", "--all").stdout.splitlines()
    assert shown[0].split() == ["group", "topics", "lag", "clients", "connector"]
    assert any(line.startswith("spark_sink_") and line.endswith(f"  {SINK}") for line in shown)


def test_the_list_hides_groups_of_batch_reads(named: Cluster, run: Run, group: str) -> None:
    """They leave no position of the group itself."""
    topic = named.new_topic("one")
    with GroupMember(messages.settings(named), look_group(group), topic) as member:
        member.claims.take({Partition(1, topic, 0): 0})
        wait_until(lambda: run("lag", look_group(group)).returncode == 0)
        assert run("groups", "list", "--topic", topic, "--json").json == []


def test_the_list_hides_the_group_in_which_brokers_say_who_they_are(named: Cluster, run: Run, group: str) -> None:
    with GroupMember(messages.settings(named), group, named.new_topic("one")):
        wait_until(lambda: run("lag", IDENTITY_GROUP).returncode == 0)
        assert IDENTITY_GROUP not in [one["group"] for one in run("groups", "list", "--json").json]


def test_the_list_hides_temporary_groups_and_names_an_unknown_topic(named: Cluster, run: Run) -> None:
    topic, temporary = named.new_topic("one"), temporary_group()
    with GroupMember(messages.settings(named), temporary, topic) as member:
        member.claims.take({Partition(1, topic, 0): 0})
        wait_until(lambda: run("lag", temporary).returncode == 0)
        done = run("groups", "list", "--topic", topic, "--json")
        assert done == (0, "", "tubemq-spark: there is nothing to list\n")
    for command in (["groups", "list"], ["lag", temporary]):
        done = run(*command, "--topic", "no_such_topic")
        assert (done.returncode, done.stdout) == (2, "")
        assert "there is no topic no_such_topic" in done.stderr


def test_the_partitions_of_a_broker_that_is_down_are_not_left_out_in_silence(
    own_tubemq: EmbeddedTubeMQ, run: Run
) -> None:
    run("offsets", "reset", "--create", "gone", "t", "--to", "latest", "--yes")
    assert run("lag", "gone").stderr == ""
    own_tubemq.stop_broker(2)
    for command in (["lag", "gone"], ["groups", "list"]):
        done = run(*command)
        assert done.returncode == 0
        assert done.stderr == "tubemq-spark: warning: broker 2 is down, and its partitions are missing here\n"


@pytest.mark.parametrize("command", [["lag", "gone"], ["groups", "list"]], ids=" ".join)
def test_a_broker_that_goes_down_meanwhile_is_not_left_out_in_silence(
    own_tubemq: EmbeddedTubeMQ, run: Run, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run("offsets", "reset", "--create", "gone", "t", "--to", "latest", "--yes")
    brokers = AdminApi.brokers

    def brokers_then_stop(admin: AdminApi) -> dict[int, Answer]:
        found = brokers(admin)
        own_tubemq.stop_broker(2)
        return found

    monkeypatch.setattr(AdminApi, "brokers", brokers_then_stop)
    done = run(*command)
    assert (done.returncode, "of broker 2 does not answer" in done.stderr) == (1, True), done


@pytest.fixture
def authorised_topic(named: Cluster) -> Iterator[str]:
    """A topic that only named groups may read."""
    topic = named.new_topic("one")

    def require(is_required: bool) -> None:
        call = {"method": "admin_set_topic_authorize_control", "topicName": topic, "isEnable": is_required}
        admin.call(f"http://{named.web_master}/webapi.htm", {**call, "confModAuthToken": named.admin_token})

    require(True)
    yield topic
    require(False)


def test_a_group_is_allowed_blocked_and_allowed_again(authorised_topic: str, run: Run, group: str) -> None:
    def may_read() -> bool:
        done = run("offsets", "reset", "--create", group, authorised_topic, "--to", "earliest", "--yes")
        assert done.returncode == 0 or "450 CONSUME_GROUP_FORBIDDEN" in done.stderr, done
        return done.returncode == 0

    assert not may_read()
    for command, text in (("allow", "is authorised for"), ("block", "is on the black list of")) * 2:
        done = run("groups", command, authorised_topic, group)
        assert (done.returncode, done.stdout) == (0, f"group {group} {text} topic {authorised_topic}\n"), done
        assert may_read() is (command == "allow")


def test_a_command_that_may_not_read_names_the_option(authorised_topic: str, run: Run) -> None:
    done = run("consume", authorised_topic)
    assert done.returncode == 1
    assert done.stderr.endswith("--group names a group that may read the topic\n")


def test_a_similar_group_is_proposed(own_tubemq: EmbeddedTubeMQ, run: Run) -> None:
    own_tubemq.move_group("clicks_agg", "t", 1, 0, 0)
    told = "tubemq-spark: no broker knows group clicks_aggg; did you mean clicks_agg?\n"
    for command in ("allow", "block"):
        done = run("groups", command, "t", "clicks_aggg")
        assert (done.returncode, done.stderr) == (0, told)
        assert run("groups", command, "t", "clicks_agg").stderr == run("groups", command, "t", "another").stderr == ""
    missing = run("groups", "allow", "tt", "clicks_agg")
    assert (missing.returncode, "there is no topic tt" in missing.stderr) == (2, True)
