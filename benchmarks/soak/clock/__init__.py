# SPDX-License-Identifier: Apache-2.0
"""A folder for PYTHONPATH: each Python process that starts with it has the clock that `SteppedClock` sets."""

from __future__ import annotations

import os
import struct
from pathlib import Path

_FORMAT = "<d"
_VARIABLE = "SOAK_CLOCK"


class SteppedClock:
    """The side that sets the clock. It can be stepped while the processes run."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.shift = 0.0
        """Seconds by which `time.time` is ahead in the processes."""
        file.write_bytes(struct.pack(_FORMAT, 0.0))

    def step(self, shift: float) -> None:
        """Set the processes' clock to the real time plus `shift` seconds."""
        self.shift = shift
        with open(self._file, "r+b") as file:
            os.pwrite(file.fileno(), struct.pack(_FORMAT, shift), 0)

    def environment(self) -> dict[str, str]:
        """Return the variables with which a process starts."""
        path = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        return {_VARIABLE: str(self._file), "PYTHONPATH": os.pathsep.join(filter(None, path))}
