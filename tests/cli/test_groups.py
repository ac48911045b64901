"""Groups that the official Java client reads in, seen and left alone by the commands."""

from __future__ import annotations

import pytest

from tests import messages
from tests.cli.conftest import Run
from tests.clusters import Cluster
from tests.interop.java_client import JavaClient
from tests.waiting import wait_until


@pytest.mark.real
@pytest.mark.thorough
def test_the_lag_of_a_java_consumer_is_shown_and_its_group_is_not_moved(named: Cluster, run: Run, group: str) -> None:
    topic = named.new_topic("one")
    places = messages.partitions(named, topic)
    messages.send(named, messages.numbered(places, 10))
    with JavaClient(named.master, named.framing).member(topic, group) as member:
        member.wait_until(lambda received: len(received) == 10)

        def is_read() -> bool:
            found = run("lag", group, "--json").json if run("lag", group).returncode == 0 else []
            return len(found) == 2 and all(line["lag"] == 0 and line["holder"] == member.client_id for line in found)

        wait_until(is_read)
        for command in (["reset", group, topic, "--to", "earliest"], ["set", group, topic, "1:0=0"]):
            done = run("offsets", *command, "--yes")
            assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1), done
            assert f"group {group} is in use" in done.stderr
        assert is_read()
