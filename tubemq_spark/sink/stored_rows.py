# SPDX-License-Identifier: Apache-2.0
"""An index of the rows that earlier attempts of a batch have stored, in bounded memory (a temporary SQLite database).

`StoredRows` has the rows of all tasks. `StoredRowsOfTask` has those of one task, and returns each stored row once.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from typing import Any

from tubemq_spark.client.producer.record_batch import RecordMetadata
from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.metadata import Partition

MEMORY = 16 << 20
"""Bytes of the index that stay in memory; the others are in an unnamed file. A row has about 60."""

INSERTED = 1000  # rows at a time
_LEAST, _MOST = -(2**63), 2**63 - 1  # what fits into a column

_CREATE = """
    PRAGMA journal_mode = OFF;
    PRAGMA cache_size = -{kibibytes};
    CREATE TABLE fresh (task, digest, row, partition, message, position, taken);
    CREATE TABLE stored (
        task, digest, row, partition, message, position, taken, PRIMARY KEY (task, digest, row)
    ) WITHOUT ROWID;
    BEGIN
"""
_FIND = """
    SELECT row, partition, message, position FROM stored
    WHERE task = ? AND digest = ? AND row BETWEEN ? AND ? AND NOT taken ORDER BY row LIMIT 1
"""
_NUMBER_USED_TWICE = "SELECT 1 FROM stored WHERE task = ? GROUP BY row HAVING count(*) > 1"
_COUNT_OTHERS = """
    SELECT total(n) FROM (SELECT count(*) AS n FROM stored WHERE task = ? GROUP BY digest HAVING NOT max(taken))
"""


class TemporaryFolderError(ConfigError):
    """SQLite cannot write its temporary files."""

    cause = "A task with `effectivelyOnce` cannot write temporary files: no folder for them is writable, or it is full."
    remedy = (
        "Make room in the folder that the text names, or set `TMPDIR` to another one where the tasks run, for example "
        "with `spark.executorEnv.TMPDIR`."
    )


def check_temporary_folder() -> None:
    """Raise `TemporaryFolderError` if SQLite cannot write temporary files in this process."""
    folder = _temporary_folder()
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(4096))
    except OSError as error:
        raise _unwritable(folder, error.strerror or str(error)) from None


def _temporary_folder() -> str:
    """Return the folder that SQLite uses: the first that it may write."""
    named = (os.environ.get(name) for name in ("SQLITE_TMPDIR", "TMPDIR"))
    folders = [*(one for one in named if one), "/var/tmp", "/usr/tmp", "/tmp", "."]
    for folder in folders:
        if os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK):
            return folder
    raise _unwritable(" or ".join(folders), "no such folder, or no permission")


def _unwritable(folder: str, reason: object) -> TemporaryFolderError:
    return TemporaryFolderError(
        f"option 'effectivelyOnce' needs a folder for temporary files, and the task cannot write into {folder}: "
        f"{reason}. Make room there, or set TMPDIR to another folder, for example with spark.executorEnv.TMPDIR"
    )


class StoredRows:
    """The rows of a batch that earlier attempts have stored in a topic, by task."""

    def __init__(self) -> None:
        import sqlite3  # here, because only this class needs it, and a Python may be built without it

        self.tasks: set[int] = set()
        """The numbers of the tasks that have stored rows."""
        self._partitions: dict[Partition, int] = {}  # and the number that stands for each in the database
        self._fresh: list[tuple[int | None, ...]] = []  # rows to insert
        self._error = sqlite3.OperationalError
        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self._database.close)
        self._database.executescript(_CREATE.format(kibibytes=MEMORY >> 10))

    def add(self, task: int, row: int, digest: str, stored: RecordMetadata) -> None:
        """Add a row with its digest of 16 hex digits; a row that is added again counts once. Raise as `query`."""
        number = self._partitions.setdefault(stored.partition, len(self._partitions))
        self._fresh.append((task, _column_of(digest), row, number, stored.message_id, stored.offset))
        self.tasks.add(task)
        if len(self._fresh) >= INSERTED:
            self._insert()

    def of(self, task: int) -> StoredRowsOfTask:
        """Return the rows of one task."""
        self._insert()
        # SQLite sorts in bounded memory. Rows that come in another order would change a page of the file each.
        self.query("INSERT OR IGNORE INTO stored SELECT * FROM fresh ORDER BY task, digest, row")
        self.query("CREATE INDEX IF NOT EXISTS numbers ON stored (task, row)")
        self.query("DELETE FROM fresh")
        self.query("UPDATE stored SET taken = 0 WHERE task = ? AND taken", task)
        return StoredRowsOfTask(self, list(self._partitions), task)

    def query(self, statement: str, *values: int) -> Any:
        """Return the first row of the result, None if there is none. Raise `TemporaryFolderError` on a full disk."""
        try:
            return self._database.execute(statement, values).fetchone()
        except self._error as error:
            raise _unwritable(_temporary_folder(), error) from None

    def _insert(self) -> None:
        try:
            self._database.executemany("INSERT INTO fresh VALUES (?, ?, ?, ?, ?, ?, 0)", self._fresh)
        except self._error as error:
            raise _unwritable(_temporary_folder(), error) from None
        self._fresh.clear()


class StoredRowsOfTask:
    """The rows of one task that earlier attempts have stored in a topic."""

    def __init__(self, stored: StoredRows, partitions: list[Partition], task: int) -> None:
        self._stored = stored
        self._partitions = partitions
        self._task = task
        self._search_from: dict[int, int] = {}  # row number, by digest; all equal rows before it are taken
        self.unmatched: int = stored.query("SELECT count(*) FROM stored WHERE task = ?", task)[0]
        """How many stored rows were not taken."""

    def take(self, row: int, digest: str) -> tuple[int, RecordMetadata] | None:
        """Return the row number of an equal stored row, and where it is stored; return no stored row twice."""
        key = self._task, _column_of(digest)
        found = self._stored.query(_FIND, *key, row, row)
        if found is None:
            found = self._stored.query(_FIND, *key, self._search_from.get(key[1], _LEAST), _MOST)
            self._search_from[key[1]] = _MOST if found is None else found[0]
        if found is None:
            return None
        number, partition, message_id, position = found
        self._stored.query("UPDATE stored SET taken = 1 WHERE task = ? AND digest = ? AND row = ?", *key, number)
        self.unmatched -= 1
        return number, RecordMetadata(self._partitions[partition], message_id, position)

    def count_others(self) -> int:
        """Return how many of the unmatched rows are not copies of rows that were taken.

        An attempt never uses the number of a row that it found. So if two rows have the same number, attempts that did
        not know of each other have stored copies, in different orders.
        """
        if self._stored.query(_NUMBER_USED_TWICE, self._task) is None:
            return self.unmatched
        return int(self._stored.query(_COUNT_OTHERS, self._task)[0])

    def free_number(self, row: int) -> int:
        """Return a number for a row that is not stored: its own, unless a stored row has that number."""
        while self._stored.query("SELECT 1 FROM stored WHERE task = ? AND row = ?", self._task, row):
            row += 1 << 32
        return row


def _column_of(digest: str) -> int:
    return int(digest, 16) + _LEAST
