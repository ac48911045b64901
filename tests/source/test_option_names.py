"""Names of options that are none of the source's: which are refused, and what the user is told."""

from __future__ import annotations

import re

import pytest

from tests.source.test_options import REQUIRED, read, refusal
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.errors import ConfigError
from tubemq_spark.source.options import SourceOptions


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
        # without the prefix
        ("startingOffset", "startingOffsets"),
        ("startingoffset", "startingOffsets"),
        ("startOffset", "startingOffsets"),
        ("endingOffset", "endingOffsets"),
        ("startingTimestamps", "startingTimestamp"),
        ("subscrib", "subscribe"),
        ("subscribed", "subscribe"),
        ("filter", "filters"),
        ("failOnDataLos", "failOnDataLoss"),
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("maxPartitionPerTask", "maxPartitionsPerTask"),
        ("commitOffset", "commitOffsets"),
        ("pushFilter", "pushFilters"),
        ("corruptMessage", "corruptMessages"),
        ("headsInterval", "headsIntervalMs"),
        ("metadataInterval", "metadataIntervalMs"),
        ("master", "tubemq.master"),
        ("group", "tubemq.group"),
        ("user", "tubemq.user"),
        ("password", "tubemq.password"),
    ],
)
def test_an_unknown_option_names_the_nearest(given: str, meant: str) -> None:
    problem = refusal(REQUIRED | {given: "x"})
    assert problem == f"option '{given}' is unknown; did you mean '{meant}'?"
    with pytest.raises(ConfigError, match=re.escape(problem)):
        TubeMQDataSource(REQUIRED | {given: "x"}).schema()


@pytest.mark.parametrize(
    ("given", "instead"),
    [
        ("subscribePattern", "name the topics in option 'subscribe'"),
        ("startingOffsetsByTimestamp", "use option 'startingTimestamp'"),
        ("endingOffsetsByTimestamp", "use option 'endingTimestamp'"),
        ("startingOffsetsByTimestampStrategy", "reading starts at the latest"),
        ("groupIdPrefix", "use option 'tubemq.group'"),
        ("minPartitions", "a TubeMQ partition cannot be split"),
        ("maxRecordsPerPartition", "a TubeMQ partition cannot be split"),
        ("includeHeaders", "the column 'attributes' is always there"),
        ("kafka.bootstrap.servers", "TubeMQ's client has options 'tubemq.…'"),
        ("kafka.group.id", "TubeMQ's client has options 'tubemq.…'"),
    ],
)
def test_options_of_sparks_kafka_source_say_what_to_do_here(given: str, instead: str) -> None:
    for key in (given, given.lower()):
        problem = refusal(REQUIRED | {key: "x"})
        assert problem.startswith(f"option '{key}' is of Spark's Kafka source")
        assert instead in problem


@pytest.mark.parametrize(
    "name",
    [
        # What Spark itself hands on.
        "path", "checkpointLocation", "mode", "numPartitions", "queryName", "outputMode",
        # Of other sources and sinks, when a program has one set of options for all.
        "header", "inferSchema", "mergeSchema", "sep", "encoding", "dateFormat", "timestampFormat", "multiLine",
        "recursiveFileLookup", "maxBytesPerTrigger", "maxFileAge", "latestFirst", "rowsPerSecond", "compression",
        "url", "dbtable", "query", "driver", "partitionColumn", "fetchsize", "batchsize",
        "startingVersion", "ignoreChanges", "skipChangeCommits", "startingPosition",
        # Of our sink.
        "topic", "tubemq.producer.maxInFlight", "failedRows", "deadLetterTopic", "stampRows", "effectivelyOnce",
        "receipts",
    ],
)  # fmt: skip
def test_other_names_are_not_ours_to_refuse(name: str) -> None:
    for key in (name, name.lower()):
        assert SourceOptions.read(REQUIRED | {key: "x"}, streaming=True) == read()
