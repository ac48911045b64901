# SPDX-License-Identifier: Apache-2.0
"""Turns replies into dictionaries of their fields that must be equal on both servers."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from google.protobuf.message import Message

from tests.differential.requests import Names
from tubemq_spark.protocol.envelope import Failure

Reply = dict[str, Any]

SILENCE: Reply = {"silence": True}
"""Stands for a missing reply."""

_SHOWN = 24  # bytes of a payload


class May(Enum):
    """The ways in which a field may differ."""

    BE_ANOTHER_ID = auto()  # it must repeat where it repeats on the other server; negative ids must be equal
    BE_OTHERWISE = auto()  # it must be set where it is set on the other server
    BE_MISSING = auto()  # on one of the servers; if both set it, the values are compared


@dataclass(frozen=True)
class MayDiffer:
    message: str
    field: str
    how: May
    reason: str


_CHECK_SUM = "computed from the list and the server's clock"
_TOKEN = "the master's clock, taken every few minutes"
_DEAL = "members that report nothing get all partitions again in each rebalance, at random"

MAY_DIFFER = (
    MayDiffer("SendMessageResponseB2P", "messageId", May.BE_ANOTHER_ID, "computed from the broker's clock"),
    MayDiffer("SendMessageResponseB2P", "errMsg", May.BE_ANOTHER_ID, "the messageId of a stored message"),
    MayDiffer("SendMessageResponseB2P", "appendTime", May.BE_OTHERWISE, "the broker's clock"),
    MayDiffer("TransferedMessage", "messageId", May.BE_ANOTHER_ID, "computed from the broker's clock"),
    MayDiffer("RegisterResponseM2P", "brokerCheckSum", May.BE_ANOTHER_ID, _CHECK_SUM),
    MayDiffer("HeartResponseM2P", "brokerCheckSum", May.BE_ANOTHER_ID, _CHECK_SUM),
    MayDiffer("ApprovedClientConfig", "configId", May.BE_ANOTHER_ID, "the time of the last change of the settings"),
    MayDiffer("MasterAuthorizedInfo", "visitAuthorizedToken", May.BE_OTHERWISE, _TOKEN),
    MayDiffer("RegisterResponseM2CV2", "brokerConfigId", May.BE_ANOTHER_ID, _CHECK_SUM),
    MayDiffer("HeartResponseM2CV2", "brokerConfigId", May.BE_ANOTHER_ID, _CHECK_SUM),
    MayDiffer("GetPartMetaResponseM2C", "brokerConfigId", May.BE_ANOTHER_ID, _CHECK_SUM),
    MayDiffer("HeartResponseM2CV2", "topicMetaInfoId", May.BE_ANOTHER_ID, _CHECK_SUM),
    MayDiffer("GetPartMetaResponseM2C", "topicMetaInfoId", May.BE_ANOTHER_ID, _CHECK_SUM),
    MayDiffer("HeartResponseM2C", "event", May.BE_MISSING, "it comes with the balancer's next round"),
    MayDiffer("EventProto", "rebalanceId", May.BE_OTHERWISE, "the number of the balancer's round since its start"),
    MayDiffer("EventProto", "subscribeInfo", May.BE_OTHERWISE, _DEAL),
    MayDiffer("RspExceptionBody", "stackTrace", May.BE_OTHERWISE, "a text of Java's protobuf or of its exceptions"),
)
"""The allowed differences. Everything else must be equal, including texts."""

_RULES = {(rule.message, rule.field): rule.how for rule in MAY_DIFFER}
_MAY_BE_MISSING = {rule.field for rule in MAY_DIFFER if rule.how is May.BE_MISSING}


@dataclass
class Known:
    """The positions of messages by id, from the replies of one server so far."""

    positions: dict[tuple[str, int, int], int] = field(default_factory=dict)  # by topic, store, messageId

    def message(self, names: Names, message_id: int) -> str:
        position = self.positions.get((names.topic, names.store, message_id))
        return "unknown" if position is None else f"of the message at {position}"


@dataclass
class Reader:
    """Turns the replies of one server in one play into dictionaries to compare."""

    names: Names
    known: Known
    addresses: Mapping[str, str]
    """Replacements of addresses in texts."""
    last: dict[str, int] = field(default_factory=dict)
    """The last ids by field, unchanged."""
    group: str = ""
    """The group of the request. Ids of two groups are equal if the server made them in the same millisecond."""
    _ordinals: dict[tuple[str, str], dict[int, int]] = field(default_factory=dict)

    def forget_ids(self) -> None:
        """Forget the group's ids: from now on they may be new ones, or the same in the same millisecond. Scripts must
        not use the old ones.
        """
        for key in [key for key in self._ordinals if key[0] == self.group]:
            del self._ordinals[key]
        self.last.pop("topicMetaInfoId", None)

    def failure(self, failed: Failure) -> Reply:
        text = {"stackTrace": self._field("RspExceptionBody", "stackTrace", failed.text)} if failed.text else {}
        return {"status": "FATAL" if failed.fatal else "ERROR", "exceptionName": failed.exception_name, **text}

    def reply(self, message: Message) -> Reply:
        if message.DESCRIPTOR.name == "SendMessageResponseB2P" and message.success:  # type: ignore[attr-defined]
            self._remember(message)
        return self._message(message)

    def _remember(self, sent: Any) -> None:
        self.known.positions[self.names.topic, self.names.store, sent.messageId] = sent.appendOffset

    def _message(self, message: Message) -> Reply:
        kind = message.DESCRIPTOR.name
        if kind == "TransferedMessage":
            return self._transfered(message)
        return {one.name: self._field(kind, one.name, value) for one, value in message.ListFields()}

    def _transfered(self, message: Any) -> Reply:
        """Return the same as for other messages, but faster, because there are many. All fields are required."""
        return {
            "messageId": self.known.message(self.names, message.messageId),
            "checkSum": message.checkSum,
            "payLoadData": _shown(message.payLoadData),
            "flag": message.flag,
        }

    def _field(self, kind: str, name: str, value: Any) -> Any:
        return self._value(kind, name, value, _RULES.get((kind, name)))

    def _value(self, kind: str, name: str, value: Any, how: May | None) -> Any:
        if isinstance(value, Message):
            return self._message(value)
        if how is May.BE_OTHERWISE:
            return "…"
        if how is May.BE_ANOTHER_ID:
            return self._id(kind, name, value)
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, bytes):
            return _shown(value)
        if isinstance(value, (bool, int)):
            return value
        return [self._value(kind, name, item, None) for item in value]

    def _id(self, kind: str, name: str, value: Any) -> Any:
        if name == "messageId":
            return self.known.message(self.names, value)
        if name == "errMsg":
            is_id = value.lstrip("-").isdigit()
            return self.known.message(self.names, int(value)) if is_id else self._text(value)
        self.last[name] = value
        if value < 0:
            return value
        numbers = self._ordinals.setdefault((self.group, name), {})
        return f"#{numbers.setdefault(value, len(numbers))}"

    def _text(self, text: str) -> str:
        for address, replacement in self.addresses.items():
            text = text.replace(address, replacement)
        return text


def differing(one: Reply, other: Reply) -> list[str]:
    """Return the names of the fields that differ and must not."""
    keys = (one.keys() | other.keys()) - ((one.keys() ^ other.keys()) & _MAY_BE_MISSING)
    return sorted(key for key in keys if one.get(key) != other.get(key))


def _shown(data: bytes) -> str:
    return repr(data) if len(data) <= _SHOWN else f"{data[:_SHOWN]!r}… {len(data)} bytes, CRC {zlib.crc32(data):08x}"
