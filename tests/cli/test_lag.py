# SPDX-License-Identifier: Apache-2.0
"""The lag of groups, in use or not, once and live."""

from __future__ import annotations

import json
import re

import pytest

from tests import messages
from tests.cli.conftest import Run, variables_of
from tests.cli.terminal import Terminal, open_terminal
from tests.clusters import Cluster
from tests.waiting import wait_until
from tubemq_spark.cli.lag import GroupState, sparkline, total_lag
from tubemq_spark.cli.reading import GroupMember
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.testing import EmbeddedTubeMQ


def test_the_lag_of_a_group_in_use_is_shown(named: Cluster, run: Run, group: str) -> None:
    topic = named.new_topic("one")
    messages.send(named, messages.numbered(messages.partitions(named, topic), 10))
    with GroupMember(messages.settings(named), group, topic) as member:
        member.claims.take({Partition(1, topic, 0): 28, Partition(2, topic, 0): 140})
        holder = str(member.claims.claim)

        def is_listed() -> bool:  # release 2.5 shows a new group after some seconds
            found = run("lag", group, "--json").json
            return [(one["broker_id"], one["position"], one["end"], one["lag"], one["holder"]) for one in found] == [
                (1, 28, 140, 4, holder),
                (2, 140, 140, 0, holder),
            ]

        wait_until(is_listed)
        piped = run("lag", group, "--topic", topic)
        assert piped.stdout.splitlines()[0].split() == ["partition", "position", "end", "lag", "client"]
        assert piped.stdout.splitlines()[-1] == "total lag 4"
        assert {at.group for at in member.positions.values()} == {28, 140}


def test_watching_shows_how_the_lag_changes(named: Cluster, run: Run, terminal: Terminal, group: str) -> None:
    topic = named.new_topic("one")
    assert run("produce", topic, "-p", "1:0", stdin=b"a\n").returncode == 0
    run("offsets", "set", "--create", group, topic, "1:0=latest", "--yes")
    wait_until(lambda: run("lag", group).returncode == 0)
    terminal.begin("lag", group, "--watch", "--interval", "0.1", variables=variables_of(named))
    terminal.wait_for(lambda text: f"group {group}: lag 0" in text)
    run("produce", topic, "-p", "1:0", stdin=b"b\nc\n")
    terminal.wait_for(lambda text: f"group {group}: lag 2" in text)
    done = terminal.interrupt()
    assert done.status == 0
    assert "▁" in done.text
    assert "█" in done.text
    terminal.begin("lag", group, "--watch", "--interval", "0.1", "--json", variables=variables_of(named))
    terminal.wait_for(lambda text: text.count("\n") >= 2)
    lines = [json.loads(line) for line in terminal.interrupt().text.splitlines() if line.startswith("{")]
    assert {(line["group"], line["lag"]) for line in lines} == {(group, 2)}


def test_messages_of_partitions_without_a_position_are_not_taken_for_read(own_tubemq: EmbeddedTubeMQ, run: Run) -> None:
    run("offsets", "reset", "--create", "my_group", "t", "--to", "latest", "--yes")
    altered = run("topics", "alter", "t", "--stores", "2")
    assert altered.returncode == 0, altered.stderr
    assert run("lag", "my_group").stdout.splitlines()[-1] == "total lag 0"
    own_tubemq.send("t", b"a", "1:10000")
    expected = "total lag 0, and the messages of 1 partitions without a position"
    assert run("lag", "my_group").stdout.splitlines()[-1] == expected
    assert [one["lag"] for one in run("lag", "my_group", "--json").json] == [0, None, 0, 0]
    assert [one["lag"] for one in run("groups", "list", "--json").json] == [None]


def test_a_position_beyond_the_end_is_told(own_tubemq: EmbeddedTubeMQ, run: Run, terminal: Terminal) -> None:
    for number in range(5):
        own_tubemq.send("t", b"%d" % number, "1:0")
    own_tubemq.move_group("my_group", "t", 1, 0, 140)
    assert run("lag", "my_group").stderr == ""
    own_tubemq.delete_topic("t")
    own_tubemq.create_topic("t", partitions=1)
    own_tubemq.send("t", b"a", "1:0")
    told = "warning: the group stands beyond the end of 1:t:0: a broker lost messages, or the topic was"
    shown = run("lag", "my_group")
    assert (shown.returncode, shown.stdout.splitlines()[-1]) == (0, "total lag 0")
    assert shown.stderr.startswith(f"tubemq-spark: {told}")
    shown = run("lag", "my_group", "--json")
    assert ([(one["position"], one["end"], one["lag"]) for one in shown.json], told in shown.stderr) == (
        [(140, 28, 0)],
        True,
    )
    terminal.begin("lag", "my_group", "--watch", "--interval", "0.1", "--json", variables=variables_of(own_tubemq))
    terminal.wait_for(lambda text: told in text)
    assert terminal.interrupt().status == 0


@pytest.mark.parametrize("as_json", [[], ["--json"]], ids=["live", "JSON"])
def test_watching_tells_of_a_broker_that_goes_down(
    own_tubemq: EmbeddedTubeMQ, run: Run, terminal: Terminal, as_json: list[str]
) -> None:
    run("offsets", "reset", "--create", "my_group", "t", "--to", "latest", "--yes")
    terminal.begin("lag", "my_group", "--watch", "--interval", "0.1", *as_json, variables=variables_of(own_tubemq))
    terminal.wait_for(lambda text: "2:t:0" in text or '"broker_id": 2' in text)
    own_tubemq.stop_broker(2)
    terminal.wait_for(lambda text: "broker 2 is down, and its partitions are missing here" in text)
    own_tubemq.stop_broker(1)
    terminal.wait_for(lambda text: "broker 1,2 is down" in text)
    own_tubemq.start_broker(1)
    own_tubemq.send("t", b"a", "1:0")
    terminal.wait_for(lambda text: "lag 1 " in text or '"lag": 1' in text)
    assert terminal.interrupt().status == 0


def test_watching_goes_on_after_a_restart_of_the_master(
    own_tubemq: EmbeddedTubeMQ, run: Run, terminal: Terminal
) -> None:
    run("offsets", "reset", "--create", "my_group", "t", "--to", "latest", "--yes")
    terminal.begin("lag", "my_group", "--watch", "--interval", "0.1", "--json", variables=variables_of(own_tubemq))
    terminal.wait_for(lambda text: '"lag": 0' in text)
    own_tubemq.stop_master()
    terminal.wait_for(lambda text: "the master's HTTP API does not answer" in text)
    own_tubemq.send("t", b"a")
    own_tubemq.start_master()
    terminal.wait_for(lambda text: '"lag": 1' in text)
    assert terminal.interrupt().status == 0


def test_a_narrow_terminal_hides_no_cell() -> None:
    with EmbeddedTubeMQ({"my_topic": 2}) as tubemq, open_terminal(width=10) as narrow:
        tubemq.send("my_topic", b"a", "1:0")
        variables = {"TUBEMQ_MASTER": tubemq.master, "TUBEMQ_ADMIN": tubemq.web_master}

        def shown(*command: str, typed: str = "") -> str:
            return re.sub(" +", " ", narrow.run(*command, typed=typed, variables=variables).text)

        assert "1:my_topic:0 0 28 +1" in shown(
            "offsets", "reset", "--create", "my_group", "my_topic", "--to", "-0", typed="y\n"
        )
        assert "1:my_topic:0 28 28 0 * -" in shown("lag", "my_group")
        assert "my_group my_topic 0 0" in shown("groups", "list")
        assert "my_topic 1 2 yes" in shown("topics", "list")
        assert "1 2 yes yes" in shown("topics", "describe", "my_topic")
        assert "topic my_topic: " in shown("doctor", "--topic", "my_topic")
        narrow.begin("lag", "my_group", "--watch", variables=variables)
        narrow.wait_for(lambda text: "group my_group: lag 0" in text)
        assert narrow.interrupt().status == 0


def test_partitions_that_share_a_store_are_marked(run: Run, terminal: Terminal) -> None:
    with EmbeddedTubeMQ({"alone": 1}, 2) as tubemq:
        tubemq.create_topic("t", 2, 2, brokers=[1])
        for number in (0, 1, 1, 10_000):
            tubemq.send("t", b"a", f"1:{number}")
        places = [("t", 1, 0), ("t", 1, 1), ("t", 1, 10_000), ("t", 1, 10_001), ("alone", 1, 0), ("alone", 2, 0)]
        for topic, broker, partition in places:
            tubemq.move_group("my_group", topic, broker, partition, 0)
        address = ("--master", tubemq.master, "--admin", tubemq.web_master)
        marked = run("lag", "my_group", *address).stdout.splitlines()
        assert marked[0].split() == ["partition", "position", "end", "lag", "client"]
        assert [line.split() for line in marked[1:7]] == [
            ["1:alone:0", "0", "0", "0", "-"],
            ["1:t:0", "0", "84", "3", "*1", "-"],
            ["1:t:1", "0", "84", "3", "*1", "-"],
            ["1:t:10000", "0", "28", "1", "*2", "-"],
            ["1:t:10001", "0", "28", "1", "*2", "-"],
            ["2:alone:0", "0", "0", "0", "-"],
        ]
        footnote = "* Partitions with the same mark share a store."
        assert marked[7] == "total lag 4"
        assert marked[8].startswith(footnote)
        stores = [one["store_id"] for one in run("lag", "my_group", "--topic", "t", "--json", *address).json]
        assert stores == [0, 0, 1, 1]
        terminal.begin("lag", "my_group", "--watch", *address)
        terminal.wait_for(lambda text: "*2" in text and footnote in text)
        assert terminal.interrupt().status == 0
        tubemq.move_group("single", "alone", 1, 0, 0)
        assert "*" not in run("lag", "single", *address).stdout


def test_entries_of_a_shared_store_count_once() -> None:
    states = [GroupState(Partition(1, "demo", number), 28 * number, 280) for number in range(3)]
    assert [state.lag for state in states] == [10, 9, 8]
    assert total_lag(states) == 10
    assert total_lag([*states, GroupState(Partition(1, "demo", 10_000), 0, 28)]) == 11
    assert total_lag([GroupState(Partition(1, "demo", 0), None, 280)]) == 0


@pytest.mark.parametrize(
    ("values", "bars"), [([], ""), ([0, 0], "▁▁"), ([0, 7], "▁█"), ([7, 7], "██"), (list(range(8)), "▁▂▃▄▅▆▇█")]
)
def test_a_sparkline_has_one_bar_for_each_value(values: list[int], bars: str) -> None:
    assert sparkline(values) == bars


def test_an_unknown_group_is_reported(named: Cluster, run: Run) -> None:
    done = run("lag", "nobody_reads_in_this_group")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no broker has a position of group nobody_reads_in_this_group" in done.stderr
