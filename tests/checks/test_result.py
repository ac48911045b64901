# SPDX-License-Identifier: Apache-2.0
"""The table that users see, and the rows behind it."""

from __future__ import annotations

import pytest

from tubemq_spark.checks.result import failed, format_table, ok, split_advice, warning
from tubemq_spark.errors import ConfigError

RESULTS = [
    ok("tls", "master at a:8716", "the server's certificate is trusted"),
    failed("topic", "orders", "the master knows no such topic", "create the topic"),
]


def test_each_result_has_a_line_and_a_problem_its_remedy() -> None:
    lines = format_table(RESULTS).splitlines()
    assert lines[0].split() == ["state", "check", "place", "subject", "detail"]
    assert lines[2].split()[:3] == ["ok", "tls", "driver"]
    assert lines[3].endswith("the master knows no such topic")
    assert lines[4].strip() == "what to do: create the topic"
    assert lines[5] == "1 ok, 0 warning, 1 failed"
    assert len(lines) == 6


def test_a_problem_without_a_remedy_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="it needs a remedy"):
        warning("tls", "a", "bad", "")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("the topic is unknown; create it. Then wait", ("the topic is unknown", "create it. Then wait")),
        ("no answer. Check the port", ("no answer", "Check the port")),
        ("no answer", ("no answer", "look")),
    ],
)
def test_an_error_has_a_problem_and_an_advice(text: str, parts: tuple[str, str]) -> None:
    assert split_advice(ConfigError(text), "look") == parts


def test_a_text_of_a_server_stays_on_one_line() -> None:
    assert failed("master", "a", "two\nlines", "look").detail == "two\\nlines"
