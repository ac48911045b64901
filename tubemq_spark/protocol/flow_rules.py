# SPDX-License-Identifier: Apache-2.0
"""Flow control: the rate limits that a cluster sets for its consumers, and how a client applies them.

A cluster has a default rule, and groups may have their own rule. Each rule is a JSON list of records (wire:
FlowCtrlRuleHandler, FlowCtrlItem):

* Type 0, data limits: a reader that lags by more than `dltInM` between the times `start` and `end` reads at most
  `limitInM` MiB a minute and a twelfth of it in 5 s, and waits `freqInMs` before each further fetch. TubeMQ compares
  `dltInM` with a lag in bytes. The times are in GMT+8, both inclusive.
* Type 1: after `zeroCnt` replies of 404 in a row, wait `freqInMs`.
* Type 3: the pause between fetches: `normFreqInMs` without filters, `filterFreqInMs` with filters, and
  `minDataFilterFreqInMs` if the broker asks the reader to slow down.
* Type 2 has no effect any more. Unknown types are ignored.

A rule may contain waits of up to 24 days, and so may a reply with code 452. A reader waits at most `LONGEST_WAIT` and
then asks again, because the rule may have changed. Numbers outside TubeMQ's own ranges make a rule unreadable.

Precedence (wire: PartitionExt; RmtDataCache for the last):

* Data limits: the group's limit that matches lag and time, otherwise the matching limit of the default rule.
* Type 1: the records of the group if it has any, otherwise those of the default rule; of these, the one with the
  greatest `zeroCnt` that was reached. Type 3 likewise.
* After a fetch with messages: an exhausted data limit comes before the pause of type 3. After an empty one: type 1.
* If the group has a data limit for the current time, for any lag, its fetches set `escFlowCtrl`. The broker knows only
  the default rule, and then leaves the limiting to the client.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from tubemq_spark.errors import ProtocolError
from tubemq_spark.peer_text import shown
from tubemq_spark.protocol.constants import UNKNOWN_ID
from tubemq_spark.protocol.pb import MasterService_pb2 as master_pb

LIMIT_PERIOD = 60.0  # seconds for which a data limit applies (wire: CFG_FC_MAX_LIMITING_DURATION)
SHARE_PERIOD = 5.0  # seconds of one share of the limit (wire: CFG_FC_MAX_SAMPLING_PERIOD)
_SHARES = 12  # of a limit for a minute: brokers count each 5 s

_GMT_8 = 8 * 60  # minutes
LONGEST_WAIT = 300_000  # milliseconds, the most that TubeMQ allows for a rule of type 3
_INT, _LONG = 2**31 - 1, 2**63 - 1  # the greatest numbers of Java's types
_LEAST_LAG = 21  # TubeMQ takes no rule with 20 or less (wire: FlowCtrlRuleHandler)
LEAST_DATA_WAIT = 200  # milliseconds
_MAX_TEXT = 100_000  # characters of a rule

Owner = Literal["default", "group"]


class DataLimit(NamedTuple):
    """A reader that lags by more than `lag` bytes between `start` and `end` (hours * 100 + minutes) reads at most
    `per_minute` bytes, and waits `wait_ms` before it reads more.
    """

    start: int
    end: int
    lag: int
    per_minute: int
    wait_ms: int

    @property
    def per_share(self) -> int:
        return self.per_minute // _SHARES

    def is_used_up(self, in_minute: int, in_share: int) -> bool:
        """Return True if a reader that read these bytes in this minute and in these 5 s must wait."""
        return in_minute >= self.per_minute or in_share >= self.per_share


class EmptyWait(NamedTuple):
    """After `answers` empty fetches in a row, wait `wait_ms`."""

    answers: int
    wait_ms: int


class FetchPause(NamedTuple):
    """Milliseconds to wait after a fetch; `slow_ms` with filters if the broker asks the reader to slow down."""

    plain_ms: int
    filtered_ms: int
    slow_ms: int

    def wait_ms(self, *, filtered: bool, slow: bool) -> int:
        if not filtered:
            return self.plain_ms
        return self.slow_ms if slow else self.filtered_ms


@dataclass(frozen=True)
class Limits:
    """The records of a rule: data limits ordered by start, waits after empty fetches from the greatest count down."""

    data: tuple[DataLimit, ...] = ()
    empty: tuple[EmptyWait, ...] = ()
    pause: FetchPause | None = None

    @classmethod
    def parse(cls, text: str) -> Limits:
        """Return the limits in `text`. Raise `ProtocolError` for what the admin API refuses, except unknown types."""
        if not text.strip():
            return cls()
        limits = cls()
        if len(text) > _MAX_TEXT:
            raise ProtocolError(f"'{shown(text)}' is not a flow rule: it has more than {_MAX_TEXT} characters")
        try:
            records = json.loads(text)
            if not isinstance(records, list):
                raise TypeError("it must be a list of records")
            for record in records:
                limits = limits._with(int(record["type"]), record)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            raise ProtocolError(f"'{shown(text)}' is not a flow rule: {shown(repr(error))}") from None
        return limits

    def _with(self, kind: int, record: Mapping[str, Any]) -> Limits:
        """Return the limits with one more record. It replaces an earlier record of the same type."""
        if kind == 0:
            return replace(self, data=tuple(sorted(_some(map(_data_limit, record["rule"])), key=lambda one: one.start)))
        if kind == 1:
            waits = _some(map(_empty_wait, record["rule"]))
            return replace(self, empty=tuple(sorted(waits, key=lambda one: -one.answers)))
        if kind == 3:
            (pause,) = map(_fetch_pause, record["rule"])
            return replace(self, pause=pause)
        if kind < 0:
            raise ValueError(f"there is no type {kind}")
        return self


@dataclass(frozen=True)
class FlowRule:
    """A rule as the master sent it. A `rule_id` of -2 means no rule; `problem` says why a rule is ignored."""

    owner: Owner
    rule_id: int = UNKNOWN_ID
    text: str = ""
    limits: Limits = Limits()
    problem: str = ""

    @classmethod
    def received(cls, owner: Owner, rule_id: int, text: str) -> FlowRule:
        """Return the rule in `text`. An unreadable rule limits nothing, so that no reader stops because of it."""
        try:
            return cls(owner, rule_id, text, Limits.parse(text))
        except ProtocolError as error:
            return cls(owner, rule_id, text[:_MAX_TEXT], problem=str(error))

    def __str__(self) -> str:
        return f"{self.owner} flow control rule" + (f" {self.rule_id} {shown(self.text)}" if self.is_known else "")

    @property
    def is_known(self) -> bool:
        return self.rule_id >= 0


@dataclass(frozen=True)
class FlowRules:
    """The rules for the readers of one group, as plain values.

    `qry_priority_id` is the read policy that an administrator set for the group, -2 if there is none.
    """

    default: FlowRule = FlowRule("default")
    group: FlowRule = FlowRule("group")
    qry_priority_id: int = UNKNOWN_ID

    def __iter__(self) -> Iterator[FlowRule]:
        """Yield the rules by precedence."""
        return iter((self.group, self.default))

    def known(self) -> master_pb.OpsTaskInfo:
        """Return the rules that the client has, for a request: the master sends the texts of other rules only."""
        return master_pb.OpsTaskInfo(defFlowCheckId=self.default.rule_id, groupFlowCheckId=self.group.rule_id)

    def updated(self, tasks: master_pb.OpsTaskInfo) -> FlowRules:
        """Return the rules after a reply with `tasks` (wire: TMaster.buildOpsTaskInfo).

        A rule without an id in the reply was removed. The Java client keeps such a rule (RmtDataCache): its limit stays
        until the client restarts.
        """
        default = tasks.defFlowControlInfo if tasks.HasField("defFlowControlInfo") else None
        group = tasks.groupFlowControlInfo if tasks.HasField("groupFlowControlInfo") else None
        return FlowRules(
            _after(self.default, tasks.defFlowCheckId if tasks.HasField("defFlowCheckId") else UNKNOWN_ID, default),
            _after(self.group, tasks.groupFlowCheckId if tasks.HasField("groupFlowCheckId") else UNKNOWN_ID, group),
            tasks.qryPriorityId if tasks.HasField("qryPriorityId") else UNKNOWN_ID,
        )


def _after(known: FlowRule, rule_id: int, text: str | None) -> FlowRule:
    """Return the rule after a reply with `rule_id`, and a `text` if the master assumes that the client lacks it."""
    if rule_id < 0:
        return FlowRule(known.owner)
    if rule_id == known.rule_id or text is None:
        return known
    return FlowRule.received(known.owner, rule_id, text)


# The rules that apply


def time_of_day(epoch: float) -> int:
    """Return the time in GMT+8 at `epoch` seconds, as hours * 100 + minutes."""
    minutes = int(epoch // 60) + _GMT_8
    return minutes // 60 % 24 * 100 + minutes % 60


def data_limit(rules: FlowRules, lag: int, at: int) -> tuple[FlowRule, DataLimit] | None:
    """Return the limit for a reader that lags by so many bytes at the time `at`, and its rule."""
    found = ((rule, limit) for rule in rules for limit in rule.limits.data)
    return next((one for one in found if lag > one[1].lag and one[1].start <= at <= one[1].end), None)


def empty_wait(rules: FlowRules, answers: int) -> tuple[FlowRule, EmptyWait] | None:
    """Return the wait after so many empty fetches in a row, and its rule. None leaves it to the client."""
    rule = next((rule for rule in rules if rule.limits.empty), None)
    if rule is None:
        return None
    return next(((rule, wait) for wait in rule.limits.empty if answers >= wait.answers), None)


def fetch_pause(rules: FlowRules) -> tuple[FlowRule, FetchPause] | None:
    """Return the pause between fetches that found messages, and its rule."""
    return next(((rule, rule.limits.pause) for rule in rules if rule.limits.pause is not None), None)


def esc_flow_ctrl(rules: FlowRules, at: int) -> bool:
    """Return True if fetches at the time `at` set `escFlowCtrl`, which turns the broker's own limit off."""
    return any(limit.start <= at <= limit.end for limit in rules.group.limits.data)


# Records


def _some(found: Iterable[Any]) -> list[Any]:
    items = list(found)
    if not items:
        raise ValueError("a record has no rules")
    return items


def _data_limit(rule: Mapping[str, Any]) -> DataLimit:
    start, end = _time(rule["start"]), _time(rule["end"])
    lag = _number(rule["dltInM"], "dltInM", _LEAST_LAG, _LONG)
    limit = _number(rule["limitInM"], "limitInM", 0, _LONG)
    wait_ms = _number(rule["freqInMs"], "freqInMs", LEAST_DATA_WAIT)
    if start >= end:
        raise ValueError(f"a rule must start before it ends: {rule}")
    return DataLimit(start, end, lag, limit * 1024 * 1024, wait_ms)


def _empty_wait(rule: Mapping[str, Any]) -> EmptyWait:
    return EmptyWait(_number(rule["zeroCnt"], "zeroCnt", 1), _number(rule["freqInMs"], "freqInMs", 0))


def _fetch_pause(rule: Mapping[str, Any]) -> FetchPause:
    filtered = slow = plain = 0
    if "filterFreqInMs" in rule or "minDataFilterFreqInMs" in rule:
        filtered = _number(rule["filterFreqInMs"], "filterFreqInMs", 0, LONGEST_WAIT)
        slow = _number(rule["minDataFilterFreqInMs"], "minDataFilterFreqInMs", filtered, LONGEST_WAIT)
    if "normFreqInMs" in rule:
        plain = _number(rule["normFreqInMs"], "normFreqInMs", 0, LONGEST_WAIT)
    return FetchPause(plain, filtered, slow)


def _number(value: Any, name: str, least: int, most: int = _INT) -> int:
    number = int(value)
    if not least <= number <= most:
        raise ValueError(f"{name} is {shown(number, 40)}, which is not in [{least}, {most}]")
    return number


def _time(text: Any) -> int:
    hours, minutes = str(text).split(":")
    return _number(hours, "an hour", 0, 24) * 100 + _number(minutes, "a minute", 0, 59)
