from __future__ import annotations

import pickle

import pytest

from tubemq_spark.errors import ConfigError
from tubemq_spark.sink.options import SinkOptions

MASTER = {"tubemq.master": "127.0.0.1:8715"}


def test_defaults() -> None:
    options = SinkOptions.from_options(MASTER)
    assert (options.topic, options.max_in_flight) == (None, 1000)


@pytest.mark.parametrize(
    "others",
    [
        {"checkpointlocation": "/tmp/here", "path": "x"},
        {"tubemq.group": "g", "tubemq.claim.timeoutms": "1000", "subscribe": "a", "startingoffsets": "earliest"},
        {"failedrows": "FAIL", "stamprows": "false", "effectivelyonce": "False", "messageformat": "raw"},
        {"compression": "none"},
    ],
    ids=lambda others: next(iter(others)),
)
def test_options_that_change_nothing(others: dict[str, str]) -> None:
    assert SinkOptions.from_options({**MASTER, **others}) == SinkOptions.from_options(MASTER)


def test_options_that_count() -> None:
    options = SinkOptions.from_options({**MASTER, "topic": " demo ", "tubemq.producer.maxinflight": "5"})
    assert (options.topic, options.max_in_flight) == ("demo", 5)


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        ({"topic": "demo"}, r"'tubemq\.master' is required: host:port"),
        ({**MASTER, "topic": " "}, "'topic' is ' '; expected the name of a topic"),
        (
            {**MASTER, "tubemq.producer.maxInFlight": "0"},
            "'tubemq.producer.maxInFlight' is '0'; expected a number, 1 to 1000000",
        ),
        ({**MASTER, "tubemq.producer.maxInFlight": "many"}, "'many'; expected a number, 1 to 1000000"),
        ({**MASTER, "tubemq.producer.maxFlight": "1"}, "unknown; did you mean 'tubemq.producer.maxInFlight'"),
        ({**MASTER, "tubemq.tls.ca": "ca.pem"}, r"'tubemq\.tls\.ca' .*'tubemq\.tls\.enabled'"),
        ({**MASTER, "topics": "demo"}, "option 'topics' is unknown; did you mean 'topic'"),
        ({**MASTER, "kafka.bootstrap.servers": "m"}, "is of Spark's Kafka source"),
        ({**MASTER, "failedRows": "drop"}, "'failedRows' is not available in this release"),
        ({**MASTER, "deadLetterTopic": "dead"}, "'deadLetterTopic' is not available in this release"),
        ({**MASTER, "stampRows": "true"}, "'stampRows' is not available in this release"),
        ({**MASTER, "effectivelyOnce": "true"}, "'effectivelyOnce' is not available in this release"),
        ({**MASTER, "receipts": "/somewhere"}, "'receipts' is not available in this release"),
        ({**MASTER, "messageFormat": "inlongmsg"}, "'messageFormat' is not available in this release"),
        ({**MASTER, "compression": "gzip"}, "'compression' is not available in this release"),
    ],
    ids=lambda value: list(value)[-1] if isinstance(value, dict) else None,
)
def test_options_that_cannot_be_used(raw: dict[str, str], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        SinkOptions.from_options(raw)


def test_the_password_travels_but_does_not_show() -> None:
    options = SinkOptions.from_options({**MASTER, "tubemq.user": "me", "tubemq.password": "geheim"})
    assert "geheim" not in repr(options)
    assert pickle.loads(pickle.dumps(options)) == options
