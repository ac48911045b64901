# SPDX-License-Identifier: Apache-2.0
"""The table of timeouts and pauses."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

import tubemq_spark
from tubemq_spark.client.timings import Timings

SOURCE = "".join(path.read_text(encoding="utf-8") for path in Path(tubemq_spark.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("name", [field.name for field in fields(Timings)])
def test_each_timing_is_used(name: str) -> None:
    assert f"timings.{name}" in SOURCE
