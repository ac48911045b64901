"""A send request in two parts, so that neither is encoded more often than it changes.

What a message is (data, flag, check sum, type, time) stays the same when it is sent again elsewhere; where it goes
(client, topic, partition, authorisation) is the same for all messages to a partition. Protobuf reads two messages
written one behind the other as one with the fields of both, so a request is the bytes of its target and those of its
content.
wire: SendMessageRequestP2B.
"""

from __future__ import annotations

from tubemq_spark.protocol.message import check_sum
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb

_SENT_ADDR = 0x7F000001  # 127.0.0.1; the broker stores it beside the message and nobody is shown it


def encode_target(client_id: str, partition: Partition, authorization: broker_pb.AuthorizedInfo) -> bytes:
    """Where a message goes, and who sends it."""
    return broker_pb.SendMessageRequestP2B(
        clientId=client_id,
        topicName=partition.topic,
        partitionId=partition.partition_id,
        sentAddr=_SENT_ADDR,
        authInfo=authorization,
    ).SerializePartialToString()


def encode_content(payload: bytes, flag: int, msg_type: str | None, msg_time: str | None) -> bytes:
    """What a message is: payload and flag as `message.encode_payload` gives them, and the broker's copies of type (by
    which it filters) and time (`yyyyMMddHHmm`, for its statistics). The broker compares the check sum."""
    return broker_pb.SendMessageRequestP2B(
        data=payload, flag=flag, checkSum=check_sum(payload), msgType=msg_type, msgTime=msg_time
    ).SerializePartialToString()
