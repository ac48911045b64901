# SPDX-License-Identifier: Apache-2.0
"""Which earlier attempts a task may have, and the note of the last commit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tubemq_spark.sink.task_attempts import (
    CommitNote,
    EarlierAttempts,
    WriteTask,
    earlier_attempts,
    read_commit_note,
    write_commit_note,
)


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("attempt", "run", "committed", "earlier"),
    [
        (0, "run", None, EarlierAttempts.IN_AN_EARLIER_RUN),
        (0, "run", "another run", EarlierAttempts.IN_AN_EARLIER_RUN),
        (0, None, None, EarlierAttempts.IN_AN_EARLIER_RUN),
        (0, "run", "run", EarlierAttempts.NONE),
        (1, "run", None, EarlierAttempts.IN_THIS_RUN),
        (1, "run", "run", EarlierAttempts.IN_THIS_RUN),
    ],
)
def test_only_first_attempts_behind_a_commit_of_their_run_have_no_earlier_ones(
    attempt: int, run: str | None, committed: str | None, earlier: EarlierAttempts
) -> None:
    assert earlier_attempts(WriteTask("query", 8, 0, attempt, run), CommitNote(committed)) is earlier


def test_a_commit_note_is_read_again() -> None:
    note = CommitNote("run", ("b", "a"))
    assert read_commit_note("some") == CommitNote()
    write_commit_note("some", note)
    assert read_commit_note("some") == note
    assert read_commit_note("other") == CommitNote()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"run": "r"}', '{"run": "r", "topics": 3}', "ÿ"])
def test_a_damaged_commit_note_is_ignored(folder: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    write_commit_note("some", CommitNote("run"))
    (file,) = folder.iterdir()
    file.write_text(text, "latin-1")
    assert read_commit_note("some") == CommitNote()
    assert "ignoring the damaged note of the last commit" in caplog.text


def test_without_sparks_folder_there_is_no_note(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folders in ("", str(folder / "nowhere")):
        monkeypatch.setenv("SPARK_LOCAL_DIRS", folders)
        write_commit_note("some", CommitNote("run"))
        assert read_commit_note("some") == CommitNote()
    assert not list(folder.iterdir())


def test_a_commit_note_that_cannot_be_written_is_a_warning(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_commit_note("some", CommitNote())
    (file,) = folder.iterdir()
    file.unlink()
    file.mkdir()
    write_commit_note("some", CommitNote("run"))
    assert "so the next batch will search for earlier attempts" in caplog.text
