# SPDX-License-Identifier: Apache-2.0
"""A reader in another process, which a test can stop, kill and resume.

    python -m tests.reader_process <what to read, as `RemoteReader` encodes it>

For each line of standard input it delivers one batch and prints one line: the message ids, or how the reading ended. So
it never runs ahead of the test.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import signal
import subprocess
import sys
from types import TracebackType

from tests import messages, reading
from tests.clusters import Cluster
from tubemq_spark.client.consumer.partition_reader import PartitionReader
from tubemq_spark.client.consumer.range_to_read import RangeToRead
from tubemq_spark.errors import TubeMQError
from tubemq_spark.protocol.claim_id import ClaimId

_END = "end"


class RemoteReader:
    """The test's side: a context manager that kills the process at its end."""

    def __init__(self, cluster: Cluster, group: str, wanted: RangeToRead, claim: ClaimId) -> None:
        snapshot = reading.snapshot(cluster, wanted.partition)
        arguments = base64.b64encode(pickle.dumps((messages.settings(cluster), group, claim, wanted, snapshot)))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.reader_process", arguments.decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.ended: str | None = None
        """The name of an error's class, or "end"; None while the process reads."""

    def __enter__(self) -> RemoteReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def ask(self) -> None:
        """Ask for one batch. A stopped process delivers nothing."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def answer(self) -> list[int]:
        """Return the message ids of the batch, none at the end."""
        assert self._process.stdout is not None
        said = json.loads(self._process.stdout.readline())
        if isinstance(said, str):
            self.ended = said
            return []
        return [int(message_id) for message_id in said]

    def next_piece(self) -> list[int]:
        self.ask()
        return self.answer()

    def stop(self) -> None:
        """Send SIGSTOP and wait until the process has stopped."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitpid(self._process.pid, os.WUNTRACED)

    def wake(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Send SIGKILL, so that the process cannot release its claim."""
        self._process.kill()
        self._process.communicate()


def main() -> None:
    settings, group, claim, wanted, snapshot = pickle.loads(base64.b64decode(sys.argv[1]))
    batches = PartitionReader(settings, group, claim, wanted, snapshot, claim_timeout=0.0).batches()
    ended = ""
    for _ in sys.stdin:
        try:
            batch = next(batches, None)
        except TubeMQError as error:
            ended = type(error).__name__
            print(error, file=sys.stderr)
        else:
            ended = _END if batch is None else ""
            if batch is not None:
                print(json.dumps([row.message_id for row in reading.rows_of([batch])]), flush=True)
        if ended:
            print(json.dumps(ended), flush=True)


if __name__ == "__main__":
    main()
