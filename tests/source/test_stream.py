# SPDX-License-Identifier: Apache-2.0
"""The stream reader in a process of its own, without a cluster."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

_READER = """
import os, signal, time
from tubemq_spark.source import stream
from tubemq_spark.source.offset import StreamOffset
from tubemq_spark.source.schema import SPARK_SCHEMA

class Driver:
    def __init__(self, options):
        pass
    def initial(self):
        return StreamOffset("q", {})
    def stop(self):
        os.kill(os.getpid(), signal.SIGTERM)
        print("everything was released", flush=True)

stream.MicroBatchPlanner = Driver
options = {"tubemq.master": "m", "tubemq.group": "g1", "subscribe": "t"}
before = signal.getsignal(signal.SIGTERM)
stream.TubeMQStreamReader(options, SPARK_SCHEMA, owns_process=False).initialOffset()
assert signal.getsignal(signal.SIGTERM) is before
reader = stream.TubeMQStreamReader(options, SPARK_SCHEMA)
reader.initialOffset()
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(600)
"""


def test_second_sigterm_does_not_interrupt_stop() -> None:
    """Spark ends the reader's process with one or two signals. `stop` runs once, to its end. A reader in a process that
    is not its own does not listen."""
    command = [sys.executable, "-W", "error", "-c", _READER]
    done = subprocess.run(command, cwd=ROOT, timeout=300, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "everything was released\n", "")
