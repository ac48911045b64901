"""What the driver notes when a batch is committed, for the plan of the next one.

Spark ends Python workers that are idle for a minute, so no worker knows what the one before it did. The plan and the
commit of a stream run in workers of the driver, and both see the driver's block manager folders, which live as long as
the driver. There a commit leaves a small file: which run of the query has committed which batch, and which topics the
query has written to. Without such a folder it is one of the user's own in the system's temporary folder. A missing or
old note is harmless: the next batch then looks for earlier tries that there are not.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import tempfile
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

_log = logging.getLogger(__name__)

_FOLDERS = "SPARK_LOCAL_DIRS"  # Spark sets it for all its Python workers


@dataclass(frozen=True)
class CommitNote:
    """`run` of query `id` has committed `batch`; rows of the query went to `topics`."""

    id: str | None = None
    run: str | None = None
    batch: int = -1
    topics: frozenset[str] = frozenset()

    def is_before(self, id: str | None, run: str | None, batch: int) -> bool:
        """Whether the note proves that `batch` is not the first one of its run. Spark tries such a batch in no other
        run before."""
        return run is not None and (self.id, self.run) == (id, run) and self.batch < batch


def read_commit_note(group: str) -> CommitNote:
    """The note of the query whose groups are called `group`; an empty one where there is none."""
    file = _file(group)
    if file is None:
        return CommitNote()
    try:
        content = json.loads(file.read_bytes())
        return CommitNote(content["id"], content["run"], content["batch"], frozenset(content["topics"]))
    except OSError:
        return CommitNote()
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        _log.warning("%s is damaged and not used: %r", file, error)
        return CommitNote()


def write_commit_note(group: str, note: CommitNote) -> None:
    """Replaces the note. A note that cannot be written is a warning: the next batch then takes longer."""
    file = _file(group)
    if file is None:
        return
    content = {"id": note.id, "run": note.run, "batch": note.batch, "topics": sorted(note.topics)}
    fresh = file.with_suffix(f".{os.getpid()}")
    try:
        fresh.write_text(json.dumps(content), "utf-8")
        fresh.replace(file)
    except OSError as error:
        _log.warning("%s cannot be written, the next batch will look for earlier tries: %s", file, error)


def _file(group: str) -> Path | None:
    folders = [folder for folder in os.environ.get(_FOLDERS, "").split(",") if os.path.isdir(folder)]
    folder = Path(folders[0]) if folders else _own_folder()
    return None if folder is None else folder / f"tubemq-once-{sha256(group.encode()).hexdigest()[:16]}.json"


def _own_folder() -> Path | None:
    """One that nobody else can write to; None where that cannot be had."""
    if not hasattr(os, "getuid"):
        return None
    folder = Path(tempfile.gettempdir(), f"tubemq-spark-{os.getuid()}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        _log.info("%s cannot be used for notes: %s", folder, error)
        return None
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
    return folder if is_own else None
