# SPDX-License-Identifier: Apache-2.0
"""Results in a file, so that a run that was interrupted can be continued."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.every_call.trials import Result, Trial


class Kept:
    """The results in `path`, one in a line; none without a path."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, dict[str, Any]] = {}
        if path is not None and path.exists():
            lines = path.read_text(encoding="utf-8").splitlines()
            self._known = {entry["trial"]: entry for entry in map(json.loads, lines)}

    def result(self, trial: Trial) -> Result | None:
        """Return the result of the same trial of an earlier run, if there is one."""
        entry = self._known.get(str(trial))
        return None if entry is None else Result(trial, entry["outcome"], entry["errors"], entry["problem"])

    def add(self, result: Result) -> None:
        name = str(result.trial)
        if self._path is None or name in self._known:
            return
        entry = {
            "trial": name,
            "outcome": result.outcome,
            "errors": list(result.errors),
            "problem": result.problem,
        }
        self._known[name] = entry
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
