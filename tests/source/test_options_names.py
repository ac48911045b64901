# SPDX-License-Identifier: Apache-2.0
"""Option names that the source does not have: which are refused, and with which error."""

from __future__ import annotations

import re

import pytest

from tests.source.test_options import REQUIRED, read, refusal
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.errors import ConfigError
from tubemq_spark.option_definition import _KAFKA_OPTIONS
from tubemq_spark.sink.options import SINK_OPTIONS
from tubemq_spark.source.options import SOURCE_OPTIONS, SourceOptions


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("tubemq.masters", "tubemq.master"),
        ("TUBEMQ.GRUOP", "tubemq.group"),
        ("tubemq.rpc.timeout", "tubemq.rpc.timeoutMs"),
        ("tubemq.retry.maxelapsed", "tubemq.retry.maxElapsedMs"),
        ("tubemq.passwordfle", "tubemq.passwordFile"),
        ("tubemq.subscribe", "subscribe"),
        ("tube.master", "tubemq.master"),
        ("tubemq.startingoffsets", "startingOffsets"),
        # without the prefix
        ("startingOffset", "startingOffsets"),
        ("startOffset", "startingOffsets"),
        ("subscribed", "subscribe"),
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("commitOffset", "commitOffsets"),
        ("headsInterval", "headsIntervalMs"),
        ("master", "tubemq.master"),
        ("group", "tubemq.group"),
        ("offsets", "endingOffsets"),
        ("password", "tubemq.password"),
    ],
)
def test_unknown_option_suggests_the_nearest_name(given: str, meant: str) -> None:
    problem = refusal(REQUIRED | {given: "x"})
    assert problem == f"option '{given}' is unknown; did you mean '{meant}'?"
    with pytest.raises(ConfigError, match=re.escape(problem)):
        TubeMQDataSource(REQUIRED | {given: "x"}).schema()


@pytest.mark.parametrize(
    ("given", "instead"),
    [
        ("groupIdPrefix", "use option 'tubemq.group'"),
        ("minPartitions", "a TubeMQ partition cannot be split"),
        ("maxRecordsPerPartition", "a TubeMQ partition cannot be split"),
        ("includeHeaders", "the column 'attributes' is always there"),
        ("kafkaConsumer.pollTimeoutMs", "use option 'tubemq.rpc.timeoutMs'"),
        ("fetchOffset.numRetries", "use option 'tubemq.retry.maxElapsedMs'"),
        ("kafka.bootstrap.servers", "use option 'tubemq.master'"),
        ("kafka.group.id", "use option 'tubemq.group'"),
        ("kafka.ssl.truststore.location", "use option 'tubemq.tls.ca'"),
        ("kafka.fetch.min.bytes", "TubeMQ's client has options 'tubemq.…'"),
    ],
)
def test_kafka_options_name_the_tubemq_option(given: str, instead: str) -> None:
    for key in (given, given.lower()):
        problem = refusal(REQUIRED | {key: "x"})
        assert problem.startswith(f"option '{given}' belongs to Spark's Kafka connector")
        assert instead in problem


def test_suggested_options_exist() -> None:
    known = {option.name for option in (*SOURCE_OPTIONS, *SINK_OPTIONS)}
    for hint in _KAFKA_OPTIONS.values():
        assert set(re.findall(r"option '([^']*)'|options '([^']*)'", hint)) <= {(name, "") for name in known} | {
            ("", name) for name in known
        }


@pytest.mark.parametrize(
    "name",
    [
        # Options that Spark itself passes.
        "checkpointLocation", "mode", "numPartitions", "queryName", "outputMode",
        "owner", "provider", "option.subscribe", "option.tubemq.group", "spark.sql.x", "__of_a_platform",
        # Options of our sink.
        "topic", "tubemq.producer.maxInFlight", "failedRows", "deadLetterTopic", "stampRows", "effectivelyOnce",
        "receipts",
    ],
)  # fmt: skip
def test_options_of_other_namespaces_are_accepted(name: str) -> None:
    for key in (name, name.lower()):
        assert SourceOptions.read(REQUIRED | {key: "x"}, streaming=True) == read()
        TubeMQDataSource(REQUIRED | {key: "x"}).schema()


@pytest.mark.parametrize("name", ["path", "paths"])
def test_a_path_of_load_is_refused(name: str) -> None:
    assert refusal(REQUIRED | {name: "x"}).startswith(f"option '{name}' is set, but TubeMQ has topics, no paths")


@pytest.mark.parametrize(
    "name",
    [
        *("header", "inferSchema", "url", "startingPosition", "ignoreChanges", "rowsPerSecond"),
        *("service.url", "pulsar.admin.x", "tubemq.nothing"),
    ],
)
def test_options_of_other_sources_are_refused(name: str) -> None:
    """A user who sets one expects an effect."""
    problem = refusal(REQUIRED | {name: "x"})
    assert problem.startswith(f"option '{name}' is unknown")
    assert problem.endswith(("did you mean 'startingOffsets'?", "or look for its name in docs/options.md"))
