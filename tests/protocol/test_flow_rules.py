# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import pickle
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol import flow_rules as flow
from tubemq_spark.protocol.flow_rules import DataLimit, EmptyWait, FetchPause, FlowRule, FlowRules, Limits, data_limit
from tubemq_spark.protocol.pb.MasterService_pb2 import OpsTaskInfo

MEBIBYTE = 1024 * 1024
DATA: dict[str, Any] = {"start": "08:00", "end": "17:59", "dltInM": 1024, "limitInM": 20, "freqInMs": 1000}
EMPTY: dict[str, Any] = {"zeroCnt": 3, "freqInMs": 300}
PAUSE: dict[str, Any] = {"normFreqInMs": 5, "filterFreqInMs": 100, "minDataFilterFreqInMs": 400}
DATA_LIMIT = DataLimit(start=800, end=1759, lag=1024, per_minute=20 * MEBIBYTE, wait_ms=1000)


def text_of(*rules: dict[str, Any], kind: int = 0) -> str:
    return json.dumps([{"type": kind, "rule": list(rules)}])


def without(rule: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in rule.items() if key != name}


def group_rule(*limits: DataLimit, empty: tuple[EmptyWait, ...] = (), pause: FetchPause | None = None) -> FlowRule:
    return FlowRule("group", 1, limits=Limits(limits, empty, pause))


def default_rule(*limits: DataLimit, empty: tuple[EmptyWait, ...] = (), pause: FetchPause | None = None) -> FlowRule:
    return FlowRule("default", 2, limits=Limits(limits, empty, pause))


# Texts of rules


def test_parses_all_types_of_records() -> None:
    text = json.dumps(
        [
            {"type": 3, "rule": [PAUSE]},
            {"type": 0, "rule": [DATA, {**DATA, "start": "00:30", "end": "07:05", "limitInM": "0"}]},
            {"type": 1, "rule": [EMPTY, {"zeroCnt": 10, "freqInMs": 0}, {"zeroCnt": "5", "freqInMs": 500}]},
            {"type": 2, "rule": "deprecated"},
            {"type": 77, "of": "a later release"},
        ]
    )
    assert Limits.parse(text) == Limits(
        data=(DataLimit(30, 705, 1024, 0, 1000), DATA_LIMIT),
        empty=(EmptyWait(10, 0), EmptyWait(5, 500), EmptyWait(3, 300)),
        pause=FetchPause(plain_ms=5, filtered_ms=100, slow_ms=400),
    )


@pytest.mark.parametrize(
    ("pause", "expected"),
    [
        ({}, FetchPause(0, 0, 0)),
        ({"normFreqInMs": 300_000}, FetchPause(300_000, 0, 0)),
        (without(PAUSE, "normFreqInMs"), FetchPause(0, 100, 400)),
        ({**PAUSE, "filterFreqInMs": 400}, FetchPause(5, 400, 400)),
    ],
)
def test_optional_numbers_of_a_pause(pause: dict[str, Any], expected: FetchPause) -> None:
    assert Limits.parse(text_of(pause, kind=3)).pause == expected


def test_a_later_record_replaces_an_earlier_one_of_its_type() -> None:
    text = json.dumps([{"type": 1, "rule": [EMPTY]}, {"type": 1, "rule": [{"zeroCnt": 1, "freqInMs": 7}]}])
    assert Limits.parse(text) == Limits(empty=(EmptyWait(1, 7),))


@pytest.mark.parametrize("change", [{"dltInM": 21}, {"limitInM": 0}, {"freqInMs": 200}, {"end": "24:00"}])
def test_the_smallest_numbers_of_a_data_limit(change: dict[str, Any]) -> None:
    assert len(Limits.parse(text_of({**DATA, **change})).data) == 1


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "[",
        "null",
        "7",
        "{}",
        "[7]",
        "[null]",
        "[{}]",
        '[{"type":-1,"rule":[]}]',
        '[{"type":0}]',
        '[{"type":0,"rule":7}]',
        "[" * 100_000,
        *(text_of(kind=kind) for kind in (0, 1, 3)),
        *(text_of(7, kind=kind) for kind in (0, 1, 3)),  # type: ignore[arg-type]
        *(text_of(without(DATA, name)) for name in DATA),
        *(text_of(without(EMPTY, name), kind=1) for name in EMPTY),
        text_of(without(PAUSE, "filterFreqInMs"), kind=3),
        text_of(without(PAUSE, "minDataFilterFreqInMs"), kind=3),
        text_of({**DATA, "dltInM": 20}),
        text_of({**DATA, "limitInM": -1}),
        text_of({**DATA, "limitInM": "much"}),
        text_of({**DATA, "limitInM": None}),
        text_of({**DATA, "limitInM": float("inf")}),
        text_of({**DATA, "freqInMs": 199}),
        text_of({**DATA, "start": "8"}),
        text_of({**DATA, "start": "18:00"}),
        text_of({**DATA, "start": "17:59"}),
        text_of({**DATA, "end": "noon"}),
        text_of({**DATA, "end": "25:00"}),
        text_of({**DATA, "end": "17:60"}),
        text_of({**EMPTY, "zeroCnt": 0}, kind=1),
        text_of({**EMPTY, "freqInMs": -1}, kind=1),
        text_of({**PAUSE, "normFreqInMs": -1}, kind=3),
        text_of({**PAUSE, "normFreqInMs": 300_001}, kind=3),
        text_of({**PAUSE, "filterFreqInMs": -1}, kind=3),
        text_of({**PAUSE, "filterFreqInMs": 401}, kind=3),
        text_of({**PAUSE, "minDataFilterFreqInMs": 300_001}, kind=3),
        text_of(PAUSE, PAUSE, kind=3),
        *(text_of({**DATA, name: 10**400}) for name in ("dltInM", "limitInM", "freqInMs")),
        *(text_of({**EMPTY, name: 2**31}, kind=1) for name in EMPTY),
        text_of({**DATA, "freqInMs": 2**31}),
        text_of({**DATA, "dltInM": 2**63}),
    ],
    ids=lambda text: text[:60],
)
def test_refuses_or_ignores_invalid_rules(text: str) -> None:
    with pytest.raises(ProtocolError, match="is not a flow rule"):
        Limits.parse(text)
    rule = FlowRule.received("group", 5, text)
    assert (rule.rule_id, rule.limits) == (5, Limits())
    assert "is not a flow rule" in rule.problem


# Rules in replies of the master


def test_later_replies_only_repeat_the_ids_of_rules() -> None:
    first = OpsTaskInfo(
        defFlowCheckId=11,
        defFlowControlInfo=text_of(DATA),
        groupFlowCheckId=22,
        groupFlowControlInfo=text_of(EMPTY, kind=1),
        qryPriorityId=203,
    )
    rules = FlowRules().updated(first)
    assert rules.default == FlowRule("default", 11, text_of(DATA), Limits((DATA_LIMIT,)))
    assert rules.group == FlowRule("group", 22, text_of(EMPTY, kind=1), Limits(empty=(EmptyWait(3, 300),)))
    assert rules.qry_priority_id == 203
    assert rules.known() == OpsTaskInfo(defFlowCheckId=11, groupFlowCheckId=22)
    assert rules.updated(OpsTaskInfo(defFlowCheckId=11, groupFlowCheckId=22, qryPriorityId=203)) == rules
    assert pickle.loads(pickle.dumps(rules)) == rules


KNOWN = FlowRules(FlowRule("default", 11, "[]"), FlowRule("group", 22, "[]"), 203)


@pytest.mark.parametrize(
    ("tasks", "default_id", "group_id"),
    [
        (OpsTaskInfo(), -2, -2),
        (OpsTaskInfo(defFlowCheckId=11), 11, -2),
        (OpsTaskInfo(groupFlowCheckId=22), -2, 22),
        (OpsTaskInfo(defFlowCheckId=-2, groupFlowCheckId=-2, defFlowControlInfo=" ", groupFlowControlInfo=" "), -2, -2),
        (OpsTaskInfo(defFlowCheckId=11, groupFlowCheckId=23, groupFlowControlInfo=text_of(DATA)), 11, 23),
        (OpsTaskInfo(defFlowCheckId=12, groupFlowCheckId=22, defFlowControlInfo=""), 12, 22),
        (OpsTaskInfo(defFlowCheckId=12, groupFlowCheckId=23), 11, 22),  # without texts: asked for again
    ],
)
def test_rules_change_and_disappear(tasks: OpsTaskInfo, default_id: int, group_id: int) -> None:
    rules = KNOWN.updated(tasks)
    assert (rules.default.rule_id, rules.group.rule_id) == (default_id, group_id)
    assert (rules.default.owner, rules.group.owner) == ("default", "group")
    assert rules.qry_priority_id == -2


def test_an_unreadable_rule_replaces_the_rule_before_it() -> None:
    rules = FlowRules().updated(OpsTaskInfo(defFlowCheckId=1, defFlowControlInfo=text_of(DATA)))
    rules = rules.updated(OpsTaskInfo(defFlowCheckId=2, defFlowControlInfo="nonsense"))
    assert (rules.default.rule_id, rules.default.limits) == (2, Limits())
    assert rules.default.problem


# The rules that apply


@given(st.datetimes(datetime(1971, 1, 1), datetime(2100, 1, 1)))
def test_times_are_in_gmt_8(moment: datetime) -> None:
    epoch = moment.replace(tzinfo=timezone.utc).timestamp()
    there = datetime.fromtimestamp(epoch, timezone(timedelta(hours=8)))
    assert flow.time_of_day(epoch) == there.hour * 100 + there.minute


@pytest.mark.parametrize(
    ("lag", "at", "fits"),
    [
        (1024, 1200, False),
        (1025, 1200, True),
        (1025, 759, False),
        (1025, 800, True),
        (1025, 1759, True),
        (1025, 1800, False),
        (-1, 1200, False),
    ],
)
def test_a_data_limit_applies_to_a_lag_and_a_time_of_day(lag: int, at: int, fits: bool) -> None:
    rule = FlowRule("group", limits=Limits((DATA_LIMIT,)))
    assert data_limit(FlowRules(group=rule), lag, at) == ((rule, DATA_LIMIT) if fits else None)


MORNING = DATA_LIMIT._replace(start=0, end=1200)
FAR_BEHIND = DATA_LIMIT._replace(lag=1 << 30, wait_ms=5000)
OF_DEFAULT = DATA_LIMIT._replace(wait_ms=700)


@pytest.mark.parametrize(
    ("lag", "at", "owner", "limit"),
    [
        (2000, 900, "group", MORNING),
        (1 << 31, 900, "group", MORNING),  # the first that fits, not the sharpest
        (1 << 31, 1300, "group", FAR_BEHIND),
        (2000, 1300, "default", OF_DEFAULT),
        (2000, 2300, None, None),
        (100, 900, None, None),
    ],
)
def test_the_default_data_limit_applies_if_none_of_the_group_does(
    lag: int, at: int, owner: str | None, limit: DataLimit | None
) -> None:
    rules = FlowRules(default_rule(OF_DEFAULT), group_rule(MORNING, FAR_BEHIND))
    found = flow.data_limit(rules, lag, at)
    assert (found and (found[0].owner, found[1])) == (limit and (owner, limit))


@pytest.mark.parametrize(
    ("answers", "of_group", "of_default", "of_both"),
    [(0, None, None, None), (1, None, 7, None), (2, 20, 7, 20), (4, 20, 7, 20), (5, 50, 7, 50), (99, 50, 7, 50)],
)
def test_waits_after_empty_fetches(
    answers: int, of_group: int | None, of_default: int | None, of_both: int | None
) -> None:
    default, group = default_rule(empty=(EmptyWait(1, 7),)), group_rule(empty=(EmptyWait(5, 50), EmptyWait(2, 20)))
    for rules, wait_ms in [
        (FlowRules(group=group), of_group),
        (FlowRules(default=default), of_default),
        (FlowRules(default, group), of_both),
        (FlowRules(), None),
    ]:
        found = flow.empty_wait(rules, answers)
        assert (found and found[1].wait_ms) == wait_ms


def test_the_groups_pause_replaces_the_default_one_even_if_it_is_zero() -> None:
    default, group = default_rule(pause=FetchPause(5, 6, 7)), group_rule(pause=FetchPause(0, 0, 0))
    assert flow.fetch_pause(FlowRules(default, group)) == (group, FetchPause(0, 0, 0))
    assert flow.fetch_pause(FlowRules(default)) == (default, FetchPause(5, 6, 7))
    assert flow.fetch_pause(FlowRules()) is None


@pytest.mark.parametrize(("at", "escapes"), [(759, False), (800, True), (1759, True), (1800, False)])
def test_fetches_set_esc_flow_ctrl_in_the_hours_of_the_groups_data_limits(at: int, escapes: bool) -> None:
    assert flow.esc_flow_ctrl(FlowRules(group=group_rule(FAR_BEHIND)), at) is escapes
    assert not flow.esc_flow_ctrl(FlowRules(default=default_rule(FAR_BEHIND)), at)
    assert not flow.esc_flow_ctrl(FlowRules(group=group_rule(empty=(EmptyWait(1, 1),))), at)
