# SPDX-License-Identifier: Apache-2.0
"""Messages that `find` finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run, variables_of
from tests.cli.terminal import Terminal
from tests.clusters import Cluster


@pytest.fixture
def topic(named: Cluster, run: Run) -> str:
    """Six messages in all partitions, with the attributes `order` 0 to 5 and `site`."""
    name = named.new_topic("three")
    for number in range(6):
        site = "north" if number % 2 else "south"
        run("produce", name, "-a", f"order={number}", "-a", f"site={site}", stdin=f"body {number}\n".encode())
    return name


def test_messages_are_found_by_attributes_text_and_id(topic: str, run: Run) -> None:
    (found,) = run("find", topic, "--attribute", "order=3").json
    assert found["value"] == "body 3"
    assert run("find", topic, "--id", str(found["message_id"])).json == [found]
    assert run("find", topic, "--text", "dy 3", "--since", "10m").json == [found]
    south = run("find", topic, "-a", "site=south").json
    assert sorted(line["value"] for line in south) == ["body 0", "body 2", "body 4"]
    assert len(run("find", topic, "-a", "site=south", "-n", "2").json) == 2


@pytest.mark.parametrize(
    "condition", [["-a", "order=3", "--text", "body 4"], ["--id", "1"], ["-a", "order=1", "--until", "10m"]]
)
def test_nothing_found_is_a_failure(topic: str, run: Run, condition: list[str]) -> None:
    done = run("find", topic, *condition)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"tubemq-spark: no message of topic {topic} matches")


@pytest.mark.parametrize("arguments", [["consume"], ["consume", "--format", "{value} "], ["find", "--text", "body"]])
def test_lines_for_a_file_do_not_go_to_the_terminal(
    named: Cluster, topic: str, run: Run, terminal: Terminal, tmp_path: Path, arguments: list[str]
) -> None:
    """The terminal shows how far the command is; a user copies a topic so."""
    command = [arguments[0], topic, *arguments[1:]]
    file = tmp_path / "found"
    done = terminal.run(*command, variables=variables_of(named), output=file)
    assert (done.status, "reading" in done.text or "searching" in done.text) == (0, True)
    assert "body" not in done.text
    assert sorted(file.read_text()) == sorted(run(*command).stdout)
