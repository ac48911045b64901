# SPDX-License-Identifier: Apache-2.0
"""Spark runs the examples of the documentation on messages that the sink has written."""

from __future__ import annotations

import ast
import re
import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.clusters import Cluster
from tests.stored import stored_in
from tests.without_spark.sink import Task, Writing, bodies, own, save, schema

DOCS = Path(__file__).parents[2] / "docs"


def lines_of(page: str, word: str) -> str:
    """Return the page's first block of Python code with this word."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    found: str = next(block for block in blocks if word in block)
    return found


def run(lines: str, **names: Any) -> Any:
    """Run `lines`, and return the value of the last one."""
    *statements, last = ast.parse(lines).body
    assert isinstance(last, ast.Expr)
    exec(compile(ast.Module(statements, []), "documentation", "exec"), names)
    return eval(compile(ast.Expression(last.value), "documentation", "eval"), names)


def shared(cluster: Cluster, **others: str) -> dict[str, str]:
    group = f"docs_{uuid.uuid4().hex[:12]}"
    return {"tubemq.master": cluster.master, "tubemq.rpc.framing": cluster.framing, "tubemq.group": group, **others}


@pytest.mark.sink_option("stampRows")
def test_the_example_drops_copies(cluster: Cluster, demo: str, spark: SparkSession) -> None:
    """The copies come from a second attempt of a task and from a replayed batch. Equal rows stay."""
    rows = [{"value": b"%d" % (n // 2)} for n in range(20)]
    writing = Writing(cluster, schema(rows), demo, streaming=True, stampRows=True)
    task = Task()
    writing.write(rows[:13], task)
    writing.write(rows, task.again())
    writing.write(rows, task.restarted())
    left = run(lines_of("sink.md", "dropDuplicates"), spark=spark, options=shared(cluster, subscribe=demo))
    assert sorted(bytes(row["value"]) for row in left.collect()) == sorted(row["value"] for row in rows)
    assert len(bodies(cluster, demo)) == 53


@pytest.mark.sink_option("failedRows", "deadLetterTopic")
def test_the_example_restores_dead_letters(cluster: Cluster, demo: str, spark: SparkSession) -> None:
    """The rows come back complete."""
    dead = cluster.new_topic("one")
    rows: list[dict[str, Any]] = [
        {
            "value": b"%d" % n,
            "msg_type": " news" if n % 3 == 0 else "news",
            "msg_time": "202611210830",
            "attributes": {"n": str(n), "city": "Zürich"},
            "key": b"key",
        }
        for n in range(20)
    ]
    written = save(cluster, rows, demo, failedRows="deadLetter", deadLetterTopic=dead)
    assert written.dead_letters == 7
    assert len(bodies(cluster, demo)) == 13
    lines = lines_of("dead-letters.md", "restore(dead)").replace('"dead_letters"', repr(dead))
    run(lines, spark=spark, tubemq=shared(cluster, startingOffsets="earliest"))
    stored = stored_in(cluster, demo, filters=["news"])
    assert {message.body: own(message) for message in stored} == {row["value"]: row["attributes"] for row in rows}
    assert len(stored) == 20
    assert {message.attributes.msg_time for message in stored} == {1_795_249_800_000_000}
    assert len({message.partition for message in stored}) == 1
