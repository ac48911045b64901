"""Flow control: the rules that a cluster has for its readers, and what they ask of a client.

There is a default rule and, for some groups, one of their own. Both are JSON lists of records (wire:
FlowCtrlRuleHandler, FlowCtrlItem):

* type 0, data limits: who lags by more than `dltInM` between `start` and `end` reads at most `limitInM` MiB a minute
  and a twelfth of it in 5 s, and makes a pause of `freqInMs` before each fetch beyond that. TubeMQ compares `dltInM`
  with a lag in bytes, as it stands. The times are those of GMT+8, both included.
* type 1: from the `zeroCnt`-th 404 in a row on, a pause of `freqInMs`.
* type 3: a pause between fetches: `normFreqInMs` without filters, `filterFreqInMs` with them, and
  `minDataFilterFreqInMs` where the broker asks to go slowly.
* type 2 does nothing any more; types that are not known here are left out.

A rule may name waits of up to 24 days, as a broker may in a 452. A reader waits for `LONGEST_WAIT` at a time and then
asks again, for the rule may have been changed. Numbers that TubeMQ itself could not hold make a rule unreadable.

What comes first (wire: PartitionExt; RmtDataCache for the last):

* The group's data limit that fits lag and time; if none does, the default rule's that does.
* The group's records of type 1 if it has any, else the default rule's; of several the one with the greatest `zeroCnt`
  that was reached. Likewise with type 3.
* A fetch that found messages: a data limit that is used up goes before the pause of type 3. One that did not: type 1.
* While the group has a data limit for the time of day, for whatever lag, its fetches carry `escFlowCtrl`: the broker,
  which knows the default rule alone, then leaves the limiting to the client.

Everything here is a function of values: clocks and counters are the caller's.
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

LIMIT_PERIOD = 60.0  # seconds for which a data limit is decided (wire: CFG_FC_MAX_LIMITING_DURATION)
SHARE_PERIOD = 5.0  # seconds of one share of it (wire: CFG_FC_MAX_SAMPLING_PERIOD)
_SHARES = 12

_GMT_8 = 8 * 60  # minutes
LONGEST_WAIT = 300_000  # milliseconds, the most that TubeMQ allows for a rule of type 3
_INT, _LONG = 2**31 - 1, 2**63 - 1  # the greatest numbers of Java's types
_LEAST_LAG, _LEAST_DATA_WAIT = 21, 200
_MAX_TEXT = 100_000  # characters of a rule

Owner = Literal["default", "group"]


class DataLimit(NamedTuple):
    """Who lags by more than `lag` bytes between `start` and `end` (hours * 100 + minutes) reads at most `per_minute`
    bytes, and waits `wait_ms` where it would read more."""

    start: int
    end: int
    lag: int
    per_minute: int
    wait_ms: int

    @property
    def per_share(self) -> int:
        return self.per_minute // _SHARES

    def is_used_up(self, in_minute: int, in_share: int) -> bool:
        """Whether so many bytes, read in this minute and in these 5 s, are all that may be read."""
        return in_minute >= self.per_minute or in_share >= self.per_share


class EmptyWait(NamedTuple):
    """After `answers` fetches in a row that found nothing, wait `wait_ms`."""

    answers: int
    wait_ms: int


class FetchPause(NamedTuple):
    """Milliseconds to wait after a fetch: of a reader without filters, with filters, and with filters when the broker
    asks to go slowly."""

    plain_ms: int
    filtered_ms: int
    slow_ms: int

    def wait_ms(self, *, filtered: bool, slow: bool) -> int:
        if not filtered:
            return self.plain_ms
        return self.slow_ms if slow else self.filtered_ms


@dataclass(frozen=True)
class Limits:
    """What a rule says: its data limits by their start, its waits after empty answers from the greatest number down."""

    data: tuple[DataLimit, ...] = ()
    empty: tuple[EmptyWait, ...] = ()
    pause: FetchPause | None = None

    @classmethod
    def parse(cls, text: str) -> Limits:
        """`ProtocolError` for what the admin API would refuse, but for unknown types."""
        if not text.strip():
            return cls()
        limits = cls()
        if len(text) > _MAX_TEXT:
            raise ProtocolError(f"'{shown(text)}' is no flow rule: more than {_MAX_TEXT} characters are not read")
        try:
            records = json.loads(text)
            if not isinstance(records, list):
                raise TypeError("a list of records is wanted")
            for record in records:
                limits = limits._with(int(record["type"]), record)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            raise ProtocolError(f"'{shown(text)}' is no flow rule: {shown(repr(error))}") from None
        return limits

    def _with(self, kind: int, record: Mapping[str, Any]) -> Limits:
        """Of two records of one type the later one counts."""
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

    def data_limit(self, lag: int, at: int) -> DataLimit | None:
        """The first one for a lag of so many bytes at the time `at` (see `time_of_day`)."""
        return next((one for one in self.data if lag > one.lag and one.start <= at <= one.end), None)


@dataclass(frozen=True)
class FlowRule:
    """One rule as the master told it. A `rule_id` of -2 is none; `problem` says why a rule is not obeyed."""

    owner: Owner
    rule_id: int = UNKNOWN_ID
    text: str = ""
    limits: Limits = Limits()
    problem: str = ""

    @classmethod
    def told(cls, owner: Owner, rule_id: int, text: str) -> FlowRule:
        """One that cannot be read limits nothing: no reader stops because of it."""
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
    """The rules for the readers of one group: plain values.

    `qry_priority_id` is the read policy that an administrator has set for the group, -2 without one.
    """

    default: FlowRule = FlowRule("default")
    group: FlowRule = FlowRule("group")
    qry_priority_id: int = UNKNOWN_ID

    def __iter__(self) -> Iterator[FlowRule]:
        """The one that goes first, first."""
        return iter((self.group, self.default))

    def known(self) -> master_pb.OpsTaskInfo:
        """What a client tells the master it has; the master sends the texts of others only."""
        return master_pb.OpsTaskInfo(defFlowCheckId=self.default.rule_id, groupFlowCheckId=self.group.rule_id)

    def told(self, tasks: master_pb.OpsTaskInfo) -> FlowRules:
        """The rules after a reply with `tasks` (wire: TMaster.buildOpsTaskInfo).

        A rule whose id is missing is not in force any more. The Java client keeps that one (RmtDataCache), which makes
        a limit outlive its removal until the client is started again.
        """
        default = tasks.defFlowControlInfo if tasks.HasField("defFlowControlInfo") else None
        group = tasks.groupFlowControlInfo if tasks.HasField("groupFlowControlInfo") else None
        return FlowRules(
            _after(self.default, tasks.defFlowCheckId if tasks.HasField("defFlowCheckId") else UNKNOWN_ID, default),
            _after(self.group, tasks.groupFlowCheckId if tasks.HasField("groupFlowCheckId") else UNKNOWN_ID, group),
            tasks.qryPriorityId if tasks.HasField("qryPriorityId") else UNKNOWN_ID,
        )


def _after(known: FlowRule, rule_id: int, text: str | None) -> FlowRule:
    """The rule after a reply that names `rule_id`, with a `text` if the master thinks that it is not known."""
    if rule_id < 0:
        return FlowRule(known.owner)
    if rule_id == known.rule_id or text is None:
        return known
    return FlowRule.told(known.owner, rule_id, text)


# What the rules ask for


def time_of_day(epoch: float) -> int:
    """The time in GMT+8 as the rules have it, hours * 100 + minutes, at `epoch` seconds."""
    minutes = int(epoch // 60) + _GMT_8
    return minutes // 60 % 24 * 100 + minutes % 60


def data_limit(rules: FlowRules, lag: int, at: int) -> tuple[FlowRule, DataLimit] | None:
    """The limit for a reader that lags by so many bytes at the time `at`, and whose it is."""
    found = ((rule, rule.limits.data_limit(lag, at)) for rule in rules)
    return next(((rule, limit) for rule, limit in found if limit is not None), None)


def empty_wait(rules: FlowRules, answers: int) -> tuple[FlowRule, EmptyWait] | None:
    """What to do after so many fetches in a row that found nothing; None leaves it to the client."""
    rule = next((rule for rule in rules if rule.limits.empty), None)
    if rule is None:
        return None
    return next(((rule, wait) for wait in rule.limits.empty if answers >= wait.answers), None)


def fetch_pause(rules: FlowRules) -> tuple[FlowRule, FetchPause] | None:
    """The pause between fetches that found messages, and whose it is."""
    return next(((rule, rule.limits.pause) for rule in rules if rule.limits.pause is not None), None)


def esc_flow_ctrl(rules: FlowRules, at: int) -> bool:
    """Whether fetches at the time `at` carry `escFlowCtrl`, which frees them from the broker's limit."""
    return any(limit.start <= at <= limit.end for limit in rules.group.limits.data)


# Records


def _some(found: Iterable[Any]) -> list[Any]:
    items = list(found)
    if not items:
        raise ValueError("a record without rules")
    return items


def _data_limit(rule: Mapping[str, Any]) -> DataLimit:
    start, end = _time(rule["start"]), _time(rule["end"])
    lag = _number(rule["dltInM"], "dltInM", _LEAST_LAG, _LONG)
    limit = _number(rule["limitInM"], "limitInM", 0, _LONG)
    wait_ms = _number(rule["freqInMs"], "freqInMs", _LEAST_DATA_WAIT)
    if start >= end:
        raise ValueError(f"a rule starts before it ends, not {rule}")
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
