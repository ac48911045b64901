# SPDX-License-Identifier: Apache-2.0
"""Which earlier attempts a task may have: the note of the last commit, and tasks that end after a new run began."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tubemq_spark.sink.task_attempts import RUN_CACHE, CommitNote, WriteTask, read_commit_note, write_commit_note


@pytest.fixture(autouse=True)
def _new_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Begin as a new driver and worker do."""
    RUN_CACHE().clear()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    yield
    RUN_CACHE().clear()


# The note of the last commit


def test_a_commit_note_is_read_again(tmp_path: object) -> None:
    note = CommitNote("query", "run", 7, ("b", "a"))
    assert read_commit_note("some") == CommitNote()
    write_commit_note("some", note)
    assert read_commit_note("some") == note
    assert read_commit_note("other") == CommitNote()
    assert note.is_before(WriteTask("query", 8, 0, 0, "run"))
    for query, batch, run in (("query", 7, "run"), ("query", 6, "run"), ("query", 8, "another"), ("another", 8, "run")):
        assert not note.is_before(WriteTask(query, batch, 0, 0, run))
    assert not CommitNote("query", None, 7).is_before(WriteTask("query", 8, 0, 0, None))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"id": 1}', '{"id": "q", "run": "r", "batch": 1, "topics": 3}', "ÿ"])
def test_a_damaged_commit_note_is_ignored(tmp_path: Any, text: str, caplog: pytest.LogCaptureFixture) -> None:
    write_commit_note("some", CommitNote("query", "run", 7))
    (file,) = tmp_path.iterdir()
    file.write_text(text, "latin-1")
    assert read_commit_note("some") == CommitNote()
    assert "ignoring the damaged note of the last commit" in caplog.text


def test_without_sparks_folder_the_note_is_in_a_private_folder(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    note = CommitNote("query", "run", 7)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "nowhere"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    write_commit_note("some", note)
    assert read_commit_note("some") == note
    (folder,) = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)  # others could write what they like
    assert read_commit_note("some") == CommitNote()
    write_commit_note("some", note)
    os.rename(folder, tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", folder)
    (tmp_path / "elsewhere").chmod(0o700)
    assert read_commit_note("some") == CommitNote()


def test_a_commit_note_that_cannot_be_written_is_a_warning(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    write_commit_note("some", CommitNote())
    (file,) = tmp_path.iterdir()
    file.unlink()
    file.mkdir()
    write_commit_note("some", CommitNote("query", "run", 7))
    assert "so the next batch will search for earlier attempts" in caplog.text
