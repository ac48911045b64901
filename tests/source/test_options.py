"""The source's options: what each may be, what it is without, and how a bad one is refused."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.constants import Framing
from tubemq_spark.protocol.metadata import Address, Partition
from tubemq_spark.source.options import EARLIEST, LATEST, SourceOptions, check_options

REQUIRED = {"tubemq.master": "m1", "tubemq.group": "g", "subscribe": "t"}
PASSWORD = "p4ssw0rd-of-nobody"


def read(streaming: bool = True, /, **given: str) -> SourceOptions:
    """With `tubemq_x_yMs` for `tubemq.x.yMs`."""
    raw = REQUIRED | {name.replace("_", "."): value for name, value in given.items()}
    return SourceOptions.read(raw, streaming=streaming)


def refusal(raw: dict[str, str], streaming: bool = True) -> str:
    with pytest.raises(ConfigError) as caught:
        SourceOptions.read(raw, streaming=streaming)
    return str(caught.value)


@pytest.mark.parametrize(
    ("value_of", "expected"),
    [
        (lambda o: o.client.masters, (Address("m1", 8715),)),
        (lambda o: o.client.credentials, None),
        (lambda o: o.client.rpc_timeout, 10.0),
        (lambda o: o.client.framing, None),
        (lambda o: o.client.retry_for, 60.0),
        (lambda o: o.client.idle_for, 180.0),
        (lambda o: o.claim_timeout, 45.0),
        (lambda o: o.starting, "latest"),
        (lambda o: o.ending, "latest"),
        (lambda o: o.heads_interval, 0.1),
        (lambda o: o.metadata_interval, 30.0),
    ],
)
def test_defaults_are_the_contracts(value_of: Callable[[SourceOptions], object], expected: object) -> None:
    assert value_of(read()) == expected


def test_a_batch_begins_at_the_earliest() -> None:
    assert read(False).starting == "earliest"


@pytest.mark.parametrize(
    ("name", "text", "value_of", "expected"),
    [
        ("tubemq.master", "a:1, b ,c:3", lambda o: o.client.masters, (("a", 1), ("b", 8715), ("c", 3))),
        ("tubemq.rpc.timeoutMs", "100", lambda o: o.client.rpc_timeout, 0.1),
        ("tubemq.rpc.framing", "auto", lambda o: o.client.framing, None),
        ("tubemq.rpc.framing", "Standard", lambda o: o.client.framing, Framing.STANDARD),
        ("tubemq.rpc.framing", "prefixed", lambda o: o.client.framing, Framing.PREFIXED),
        ("tubemq.retry.maxElapsedMs", "0", lambda o: o.client.retry_for, 0.0),
        ("tubemq.connections.idleMs", "1000", lambda o: o.client.idle_for, 1.0),
        ("subscribe", "b, a ,b", lambda o: o.topics, ("b", "a")),
        ("tubemq.group", " g-1 ", lambda o: o.group, "g-1"),
        ("tubemq.claim.timeoutMs", "0", lambda o: o.claim_timeout, 0.0),
        ("startingOffsets", "Earliest", lambda o: o.starting, "earliest"),
        ("startingOffsets", "group", lambda o: o.starting, "group"),
        (
            "startingOffsets",
            '{"t":{"1:0":56,"1:10001":-1},"u":{"2:0":-2}}',
            lambda o: o.starting,
            {Partition(1, "t", 0): 56, Partition(1, "t", 10001): LATEST, Partition(2, "u", 0): EARLIEST},
        ),
        ("headsIntervalMs", "0", lambda o: o.heads_interval, 0.0),
        ("metadataIntervalMs", "100", lambda o: o.metadata_interval, 0.1),
    ],
)
def test_values_in_any_form(
    name: str, text: str, value_of: Callable[[SourceOptions], object], expected: object
) -> None:
    assert value_of(SourceOptions.read(REQUIRED | {name: text}, streaming=True)) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("latest", "latest"), ('{"t":{"1:0":-1}}', {Partition(1, "t", 0): LATEST})]
)
def test_a_batch_may_end_anywhere(text: str, expected: object) -> None:
    assert read(False, endingOffsets=text).ending == expected


def test_keys_come_in_lower_case() -> None:
    raw = {name.lower(): value for name, value in REQUIRED.items()}
    spelled = {"tubemq.rpc.timeoutMs": "7000", "startingOffsets": "group", "headsIntervalMs": "5"}
    lowered = {name.lower(): value for name, value in spelled.items()}
    assert SourceOptions.read(raw | lowered, streaming=True) == SourceOptions.read(raw | spelled, streaming=True)


@pytest.mark.parametrize(
    ("name", "text", "expects"),
    [
        ("tubemq.master", "", "host:port"),
        ("tubemq.master", "m:", "host:port"),
        ("tubemq.master", "m:0", "host:port"),
        ("tubemq.master", "m:65536", "host:port"),
        ("tubemq.master", "m:x", "host:port"),
        ("tubemq.master", "tube://m:1", "host:port"),
        ("tubemq.master", "a:1,,b:2", "host:port"),
        ("tubemq.user", " ", "a user name"),
        ("tubemq.rpc.timeoutMs", "99", "milliseconds, 100 to 600000"),
        ("tubemq.rpc.timeoutMs", "600001", "milliseconds, 100 to 600000"),
        ("tubemq.rpc.timeoutMs", "10s", "milliseconds, 100 to 600000"),
        ("tubemq.rpc.framing", "plain", "auto, standard or prefixed"),
        ("tubemq.retry.maxElapsedMs", "-1", "milliseconds"),
        ("tubemq.retry.maxElapsedMs", "1e3", "milliseconds"),
        ("tubemq.connections.idleMs", "999", "milliseconds, at least 1000"),
        ("tubemq.claim.timeoutMs", "-1", "milliseconds"),
        ("subscribe", "", "topic[,topic…]"),
        ("subscribe", "a,,b", "topic[,topic…]"),
        ("subscribe", "a b", "topic[,topic…]"),
        ("subscribe", "a#b", "topic[,topic…]"),
        ("tubemq.group", "", "a consumer group"),
        ("tubemq.group", "a:b", "a consumer group"),
        ("tubemq.group", "a b", "a consumer group"),
        ("tubemq.group", "g" * 1025, "a consumer group"),
        ("startingOffsets", "newest", "earliest, latest, group or {"),
        ("startingOffsets", "{", "earliest, latest, group or {"),
        ("startingOffsets", "[]", "earliest, latest, group or {"),
        ("startingOffsets", "28", "earliest, latest, group or {"),
        ("startingOffsets", '{"t":28}', "earliest, latest, group or {"),
        ("startingOffsets", '{"t":{"0":28}}', "earliest, latest, group or {"),
        ("startingOffsets", '{"t":{"1:a":28}}', "earliest, latest, group or {"),
        ("startingOffsets", '{"t":{"1:-1":28}}', "earliest, latest, group or {"),
        ("startingOffsets", '{"t":{"1:0":"28"}}', "earliest, latest, group or {"),
        ("startingOffsets", '{"t":{"1:0":28.0}}', "earliest, latest, group or {"),
        ("startingOffsets", '{"t":{"1:0":true}}', "earliest, latest, group or {"),
        ("startingOffsets", '{"t":{"1:0":null}}', "earliest, latest, group or {"),
        ("startingOffsets", '{"t":{"1:0":27}}', "multiples of 28"),
        ("startingOffsets", '{"t":{"1:0":-3}}', "multiples of 28"),
        ("startingOffsets", '{"t":{"1:0":28,"01:0":56}}', "names partition 1:t:0 twice"),
        ("endingOffsets", "earliest", "latest or {"),
        ("endingOffsets", "group", "latest or {"),
        ("endingOffsets", '{"t":{"1:0":-2}}', "latest or {"),
        ("headsIntervalMs", "-1", "milliseconds"),
        ("headsIntervalMs", "", "milliseconds"),
        ("metadataIntervalMs", "99", "milliseconds, at least 100"),
    ],
)
def test_a_bad_value_is_refused(name: str, text: str, expects: str) -> None:
    """Naming option, value and what was expected; on the driver, when the source is loaded."""
    raw = REQUIRED | {name: text}
    problem = refusal(raw, streaming=name != "endingOffsets")
    assert problem.startswith(f"option '{name}' is {text!r}; expected ")
    assert expects in problem
    with pytest.raises(ConfigError) as at_load:
        TubeMQDataSource(raw).schema()
    assert str(at_load.value) == problem


@pytest.mark.parametrize("name", REQUIRED)
def test_a_required_option_is_missed(name: str) -> None:
    raw = {key: value for key, value in REQUIRED.items() if key != name}
    problem = refusal(raw)
    assert problem.startswith(f"option '{name}' is required: ")
    with pytest.raises(ConfigError, match=r"is required: "):
        check_options(raw)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("tubemq.masters", "tubemq.master"),
        ("tubemq.mastre", "tubemq.master"),
        ("TUBEMQ.GRUOP", "tubemq.group"),
        ("tubemq.rpc.timeout", "tubemq.rpc.timeoutMs"),
        ("tubemq.rcp.framing", "tubemq.rpc.framing"),
        ("tubemq.retry.maxelapsed", "tubemq.retry.maxElapsedMs"),
        ("tubemq.passwordfle", "tubemq.passwordFile"),
        ("tubemq.tls.enable", "tubemq.tls.enabled"),
        ("tubemq.subscribe", "subscribe"),
        ("tubemq.startingoffsets", "startingOffsets"),
    ],
)
def test_an_unknown_option_names_the_nearest(given: str, meant: str) -> None:
    assert refusal(REQUIRED | {given: "x"}) == f"option '{given}' is unknown; did you mean '{meant}'?"


def test_other_unknown_options_are_not_ours() -> None:
    assert read(path="x", checkpointLocation="y") == read()


@pytest.mark.parametrize(
    ("name", "default", "other"),
    [
        ("tubemq.connections.shared", "True", "false"),
        ("tubemq.tls.enabled", "false", "true"),
        ("tubemq.tls.ca", None, "ca.pem"),
        ("tubemq.tls.cert", None, "cert.pem"),
        ("tubemq.tls.key", None, "key.pem"),
        ("tubemq.tls.keyPassword", None, PASSWORD),
        ("tubemq.tls.verifyHostname", "true", "false"),
        ("assign", None, '{"t":["1:0"]}'),
        ("filters", None, "a"),
        ("startingTimestamp", None, "0"),
        ("endingTimestamp", None, "0"),
        ("failOnDataLoss", "true", "false"),
        ("maxOffsetsPerTrigger", None, "1000"),
        ("minOffsetsPerTrigger", None, "1000"),
        ("maxTriggerDelay", None, "1m"),
        ("maxPartitionsPerTask", "1", "2"),
        ("commitOffsets", "true", "false"),
        ("pushFilters", "false", "true"),
        ("corruptMessages", "fail", "skip"),
        ("msgTimeZone", "UTC", "Asia/Shanghai"),
        ("messageFormat", "raw", "inlongmsg"),
    ],
)
def test_a_planned_option_is_refused_unless_at_its_default(name: str, default: str | None, other: str) -> None:
    if default is not None:
        assert SourceOptions.read(REQUIRED | {name: default}, streaming=True) == read()
    problem = refusal(REQUIRED | {name: other})
    assert problem.startswith(f"option '{name}' is not available in this release")
    assert "leave it out" in problem
    assert PASSWORD not in problem


def test_a_stream_has_no_end() -> None:
    assert "'endingOffsets' is for batch reads" in refusal(REQUIRED | {"endingOffsets": "latest"})


# Credentials


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\nnot this line\n", encoding="utf-8")
    return file


def test_the_password_comes_from_an_option_or_a_file(password_file: Path) -> None:
    by_option = read(tubemq_user="u", tubemq_password=PASSWORD).client
    by_file = read(tubemq_user="u", tubemq_passwordFile=str(password_file)).client
    assert by_option == by_file
    assert by_option.credentials is not None
    assert (by_option.credentials.user, by_option.credentials.password) == ("u", PASSWORD)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"tubemq.user": "u"}, "option 'tubemq.user' needs 'tubemq.password' or 'tubemq.passwordFile'"),
        ({"tubemq.user": "u", "tubemq.password": ""}, "option 'tubemq.user' needs 'tubemq.password'"),
        ({"tubemq.password": PASSWORD}, "option 'tubemq.user' is required where a password is given"),
        ({"tubemq.passwordFile": "f"}, "option 'tubemq.user' is required where a password is given"),
        ({"tubemq.user": "u", "tubemq.password": PASSWORD, "tubemq.passwordFile": "f"}, "not both"),
        ({"tubemq.user": "u", "tubemq.passwordFile": "/no/such/file"}, "/no/such/file gives no password"),
        ({"tubemq.user": "u", "tubemq.passwordFile": "/dev/null"}, "/dev/null gives no password"),
    ],
)
def test_credentials_that_do_not_fit(given: dict[str, str], problem: str) -> None:
    text = refusal(REQUIRED | given)
    assert problem in text
    assert PASSWORD not in text


def test_the_password_is_in_no_text(password_file: Path) -> None:
    raw = REQUIRED | {"tubemq.user": "u", "tubemq.password": PASSWORD}
    options = SourceOptions.read(raw, streaming=True)
    copy = pickle.loads(pickle.dumps(options))
    assert copy == options
    streamed, batch = TubeMQDataSource(raw).streamReader, TubeMQDataSource(raw).reader
    schema = TubeMQDataSource(raw).schema()
    for shown in (options, options.client, options.client.credentials, copy, streamed(schema), batch(schema)):
        assert PASSWORD not in repr(shown)
        assert PASSWORD not in str(shown)
        assert PASSWORD not in f"{shown}"


@pytest.mark.parametrize("broken", [{"tubemq.rpc.timeoutMs": "x"}, {"tubemq.pasword": PASSWORD}, {"assign": "x"}])
def test_the_password_is_in_no_refusal(broken: dict[str, str]) -> None:
    assert PASSWORD not in refusal(REQUIRED | {"tubemq.user": "u", "tubemq.password": PASSWORD} | broken)
