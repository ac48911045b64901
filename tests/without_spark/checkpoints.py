# SPDX-License-Identifier: Apache-2.0
"""Folders of checkpoints, for what the sink keeps in them."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path


@cache
def _folder() -> str:
    folder = tempfile.mkdtemp(prefix="checkpoints-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def new_checkpoint() -> str:
    """Return the folder of a checkpoint that Spark has just made."""
    folder = Path(tempfile.mkdtemp(dir=_folder()))
    (folder / "metadata").write_text("{}")
    return str(folder)


def state_file(checkpoint: str) -> Path:
    """Return the file of `effectivelyOnce` in a checkpoint."""
    return Path(checkpoint, "tubemq", "effectively-once.json")
