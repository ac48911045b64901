# SPDX-License-Identifier: Apache-2.0
"""Arrow arrays of tasks equal those of `pyarrow.array`, and tasks do not import pandas."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tubemq_spark.source import arrow_arrays
from tubemq_spark.source.schema import ATTRIBUTES, TIMESTAMP

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
INTS = st.integers(-(2**31), 2**31 - 1)
TIMES = st.integers(-(10**15), 10**15)


def lists(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.none() | values, max_size=40)


def list_arrays(values: Sequence[Any]) -> pa.Array:
    inside = arrow_arrays.numbers([one for value in values for one in value or ()], pa.int32())
    return arrow_arrays.lists(inside, [None if value is None else len(value) for value in values])


@pytest.mark.parametrize(
    ("values", "made", "kind"),
    [
        (lists(INTS), lambda values: arrow_arrays.numbers(values, pa.int32()), pa.int32()),
        (lists(TIMES), lambda values: arrow_arrays.numbers(values, pa.int64()), pa.int64()),
        (lists(TIMES), lambda values: arrow_arrays.numbers(values, TIMESTAMP), TIMESTAMP),
        (st.lists(st.booleans(), max_size=40), arrow_arrays.booleans, pa.bool_()),
        (lists(TEXTS), arrow_arrays.texts, pa.string()),
        (lists(st.binary(max_size=5)), arrow_arrays.binaries, pa.binary()),
        (
            lists(st.dictionaries(TEXTS, TEXTS, max_size=3)),
            lambda values: arrow_arrays.maps(values, ATTRIBUTES),
            ATTRIBUTES,
        ),
        (lists(st.lists(INTS, max_size=3)), list_arrays, pa.list_(pa.int32())),
    ],
    ids=["int32", "int64", "moments", "booleans", "texts", "binaries", "maps", "lists"],
)
def test_arrays_are_those_of_pyarrow(
    values: st.SearchStrategy[Sequence[Any]], made: Callable[[Sequence[Any]], pa.Array], kind: pa.DataType
) -> None:
    @given(values)
    def compare(some: Sequence[Any]) -> None:
        found = made(some)
        found.validate(full=True)
        plain = [list(one.items()) if isinstance(one, dict) else one for one in some]
        assert found.equals(pa.array(plain, kind))

    compare()


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 1000])
def test_repeated_elements(count: int) -> None:
    assert arrow_arrays.repeated(arrow_arrays.texts(["clicks"]), count).to_pylist() == ["clicks"] * count


READ = """
import sys
from pyspark import worker  # what a task's process has loaded before
from tests.inlong_packs import pack_grouped
from tubemq_spark.client.consumer import broker_requests
from tubemq_spark.source.batch import plan_batch
from tubemq_spark.source.options import SourceOptions
from tubemq_spark.testing import EmbeddedTubeMQ

columns_from, message_format, filters = int(sys.argv[1]), sys.argv[2], sys.argv[3]
broker_requests.COLUMNS_FROM = columns_from
with EmbeddedTubeMQ({"clicks": 2}) as tubemq:
    pack = pack_grouped(1, [("groupId=g&k=v", b"first"), ("", b"second")], False)
    for number in range(6):
        tubemq.send("clicks", pack, number % 2, attributes={"k": "v"} if number < 3 else None, msg_type="a")
    options = {"tubemq.master": tubemq.master, "tubemq.group": "g1", "subscribe": "clicks",
               "messageFormat": message_format, "corruptMessages": "keep"}
    if filters:
        options["filters"] = filters
    planned = plan_batch(SourceOptions.read(options, streaming=False))
    rows = sum(batch.num_rows for task in planned for batch in task.read())
assert rows == (6 if message_format == "raw" else 12), rows
print("pandas" in sys.modules)
"""


@pytest.mark.parametrize("columns_from", [0, 1 << 30], ids=["columns", "parser"])
@pytest.mark.parametrize(("message_format", "filters"), [("raw", ""), ("raw", "a"), ("inlongmsg", ""), ("inlong", "")])
def test_tasks_do_not_import_pandas(columns_from: int, message_format: str, filters: str) -> None:
    command = [sys.executable, "-c", READ, str(columns_from), message_format, filters]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False"]
