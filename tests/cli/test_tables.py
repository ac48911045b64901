# SPDX-License-Identifier: Apache-2.0
"""Tables on terminals: narrow ones show fewer columns, and no cell is cut."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from tests import messages
from tests.cli.conftest import variables_of
from tests.cli.terminal import Output, open_terminal
from tests.clusters.embedded import EmbeddedCluster
from tubemq_spark.cli.reading import GroupMember
from tubemq_spark.testing import EmbeddedTubeMQ, ServerConfig

TOPIC = "a_topic_with_quite_a_long_name"
OTHER = "another_topic_with_a_long_name"
Shown = Callable[..., Output]


@pytest.fixture
def shown(own_tubemq: EmbeddedTubeMQ) -> Iterator[Shown]:
    """Runs a command in a terminal of 80 columns."""
    for topic in (TOPIC, OTHER):
        own_tubemq.create_topic(topic, 1)
        own_tubemq.move_group("my_group", topic, 1, 0, 0)
        own_tubemq.move_group("my_group", topic, 2, 0, 0)
    with open_terminal(width=80) as terminal:
        yield lambda *command: terminal.run(*command, variables=variables_of(own_tubemq))


def test_lag_keeps_the_ids_of_partitions_and_clients(own_tubemq: EmbeddedTubeMQ, shown: Shown) -> None:
    whole = shown("lag", "my_group").text
    assert re.search(r"^partition +position +end +lag +client$", whole, re.MULTILINE)
    settings = messages.settings(EmbeddedCluster(own_tubemq, ServerConfig()))
    with GroupMember(settings, "my_group", "t") as member:
        claim = str(member.claims.claim)
        narrow = shown("lag", "my_group", "--topic", "t").text
        assert re.search(rf"^1:t:0 +0 +0  {re.escape(claim)}$", narrow, re.MULTILINE), narrow
        very_narrow = shown("lag", "my_group").text
        assert re.search(rf"^1:{TOPIC}:0 +0 +0 +0$", very_narrow, re.MULTILINE), very_narrow
        assert "tubemq-spark: the terminal is too narrow for client: widen it, or use --json" in very_narrow


def test_lists_are_wrapped_between_names(own_tubemq: EmbeddedTubeMQ, shown: Shown) -> None:
    groups = shown("groups", "list").text
    assert re.search(rf"^my_group  {TOPIC},.*\n +{OTHER}", groups, re.MULTILINE), groups
    assert "too narrow" not in groups


def test_a_topic_is_described_without_addresses(own_tubemq: EmbeddedTubeMQ, shown: Shown) -> None:
    described = shown("topics", "describe", "t")
    assert described.status == 0
    assert all(len(line.rstrip()) <= 80 for line in described.text.splitlines())
    assert re.search(r"^ +1 +127\.0\.0\.1:\d+ +1 +1 +.*delete,168h +yes *$", described.text, re.MULTILINE), (
        described.text
    )


def test_a_table_that_does_not_fit_has_whole_lines(own_tubemq: EmbeddedTubeMQ, shown: Shown) -> None:
    name = "x" * 60
    own_tubemq.create_topic(name, 1)
    own_tubemq.send(name, b"a", "1:0")
    done = shown("offsets", "reset", "new_group", name, "--to", "latest", "--create", "--yes")
    assert re.search(rf"^1:{name}:0    0   28  \+1$", done.text, re.MULTILINE), done.text
