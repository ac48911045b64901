# SPDX-License-Identifier: Apache-2.0
"""README.md names what exists, and its code does what the text says."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.documentation.pages import ROOT, RUN, Shell, blocks
from tests.documentation.preparations import ADDRESS
from tests.matrix.queries import wait_for
from tubemq_spark.client import forget_servers
from tubemq_spark.columns import COLUMNS
from tubemq_spark.sink.options import SINK_OPTIONS
from tubemq_spark.source.options import SOURCE_OPTIONS
from tubemq_spark.testing import EmbeddedTubeMQ

README = (ROOT / "README.md").read_text(encoding="utf-8")


def targets(text: str) -> list[str]:
    """Return where the links and pictures of a page lead, without those to other sites."""
    return [target for target in re.findall(r"\]\(([^)\s#]+)", text) if not re.match(r"[a-z]+:", target)]


def test_the_links_of_the_readme_lead_to_files() -> None:
    assert [target for target in targets(README) if not (ROOT / target).is_file()] == []


@pytest.mark.parametrize(
    ("head", "known"),
    [
        ("option | default", {option.name for option in (*SOURCE_OPTIONS, *SINK_OPTIONS)}),
        ("column | type", {column.name for column in COLUMNS}),
    ],
)
def test_the_options_and_columns_of_the_guide_exist(head: str, known: set[str]) -> None:
    guide = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    tables = re.findall(rf"^\| {re.escape(head)} .*\n\|-.*\n((?:\|.*\n)+)", guide, re.MULTILINE)
    rows = [row.split("|")[1] for table in tables for row in table.splitlines()]
    names = {name for row in rows for name in re.findall(r"`(.+?)`", row)}
    assert len(names) > 8
    assert names <= known


def test_the_readme_names_the_two_commands_of_a_clone() -> None:
    """One runs the main job, one passes the tests. Each says how long it takes."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (block,) = [block for block in blocks("README.md") if "make demo" in block.code]
    for target in ("demo", "test"):
        assert re.search(rf"^make {target}  # .*minute", block.code, re.MULTILINE)
        assert re.search(rf"^{target}: .*## ", makefile, re.MULTILINE)


@pytest.fixture
def tubemq(spark: SparkSession) -> Iterator[EmbeddedTubeMQ]:
    with EmbeddedTubeMQ({"clicks": 3, "numbers": 3}) as cluster:
        yield cluster
        for query in spark.streams.active:
            query.stop()
        forget_servers()


def test_all_examples_of_the_readme_run(spark: SparkSession, tubemq: EmbeddedTubeMQ, tmp_path: Path) -> None:
    shell = Shell("README.md", spark, tmp_path, {ADDRESS: tubemq.master})
    sent: Counter[tuple[str, str]] = Counter()

    def send(body: str, msg_type: str) -> None:
        tubemq.send("clicks", body.encode(), attributes={"customer": "c"}, msg_type=msg_type)
        sent[body, msg_type] += 1

    def in_the_lake() -> Counter[tuple[str, str]]:
        folder = tmp_path / "clicks"
        if not (folder / "_spark_metadata" / "0").exists():  # until then a file may be there without its rows
            return Counter()
        rows = spark.read.parquet(str(folder)).collect()
        assert all(row.attributes == {"customer": "c"} for row in rows)
        return Counter((row.value, row.msg_type) for row in rows)

    send("1", "click")
    send("2", "order")
    for block in blocks("README.md"):
        if block.language in RUN:
            shell.paste(block)
    send("3", "click")
    query = shell.names["query"]
    wait_for(lambda: in_the_lake() == sent, "the rows of the first example", query)
    assert query.exception() is None

    assert [result for result in shell.names["results"] if result.state == "failed"] == []

    numbers = {int(message.body): message.partition for message in tubemq.messages("numbers")}
    assert len(tubemq.messages("numbers")) == len(numbers) == 100
    assert all(numbers[number] == numbers[number % 10] for number in numbers)
