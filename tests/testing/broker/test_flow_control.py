# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from typing import Any

import pytest

from tests.testing.master.calls import StoppedClock
from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.flow_rules import DataLimit
from tubemq_spark.testing.broker.flow_control import FIRST_READ, ReadQuota, parse_data_limits

KIBIBYTE, MEBIBYTE = 1024, 1024 * 1024
TRANSFER_SIZE = 512 * KIBIBYTE
LIMIT = DataLimit(start=0, end=2400, lag=100, per_minute=12 * MEBIBYTE, wait_ms=500)  # a share of 1 MiB
END = 1 << 40  # of the data, far behind any read
RULE: dict[str, Any] = {"start": "08:00", "end": "17:59", "dltInM": 1024, "limitInM": 20, "freqInMs": 1000}


def text_of(*rules: dict[str, Any], type_: int = 0) -> str:
    return json.dumps([{"type": type_, "rule": list(rules)}])


class Reader:
    """A claim after its first read, under `limits`."""

    def __init__(self, *limits: DataLimit, clock: StoppedClock | None = None) -> None:
        self.clock = clock or StoppedClock()
        self.limits = list(limits)
        self.quota = ReadQuota(self.clock, TRANSFER_SIZE)
        self.quota.count(1, 0)

    def allowed(self, lag: int = END, *, escape: bool = False) -> int:
        return self.quota.allowed(self.limits, lag, escape)

    def read(self, size: int) -> None:
        assert self.allowed() > 0
        self.quota.count(size, 0)


# -- rules


def test_rules_of_type_0_are_parsed_and_sorted_by_start() -> None:
    early = {**RULE, "start": "00:30", "end": "07:05", "limitInM": "0"}
    text = json.dumps(
        [
            {"type": 1, "rule": [{"zeroCnt": 3, "freqInMs": 300}]},
            {"type": 0, "rule": [RULE, early]},
            {"type": 3, "rule": [{"normFreqInMs": 0}]},
        ]
    )
    assert list(parse_data_limits(text)) == [
        DataLimit(30, 705, 1024, 0, 1000),
        DataLimit(800, 1759, 1024, 20 * MEBIBYTE, 1000),
    ]


@pytest.mark.parametrize("text", ["[]", text_of({"zeroCnt": 3, "freqInMs": 300}, type_=1), text_of({}, type_=3)])
def test_texts_without_a_rule_of_type_0(text: str) -> None:
    assert not parse_data_limits(text)


@pytest.mark.parametrize("text", ["", " ", "nonsense", "[{}]", text_of(), text_of({**RULE, "dltInM": 20})])
def test_malformed_rules_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="flow rule"):
        parse_data_limits(text)


# -- quota


def test_the_first_read_has_its_own_size_and_does_not_count() -> None:
    quota = ReadQuota(StoppedClock(), TRANSFER_SIZE)
    for escape in (False, True):
        assert quota.allowed([LIMIT], END, escape) == FIRST_READ
    quota.count(100 * MEBIBYTE, 0)
    assert quota.allowed([LIMIT], END, False) == TRANSFER_SIZE


def test_without_a_rule_reads_are_unlimited() -> None:
    reader = Reader()
    for _ in range(100):
        reader.read(1 << 30)
    assert reader.allowed() == TRANSFER_SIZE


@pytest.mark.parametrize(("lag", "limited"), [(99, False), (100, False), (101, True)])
def test_a_rule_applies_to_readers_with_more_lag(lag: int, limited: bool) -> None:
    reader = Reader(LIMIT)
    assert reader.allowed(lag) == TRANSFER_SIZE
    reader.quota.count(MEBIBYTE, 0)
    assert reader.allowed(lag) == (-500 if limited else TRANSFER_SIZE)


def test_the_lag_is_counted_from_the_end_of_the_last_read() -> None:
    reader = Reader(LIMIT)
    reader.quota.count(1, 1000)
    assert reader.allowed(1100) == TRANSFER_SIZE
    reader.quota.count(MEBIBYTE, 1000)
    assert reader.allowed(1100) == TRANSFER_SIZE


@pytest.mark.parametrize(
    ("start", "end", "limited"),
    [
        (0, 2400, True),
        (613, 613, True),
        (0, 612, False),
        (614, 2400, False),
        (2200, 2300, False),  # the hours are in GMT+8
    ],
)
def test_a_rule_applies_at_its_hours(start: int, end: int, limited: bool) -> None:
    reader = Reader(LIMIT._replace(start=start, end=end))  # the stopped clock shows 22:13:20 UTC
    reader.read(MEBIBYTE)
    assert reader.allowed() == (-500 if limited else TRANSFER_SIZE)


def test_the_first_matching_rule_applies() -> None:
    rules = [LIMIT._replace(lag=END), LIMIT._replace(wait_ms=700), LIMIT._replace(wait_ms=900)]
    reader = Reader(*rules)
    reader.read(MEBIBYTE)
    assert reader.allowed(END) == -700


def test_a_small_share_limits_one_read() -> None:
    reader = Reader(LIMIT._replace(per_minute=12 * KIBIBYTE))
    assert reader.allowed() == KIBIBYTE


def test_a_share_is_a_twelfth_for_five_seconds() -> None:
    reader = Reader(LIMIT)
    for _ in range(3):
        reader.read(TRANSFER_SIZE)
        reader.read(TRANSFER_SIZE - 1)
        reader.read(1)
        assert reader.allowed() == -500
        reader.clock.advance(5)
        assert reader.allowed() == -500
        reader.clock.advance(0.5)
    assert reader.allowed() == TRANSFER_SIZE


def test_an_escape_allows_one_read() -> None:
    reader = Reader(LIMIT)
    reader.read(MEBIBYTE)
    assert reader.allowed(escape=True) == TRANSFER_SIZE
    assert reader.allowed() == -500


def test_reads_above_their_shares_use_up_the_minute() -> None:
    reader = Reader(LIMIT)
    for _ in range(4):
        reader.read(3 * MEBIBYTE)
        assert reader.allowed() == -500
        reader.clock.advance(5.5)
    for _ in range(7):
        assert reader.allowed() == -500
        reader.clock.advance(5.5)
    assert reader.clock.now() == 60.5
    assert reader.allowed() == TRANSFER_SIZE


def test_a_limit_stays_for_a_minute_when_rules_or_lag_change() -> None:
    reader = Reader(LIMIT)
    reader.read(MEBIBYTE)
    reader.limits = []
    assert reader.allowed(0) == -500
    reader.clock.advance(60)
    reader.read(MEBIBYTE)
    assert reader.allowed(0) == -500
    reader.clock.advance(0.5)
    reader.read(MEBIBYTE)
    assert reader.allowed(0) == TRANSFER_SIZE


def test_a_new_rule_applies_from_the_next_minute() -> None:
    reader = Reader()
    reader.read(1)
    reader.limits = [LIMIT]
    reader.read(MEBIBYTE)
    assert reader.allowed() == TRANSFER_SIZE
    reader.clock.advance(60.5)
    reader.read(MEBIBYTE)
    assert reader.allowed() == -500
