# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from tubemq_spark.testing.java import hash_order, is_blank, map_text, parse_long, set_text, split, trim


def test_hash_order_of_names() -> None:
    names = ["demo", "alpha", "zz", *(f"topic{number}" for number in range(14))]
    listed = (
        "zz topic1 topic2 topic0 topic5 topic6 topic3 topic4 topic9 topic12 topic13 topic7 topic8 demo topic10 alpha "
        "topic11"
    )
    assert hash_order(names) == listed.split()


def test_hash_order_of_numbers() -> None:
    assert hash_order([17, 3, 16, 1, 2]) == [16, 17, 1, 2, 3]


def test_names_with_equal_hash_codes_keep_their_order() -> None:
    assert hash_order(["BB", "Aa"]) == ["BB", "Aa"]


def test_texts_of_sets_and_maps() -> None:
    assert set_text(["b", "a"]) == "[a, b]"
    assert set_text([]) == "[]"
    assert map_text({"b": ["y", "x"], "a": []}) == "{a=[], b=[y, x]}"


@pytest.mark.parametrize(
    ("text", "parts"),
    [("", [""]), ("a", ["a"]), ("a#", ["a"]), ("#a", ["", "a"]), ("#", []), ("##", []), ("a##b##", ["a", "", "b"])],
)
def test_splits(text: str, parts: list[str]) -> None:
    assert split(text, "#") == parts


@pytest.mark.parametrize(
    ("text", "blank"),
    [("", True), (" \t\n", True), ("\u3000", True), ("\u00a0", False), ("\x00", False), (" a ", False)],
)
def test_blanks(text: str, blank: bool) -> None:
    assert is_blank(text) is blank


def test_trim_removes_control_characters() -> None:
    assert trim(" \x00\x1f a\u3000 ") == "a\u3000"


@pytest.mark.parametrize("text", ["", "+", "1 ", "1_0", "x", "9223372036854775808", "-9223372036854775809"])
def test_parse_long_refuses_other_texts(text: str) -> None:
    with pytest.raises(ValueError, match="is not a long"):
        parse_long(text)


@pytest.mark.parametrize("text", ["0", "+5", "-7", "9223372036854775807", "-9223372036854775808"])
def test_longs(text: str) -> None:
    assert parse_long(text) == int(text)
