# SPDX-License-Identifier: Apache-2.0
"""Tests that warnings have time, level and logger if logging is not configured."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

WARN = "import logging, tubemq_spark; {}; logging.getLogger('tubemq_spark.client.heartbeat').warning('a %s', 'word')"
OURS = r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d WARNING tubemq_spark\.client\.heartbeat: a word\n"


@pytest.mark.parametrize(
    ("setup", "printed"),
    [
        ("pass", OURS),
        ("logging.getLogger('tubemq_spark').setLevel(logging.ERROR)", ""),
        ("logging.basicConfig(format='own %(message)s')", "own a word\n"),
        ("logging.getLogger('tubemq_spark.client').addHandler(logging.StreamHandler())", "a word\n"),
        ("logging.getLogger('tubemq_spark').addHandler(logging.NullHandler())", ""),
        ("logging.getLogger('tubemq_spark').propagate = False", OURS),
        ("logging.lastResort = None", ""),
        ("tubemq_spark.default_logging.install()", OURS),
        ("log = logging.getLogger('tubemq_spark.x'); log.setLevel(1); log.info('below a warning')", OURS),
    ],
)
def test_a_warning_is_printed_once(setup: str, printed: str) -> None:
    done = subprocess.run([sys.executable, "-c", WARN.format(setup)], capture_output=True, text=True, check=True)
    assert re.fullmatch(printed, done.stderr)
