# SPDX-License-Identifier: Apache-2.0
"""Messages that `consume` prints, and the groups that it leaves alone."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from functools import partial

import pytest

from tests import messages
from tests.cli.conftest import Run, variables_of
from tests.cli.terminal import Terminal
from tests.clocks import SkippingClock
from tests.clusters import Cluster
from tests.waiting import wait_until
from tubemq_spark.client.producer.producer import Producer
from tubemq_spark.compression import compress
from tubemq_spark.protocol.message import COMPRESSION_KEY, encode_attributes, format_msg_time
from tubemq_spark.testing import EmbeddedTubeMQ


def values(lines: list[dict[str, object]]) -> list[object]:
    return [line["value"] for line in lines]


@pytest.fixture
def filled(named: Cluster) -> tuple[str, list[messages.Sent]]:
    """A topic with one partition on each broker, and twenty messages in the first."""
    topic = named.new_topic("one")
    first = messages.partitions(named, topic)[0]
    bodies = [f"message {number}".encode() for number in range(20)]
    return topic, messages.send(named, [(first, body) for body in bodies])[first]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param([], range(20), id="all"),
        pytest.param(["--from", "latest"], [], id="latest"),
        pytest.param(["--from", "-3"], [17, 18, 19], id="last-three"),
        pytest.param(["--from", "168", "--count", "2"], [6, 7], id="position-and-count"),
        pytest.param(["--to", "56"], [0, 1], id="to-position"),
        pytest.param(["--partition", "1:0", "-n", "1"], [0], id="partition"),
    ],
)
def test_a_range_is_printed_as_json(
    filled: tuple[str, list[messages.Sent]], run: Run, arguments: list[str], expected: list[int]
) -> None:
    topic, sent = filled
    done = run("consume", topic, *arguments)
    none = f"tubemq-spark: no message of topic {topic} is in the range\n"
    assert (done.returncode, done.stderr) == (0, "" if expected else none)
    found = [(line["offset"], line["message_id"], line["value"]) for line in done.json]
    assert found == [
        (sent[number].position, sent[number].message_id, sent[number].body.decode()) for number in expected
    ]


def test_a_line_has_all_fields(named: Cluster, run: Run) -> None:
    topic = named.new_topic("one")
    place = messages.partitions(named, topic)[0]
    header = encode_attributes({"site": "north"}, "click", "202611221000")
    (sent,) = messages.send(named, [(place, b"\xff\x00")], attributes=header)[place]
    (line,) = run("consume", topic, "--time-zone", "Asia/Shanghai").json
    assert line == {
        "topic": topic, "broker_id": 1, "partition": 0, "offset": 0, "message_id": sent.message_id,
        "msg_type": "click", "msg_time": "2026-11-22T02:00:00Z", "attributes": {"site": "north"},
        "value_base64": "/wA=",
    }  # fmt: skip


def test_a_time_that_utc_does_not_have_stays_an_attribute(named: Cluster, run: Run) -> None:
    topic = named.new_topic("one")
    place = messages.partitions(named, topic)[0]
    messages.send(named, [(place, b"x")], attributes=encode_attributes(None, None, "000101010000"))
    for command in (["consume", topic], ["find", topic, "--text", "x"]):
        (line,) = run(*command, "--time-zone", "Asia/Shanghai").json
        assert (line["msg_time"], line["attributes"]) == (None, {"$msgTime$": "000101010000"})


def test_a_format_prints_chosen_fields(named: Cluster, run: Run) -> None:
    topic = named.new_topic("three")
    run("produce", topic, "--type", "click", "-a", "site=north", "-p", "1:2", stdin=b"a\nb\n")
    done = run("consume", topic, "--format", r"{partition}\t{attributes.site}\t{msg_type}:{value}|\n")
    assert done.stdout == "2\tnorth\tclick:a|\n2\tnorth\tclick:b|\n"


def test_a_message_that_unpacks_to_too_much_is_corrupt(named: Cluster, run: Run) -> None:
    topic = named.new_topic("one")
    header = encode_attributes(None, "click", None) + f",{COMPRESSION_KEY}=gzip".encode()
    with Producer(messages.settings(named)) as producer:
        producer.send(topic, compress("gzip", b"a" * (65 << 20)), header, "click")
        producer.flush()
    for command in (["consume", topic], ["consume", topic, "--filter", "click"], ["find", topic, "--text", ""]):
        (line,) = run(*command).json
        assert (line["corrupt"], str(64 << 20) in line["problem"]) == (True, True)
    for told in (["consume", topic, "--format", "{value}"], ["find", topic, "--attribute", "x=y"]):
        assert f"message {line['message_id']} is corrupt" in run(*told).stderr
    (line,) = run("consume", topic, "--max-unpacked-bytes", str((1 << 63) - 1)).json  # more than zlib can count
    assert (len(line["value"]), "corrupt" in line) == (65 << 20, False)


def test_text_of_a_peer_commands_no_terminal(named: Cluster, run: Run, terminal: Terminal) -> None:
    topic = named.new_topic("one")
    place = messages.partitions(named, topic)[0]
    evil = "\x1b]0;x\x07\x9b2J\x7f\u202e\u2066\n"
    header = encode_attributes({"site": "\x1b[2J"}, "click", "202611221000")
    messages.send(named, [(place, evil.encode())], attributes=header)
    piped = run("consume", topic)
    assert piped.json[0]["value"] == evil
    assert piped.stdout.removesuffix("\n").isprintable()
    assert run("consume", topic, "--format", "{value}").stdout == evil
    shown = terminal.run("consume", topic, "--format", "{value}{attributes.site}|", variables=variables_of(named))
    assert shown.raw == r"\x1b]0;x\x07\x9b2J\x7f\u202e\u2066\n\x1b[2J|"
    raw = terminal.run("consume", topic, "--format", "{value}", "--raw", variables=variables_of(named))
    assert raw.raw == evil.replace("\n", "\r\n")


def test_only_messages_of_a_type_are_printed(named: Cluster, run: Run) -> None:
    topic = named.new_topic("three")
    for kind in ("click", "view", "click"):
        run("produce", topic, "--type", kind, stdin=kind.encode() + b"\n")
    assert values(run("consume", topic, "--filter", "click").json) == ["click", "click"]


def test_reading_begins_at_a_time(named: Cluster, run: Run) -> None:
    topic = named.new_topic("one")
    now = datetime.now(timezone.utc)
    for age in (60, 30, 0):
        time = format_msg_time(now - timedelta(minutes=age))
        run("produce", topic, "--time", time, "-p", "1:0", stdin=f"{age}\n".encode())
    assert values(run("consume", topic, "--from", "45m").json) == ["30", "0"]
    until = (now - timedelta(minutes=20)).isoformat()
    assert values(run("consume", topic, "--from", "2h", "--to", until).json) == ["60", "30"]


@pytest.mark.parametrize(("place", "expected"), [("2026-01-01T13:00", []), ("-1", ["first"])])
def test_messages_that_come_during_the_search_for_the_range_are_left_out(
    tubemq: EmbeddedTubeMQ, run: Run, place: str, expected: list[str]
) -> None:
    tubemq.create_topic("grows", partitions=1)
    tubemq.send("grows", b"first", msg_time="202601011258")
    come = partial(tubemq.send, "grows", b"early", msg_time="202601011259")
    with tubemq.on("partition_register", client="_look_", times=1).run(come, after=True) as look:
        assert values(run("consume", "grows", "--from", place, "--master", tubemq.master).json) == expected
    assert look.fired


def test_a_group_of_the_users_does_not_move(named: Cluster, run: Run, group: str) -> None:
    topic = named.new_topic("one")
    run("produce", topic, "-p", "1:0", stdin=b"a\nb\nc\n")
    run("offsets", "set", "--create", group, topic, "1:0=28", "--yes")
    assert values(run("consume", topic, "--group", group).json) == ["a", "b", "c"]
    assert values(run("consume", topic, "--group", group, "-n", "1").json) == ["a"]
    # The broker answers with the group's position, which is not moved by that.
    (move,) = run("offsets", "set", "--create", group, topic, "1:0=56", "--yes", "--json").json
    assert (move["old"], move["new"]) == (28, 56)


def test_following_prints_new_messages_until_interrupted(named: Cluster, run: Run, terminal: Terminal) -> None:
    topic = named.new_topic("three")
    run("produce", topic, stdin=b"before\n")
    terminal.begin("consume", topic, "--follow", "--from", "earliest", variables=variables_of(named))
    terminal.wait_for(lambda text: '"value": "before"' in text)
    run("produce", topic, stdin=b"after\n")
    # The whole line, because the terminal shows ^C at the place of its cursor.
    terminal.wait_for(lambda text: '"value": "after"' in text.rpartition("\n")[0])
    done = terminal.interrupt()
    assert done.status == 0
    found = [json.loads(line)["value"] for line in done.text.splitlines() if line.startswith("{")]
    assert found == ["before", "after"]


def test_following_tells_of_a_store_that_became_shorter(tubemq: EmbeddedTubeMQ, terminal: Terminal) -> None:
    tubemq.create_topic("cut", partitions=1)
    for body in (b"one", b"two"):
        tubemq.send("cut", body, partition=0)
    variables = {"TUBEMQ_MASTER": tubemq.master}
    terminal.begin("consume", "cut", "--follow", "--from", "earliest", variables=variables)
    terminal.wait_for(lambda text: '"value": "two"' in text)
    tubemq.crash_broker(1)
    tubemq.start_broker(1)
    terminal.wait_for(lambda text: "the store of 1:cut:0 ends at 0 now, before 56" in text)
    tubemq.send("cut", b"new", partition=0)
    terminal.wait_for(lambda text: '"value": "new"' in text.rpartition("\n")[0])
    assert terminal.interrupt().status == 0


def test_following_finds_new_partitions(tubemq: EmbeddedTubeMQ, terminal: Terminal) -> None:
    tubemq.create_topic("growing", partitions=1)
    terminal.begin("consume", "growing", "--follow", "--refresh", "0.1", variables={"TUBEMQ_MASTER": tubemq.master})
    wait_until(lambda: len(tubemq.claims()) == 1)
    tubemq.create_topic("growing", partitions=2)
    tubemq.send("growing", b"in the new partition", partition=1)
    terminal.wait_for(lambda text: '"value": "in the new partition"' in text.rpartition("\n")[0])
    assert terminal.interrupt().status == 0


@pytest.mark.parametrize("place", ["earliest", "2026-01-01T12:00"])
def test_messages_that_a_broker_delivers_from_files_only_are_waited_for(
    tubemq: EmbeddedTubeMQ, run: Run, skipping_clock: SkippingClock, place: str
) -> None:
    tubemq.create_topic("long", partitions=2, max_msg_size=4 << 20)
    for size in (9, 2 << 20, 9):
        tubemq.send("long", b"x" * size, 0, msg_time="202601011258")
    skipping_clock._on_sleep = lambda _: tubemq.flush("long")
    found = values(run("consume", "long", "--from", place, "--master", tubemq.master).json)
    assert [len(str(value)) for value in found] == [9, 2 << 20, 9]
    assert skipping_clock.pauses


def test_brokers_that_swap_addresses_meanwhile_give_each_message_once(own_tubemq: EmbeddedTubeMQ, run: Run) -> None:
    for number in range(60):
        own_tubemq.send("t", b"%d" % number, f"{1 + number % 3 // 2}:0")

    def swap() -> None:
        for broker_id in (1, 2):
            own_tubemq.stop_broker(broker_id)
        own_tubemq.swap_addresses(1, 2)
        for broker_id in (1, 2):
            own_tubemq.start_broker(broker_id)

    own_tubemq.on("get_message", nth=2, times=1).run(swap)
    done = run("consume", "t")
    assert done.returncode == 0
    assert sorted(map(str, values(done.json))) == sorted(map(str, range(60)))


def test_an_address_of_another_broker_is_an_error(own_tubemq: EmbeddedTubeMQ, run: Run) -> None:
    addresses = f"1={own_tubemq.broker_address(2)},2={own_tubemq.broker_address(1)}"
    own_tubemq.send("t", b"1", "1:0")
    done = run(
        "consume", "t", "--set", f"tubemq.brokers.addresses={addresses}", "--set", "tubemq.retry.maxElapsedMs=500"
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "not broker 1" in done.stderr or "not broker 2" in done.stderr
    assert "check -X brokers.addresses" in done.stderr


def test_a_wrong_topic_is_answered_with_similar_names(named: Cluster, run: Run) -> None:
    """`consume` has no flag for the HTTP API, which lists topics, but the variable names it."""
    topic = named.new_topic("one")
    assert f"did you mean {topic}?" in run("consume", f"{topic}s").stderr
