# SPDX-License-Identifier: Apache-2.0
"""Decoders return the specified value or one of the documented errors, for random and damaged input.

`make fuzz` tries a million inputs, these tests some thousand of them.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from typing import Any

import pytest

from tests.fuzz import run as runner
from tests.fuzz.decoders import DECODERS
from tests.fuzz.run import Decoder, run

_TOTAL = sum(decoder.share for decoder in DECODERS)


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.name)
def test_damaged_input_is_read_as_specified_or_refused(decoder: Decoder[Any]) -> None:
    outcome = run(decoder, max(20, 5000 * decoder.share // _TOTAL), seed=1)
    assert outcome.problems == []
    assert outcome.accepted > 0
    assert outcome.refused > 0 or decoder.name in ("receipts", "acknowledgements", "sends")


def _number(chance: random.Random) -> str:
    return chance.choice(("7", "x"))


def _judged_by(accepts: Any) -> list[str]:
    return run(Decoder("trial", 1, _number, accepts), 1, seed=1).problems


def test_another_value_is_reported_with_its_input() -> None:
    def accepts(given: str) -> bool:
        assert given == "another", "it differs"
        return True

    (problem,) = _judged_by(accepts)
    assert "it differs" in problem
    assert repr(_number(random.Random("trial 1"))) in problem


def test_an_error_that_is_not_documented_is_reported() -> None:
    (problem,) = _judged_by(lambda given: bool(json.loads("{")))
    assert "JSONDecodeError" in problem


def test_a_decoder_that_does_not_end_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "MAX_SECONDS", 0.05)

    def accepts(given: str) -> bool:
        while True:
            time.sleep(0.001)

    (problem,) = _judged_by(accepts)
    assert "did not end" in problem


def test_a_decoder_that_takes_much_memory_is_reported() -> None:
    (problem,) = _judged_by(lambda given: bool(bytes(runner.MAX_MEMORY + 1)))
    assert "bytes of memory" in problem


def test_the_program_ends_by_itself_and_prints_a_table() -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--count", "50", "--only", "claims"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    table = [line.split()[:2] for line in done.stdout.splitlines()]
    assert ["claims", "50"] in table
    assert ["total", "50"] in table
