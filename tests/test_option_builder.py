# SPDX-License-Identifier: Apache-2.0
"""Tests of the option builder: it knows each option, makes texts that the options accept, and mypy finds wrong types.

`tests/test_options_covered.py` fails if the generated module is out of date.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

import tubemq_spark
from tubemq_spark import sink_options, source_options
from tubemq_spark.option_definition import Option
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.sink.options import SINK_OPTIONS, SinkOptions
from tubemq_spark.source.options import SOURCE_OPTIONS, SourceOptions

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("build", "options"), [(source_options, SOURCE_OPTIONS), (sink_options, SINK_OPTIONS)], ids=["source", "sink"]
)
def test_has_a_keyword_for_each_option(build: Callable[..., dict[str, str]], options: tuple[Option[Any], ...]) -> None:
    parameters = inspect.signature(build).parameters
    built = build(**{name: name for name in parameters})
    assert built.keys() == {option.name for option in options}


def test_leaves_out_what_is_not_given() -> None:
    assert source_options(master="m", group="g1", user=None) == {"tubemq.master": "m", "tubemq.group": "g1"}


def test_the_source_understands_each_type() -> None:
    moment = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)
    built = source_options(
        master=["one:1", "two:2"],
        group="g1",
        subscribe=["a", "b"],
        starting_offsets={"a": {"1:0": 28}, "b": "latest"},
        starting_timestamp=moment,
        filters={"a": ["x", "y"]},
        fail_on_data_loss=False,
        max_offsets_per_trigger=5,
        max_trigger_delay="2m",
    )
    read = SourceOptions.read(built, streaming=True)
    assert [str(address) for address in read.client.masters] == ["one:1", "two:2"]
    assert read.topics == ("a", "b")
    assert read.starting.place == moment
    only = {name: text for name, text in built.items() if name != "startingTimestamp"}
    starting = SourceOptions.read(only, streaming=True).starting
    assert (starting.partitions, starting.topics) == ({Partition(1, "a", 0): 28}, {"b": "latest"})
    assert read.filters == {"a": ("x", "y")}
    assert (read.loss_policy.fail, read.max_offsets, read.max_delay) == (False, 5, 120.0)


def test_the_source_understands_assigned_partitions_and_several_types() -> None:
    read = SourceOptions.read(
        source_options(master="m", group="g1", assign={"a": ["1:0", "1:1"]}, filters=["x", "y"]), streaming=False
    )
    assert read.assigned == frozenset({Partition(1, "a", 0), Partition(1, "a", 1)})
    assert read.filters == {"a": ("x", "y")}


def test_the_sink_understands_each_type() -> None:
    built = sink_options(
        master="m", topic="t", stamp_rows=True, failed_rows="deadLetter", dead_letter_topic="d", compression="gzip"
    )
    read = SinkOptions.from_options(built)
    assert (read.topic, read.stamp_rows, read.failed_rows) == ("t", True, "deadletter")
    assert (read.dead_letter_topic, read.compression) == ("d", "gzip")


def test_the_package_offers_both() -> None:
    assert {"source_options", "sink_options"} <= set(tubemq_spark.__all__)


WRONG = {
    'source_options(master="m", group="g1", fail_on_data_loss="no")': "arg-type",
    'source_options(master="m", group="g1", starting_offsets="erliest")': "arg-type",
    'source_options(master="m", group="g1", max_offsets_per_trigger="5")': "arg-type",
    'source_options(master="m", group="g1", subscrib="t")': "call-arg",
    'source_options(master="m")': "call-arg",
    'sink_options(master="m", failed_rows="ignore")': "arg-type",
}


def test_mypy_finds_wrong_types_and_names(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    lines = ["from tubemq_spark.option_builder import sink_options, source_options", *WRONG]
    lines.append('source_options(master="m", group="g1", starting_offsets="earliest", fail_on_data_loss=False)')
    file.write_text("\n".join(lines) + "\n")
    command = [sys.executable, "-m", "mypy", "--hide-error-context", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    found = {int(number): kind for number, kind in re.findall(r"program\.py:(\d+): error: .*\[([\w-]+)\]", done.stdout)}
    assert found == dict(enumerate(WRONG.values(), 2)), done.stdout
