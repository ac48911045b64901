# SPDX-License-Identifier: Apache-2.0
"""Without Arrow writers in Spark, or in a platform that calls itself Spark, the sink writes row by row."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import Row, datasource
from pyspark.sql.types import StringType, StructType

from tubemq_spark import sink
from tubemq_spark.client import forget_servers
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.sink import writers
from tubemq_spark.testing import EmbeddedTubeMQ

ARROW = {"writer": "DataSourceArrowWriter", "streamWriter": "DataSourceStreamArrowWriter"}
SCHEMA = StructType().add("value", StringType()).add("key", StringType())


@pytest.fixture
def tubemq() -> Iterator[EmbeddedTubeMQ]:
    with EmbeddedTubeMQ({"demo": 1}) as cluster:
        yield cluster
        forget_servers()


def written(tubemq: EmbeddedTubeMQ, make: str) -> type[Any]:
    """Write two rows, and return the class of the writer."""
    source = TubeMQDataSource({"tubemq.master": tubemq.master, "topic": "demo"})
    writer = pickle.loads(pickle.dumps(getattr(source, make)(SCHEMA, False)))
    report = writer.write(iter([Row(value="a", key="k"), Row(value="b", key=None)]))
    arguments = (0,) if make == "streamWriter" else ()
    writer.commit([pickle.loads(pickle.dumps(report))], *arguments)
    assert [message.body for message in tubemq.messages("demo")] == [b"a", b"b"]
    return type(writer)


@pytest.mark.parametrize("make", ARROW)
@pytest.mark.parametrize("missing", [[ARROW["writer"]], [ARROW["streamWriter"]], [*ARROW.values()]], ids=str)
def test_without_arrow_writers_rows_are_written_one_by_one(
    tubemq: EmbeddedTubeMQ, monkeypatch: pytest.MonkeyPatch, make: str, missing: list[str]
) -> None:
    for name in missing:
        monkeypatch.delattr(datasource, name)
    monkeypatch.setattr(sink, "writers", writers)  # the module looks for them when it is imported
    monkeypatch.delitem(sys.modules, writers.__name__)
    if ARROW[make] in missing:
        kind = written(tubemq, make)
        assert "Row" in kind.__name__
    else:
        source = TubeMQDataSource({"tubemq.master": tubemq.master, "topic": "demo"})
        assert isinstance(getattr(source, make)(SCHEMA, False), getattr(datasource, ARROW[make]))
