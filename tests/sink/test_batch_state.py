# SPDX-License-Identifier: Apache-2.0
"""The file in which a query with `effectivelyOnce` notes its batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sink.conftest import Failing
from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.sink import output_dir
from tubemq_spark.sink.batch_state import FILE, BatchState, StateFile, StateFileError, check_checkpoint
from tubemq_spark.sink.options import EffectivelyOnceOptions

PARTITIONS = st.builds(
    Partition, st.integers(0, 2**31), st.from_regex(r"[A-Za-z][\w-]{0,20}", fullmatch=True), st.integers(0, 2**31)
)
BEGINS = st.dictionaries(PARTITIONS, st.integers(0, 2**62), max_size=5)
STATES = st.builds(
    BatchState,
    st.text("0123456789abcdef", min_size=1),
    st.none() | st.uuids().map(str),
    st.none() | st.integers(0),
    st.text("0123456789abcdef"),
    st.integers(0),
    st.none() | BEGINS,
    BEGINS,
)


def options(folder: object, **more: Any) -> EffectivelyOnceOptions:
    return EffectivelyOnceOptions(str(folder), "effectivelyOnceLocation", ("demo",), **more)


@given(STATES)
def test_a_state_is_read_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, state: BatchState) -> None:
    file = StateFile(options(tmp_path_factory.getbasetemp() / "states"))
    file.write(state)
    assert file.read() == state


def test_there_is_no_state_before_the_first_plan(tmp_path: Path) -> None:
    assert StateFile(options(tmp_path / "new")).read() is None


def test_the_file_has_the_documented_form(tmp_path: Path) -> None:
    state = BatchState("a1", "q", 41, "p", 43, {Partition(1, "orders", 0): 1400}, {Partition(1, "orders", 0): 280})
    StateFile(options(tmp_path)).write(state)
    assert json.loads((tmp_path / FILE).read_text()) == {
        "v": 1,
        "id": "a1",
        "query": "q",
        "committed": 41,
        "plan": "p",
        "plans": 43,
        "committed_begins": {"1:orders:0": 280},
        "begins": {"1:orders:0": 1400},
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"v": 1}',
        "ÿ",
        '{"v":1,"id":"a","query":null,"committed":null,"plan":"","plans":1,"begins":{"1:a":2}}',
    ],
)
def test_a_damaged_file_is_an_error_that_says_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text, "latin-1")
    with pytest.raises(StateFileError, match=f"^{tmp_path / FILE} is damaged, .*backup .* to sendAgain"):
        StateFile(options(tmp_path)).read()


def test_a_file_of_a_newer_release_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"v": 2}')
    with pytest.raises(StateFileError, match=r"was written by another release \(version 2, and this one knows 1\)"):
        StateFile(options(tmp_path)).read()


@pytest.mark.parametrize("fails", ["open_input_stream", "open_output_stream", "move"])
def test_a_folder_that_fails_is_an_error_that_names_it(
    tmp_path: Path, failing: Any, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_dir, "_LOCAL", "py::failing")  # elsewhere the file is removed before `move`
    handler: Failing = failing("")
    state = BatchState("a1")
    StateFile(options(f"odd:{tmp_path}")).write(state)
    handler._fails = fails
    file = StateFile(options(f"odd:{tmp_path}"))
    with pytest.raises(ConfigError, match=f"option 'effectivelyOnceLocation': folder 'odd:{tmp_path}' .*No space"):
        file.read() if fails == "open_input_stream" else file.write(BatchState("other"))
    handler._fails = ""
    assert file.read() == state


def test_a_commit_keeps_the_begins_of_its_batch() -> None:
    """Spark may crash before it notes the commit. Then the batch runs again, and must find its rows."""
    first = {Partition(1, "demo", 0): 28}
    planned = BatchState("a1").planned(first)
    committed = planned.with_commit(0, "q")
    assert (committed.committed, committed.query) == (0, "q")
    assert (committed.begins, committed.committed_begins) == (None, first)
    behind = {Partition(1, "demo", 0): 56}
    again = committed.planned(behind).with_commit(0, "q")
    assert (again.begins, again.committed_begins) == (behind, first)
    added = {Partition(1, "added", 0): 0}
    assert committed.planned({**first, **added}).with_commit(0, "q").committed_begins == {**first, **added}
    later = committed.planned(behind).with_commit(1, None)
    assert (later.query, later.begins, later.committed_begins) == ("q", None, behind)


def test_each_plan_has_a_name_of_its_own() -> None:
    state = BatchState("a1")
    assert len({state.plan, state.planned({}).plan, state.planned({}).plan}) == 3


def test_a_checkpoint_that_spark_keeps_elsewhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text("{}")
    check_checkpoint(options(tmp_path / "tubemq", checkpoint=str(tmp_path)))
    check_checkpoint(options(tmp_path / "tubemq"))  # a folder of its own
    with pytest.raises(StateFileError, match=r"metadata is missing, so this folder is not the checkpoint.*hdfs://"):
        check_checkpoint(options(tmp_path / "tubemq", checkpoint=str(tmp_path / "elsewhere")))
