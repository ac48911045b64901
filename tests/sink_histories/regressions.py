"""Histories that once failed, as short as they were found to be."""

from __future__ import annotations

from tests.sink_histories.script import History

REGRESSIONS: list[History] = []
