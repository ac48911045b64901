# SPDX-License-Identifier: Apache-2.0
"""Decoders return the specified value or one of the documented errors, for random and damaged input.

`make fuzz` tries a million inputs, these tests some thousand of them.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tests.fuzz.decoders import DECODERS
from tests.fuzz.run import Decoder, run

_TOTAL = sum(decoder.share for decoder in DECODERS)


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)
def test_damaged_input_is_read_as_specified_or_refused(decoder: Decoder[Any]) -> None:
    outcome = run(decoder, max(20, 5000 * decoder.share // _TOTAL), seed=1)
    assert outcome.problems == []
    assert outcome.accepted > 0
    assert outcome.refused > 0 or decoder.name in ("receipts", "acknowledgements", "sends")


def test_the_program_ends_by_itself_and_prints_a_table() -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--count", "50", "--only", "claims"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    table = [line.split()[:2] for line in done.stdout.splitlines()]
    assert ["claims", "50"] in table
    assert ["total", "50"] in table
