# SPDX-License-Identifier: Apache-2.0
"""`StoredMessage`: a message of a topic, as `EmbeddedTubeMQ` shows it to a test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from tubemq_spark.protocol.message import EPOCH, decode_attributes, format_msg_time, split_payload
from tubemq_spark.protocol.pb import BrokerService_pb2 as pb
from tubemq_spark.testing.broker.store import Entry


@dataclass(frozen=True)
class StoredMessage:
    """A message in a topic. `offset` is its own position, `msg_time` is `yyyyMMddHHmm`."""

    broker_id: int
    partition: int
    offset: int
    message_id: int
    body: bytes
    attributes: Mapping[str, str] | None
    msg_type: str | None
    msg_time: str | None

    @classmethod
    def of_payload(
        cls, broker_id: int, partition: int, offset: int, message_id: int, payload: bytes, flag: int
    ) -> StoredMessage:
        header, body = split_payload(payload, flag)
        attributes = decode_attributes(header)
        moment = None if attributes.msg_time is None else EPOCH + timedelta(microseconds=attributes.msg_time)
        return cls(
            broker_id,
            partition,
            offset,
            message_id,
            body,
            attributes.own,
            attributes.msg_type,
            None if moment is None else format_msg_time(moment),
        )

    @classmethod
    def of_entry(cls, broker_id: int, offset: int, entry: Entry) -> StoredMessage:
        """Return the message of an entry that readers can receive."""
        assert entry.wire is not None
        (message,) = pb.GetMessageResponseB2C.FromString(_REPLY_FIELDS + entry.wire).messages
        return cls.of_payload(
            broker_id, entry.partition_id, offset, message.messageId, message.payLoadData, message.flag
        )


_REPLY_FIELDS = pb.GetMessageResponseB2C(success=True, errCode=200).SerializeToString()  # required fields
