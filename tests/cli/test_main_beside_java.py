# SPDX-License-Identifier: Apache-2.0
"""Commands beside the official Java client, on the embedded and on a real server."""

from __future__ import annotations

from collections import Counter

import pytest

from tests import messages
from tests.cli.conftest import Run
from tests.clusters import Cluster
from tests.interop.java_client import JavaClient, Outgoing, java_client
from tests.waiting import wait_until

pytestmark = pytest.mark.thorough
COUNT = 20


@pytest.fixture
def java(named: Cluster) -> JavaClient:
    return java_client(named.master, named.framing)


def test_consume_prints_what_a_java_producer_sent(named: Cluster, java: JavaClient, run: Run) -> None:
    topic = named.new_topic("three")
    sent = [
        Outgoing(b"from Java %d" % number, {"site": f"s{number}"}, "click", "202611221000") for number in range(COUNT)
    ]
    receipts = java.produce(topic, sent)
    found = {
        (line["value"], line["message_id"], line["attributes"]["site"], line["msg_type"], line["msg_time"])
        for line in run("consume", topic).json
    }
    assert found == {
        (one.body.decode(), receipt.message_id, f"s{number}", "click", "2026-11-22T10:00:00Z")
        for number, (one, receipt) in enumerate(zip(sent, receipts, strict=True))
    }


def test_a_java_consumer_reads_what_produce_sent(named: Cluster, java: JavaClient, run: Run, group: str) -> None:
    topic = named.new_topic("three")
    lines = [b"from the command line %d" % number for number in range(COUNT)]
    done = run("produce", topic, "--type", "click", "-a", "site=north", stdin=b"\n".join(lines) + b"\n")
    assert done.returncode == 0
    received = java.consume(topic, group, count=COUNT)
    assert Counter(message.body for message in received) == Counter(lines)
    assert {(message.attributes or {})["site"] for message in received} == {"north"}


def test_the_group_of_a_java_consumer_is_shown_and_moved_only_when_idle(
    named: Cluster, java: JavaClient, run: Run, group: str
) -> None:
    topic = named.new_topic("one")
    places = messages.partitions(named, topic)
    bodies = Counter(
        one.body for sent in messages.send(named, messages.numbered(places, 5 * len(places))).values() for one in sent
    )

    with java.member(topic, group, timeout=300) as member:
        member.wait_until(lambda received: len(received) == bodies.total())

        def is_read_to_the_end() -> bool:  # release 2.5 shows a new group after some seconds
            shown = run("lag", group, "--json").json
            return [(one["lag"], one["holder"]) for one in shown] == [(0, member.client_id)] * len(places)

        wait_until(is_read_to_the_end)
        for command in (["reset", group, topic, "--to", "earliest"], ["set", group, topic, "1:0=0"]):
            refused = run("offsets", *command, "--yes")
            assert (refused.returncode, refused.stdout, len(refused.stderr.splitlines())) == (1, "", 1)
            assert f"group {group} is in use" in refused.stderr
        member.leave()

    wait_until(lambda: run("offsets", "reset", group, topic, "--to", "earliest", "--yes").returncode == 0)
    wait_until(lambda: {one["lag"] for one in run("lag", group, "--json").json} == {5})
    again = java.consume(topic, group, count=bodies.total())
    assert Counter(message.body for message in again) == bodies
