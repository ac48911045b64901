"""Encoding of a send request in two parts, so that neither part is encoded more often than it changes.

The content of a record (data, flag, check sum, type, time) stays the same when it is sent again to another partition.
The target (client, topic, partition, authorisation) is the same for all records of a partition. Protobuf reads two
messages written one behind the other as one message with the fields of both. So a request is target plus content.
wire: SendMessageRequestP2B.
"""

from __future__ import annotations

from tubemq_spark.protocol.message import check_sum
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb

_SENT_ADDR = 0x7F000001  # 127.0.0.1; the broker stores it beside the message and shows it to nobody


def encode_target(client_id: str, partition: Partition, authorization: broker_pb.AuthorizedInfo) -> bytes:
    """Return the part of a request that names sender and partition."""
    return broker_pb.SendMessageRequestP2B(
        clientId=client_id,
        topicName=partition.topic,
        partitionId=partition.partition_id,
        sentAddr=_SENT_ADDR,
        authInfo=authorization,
    ).SerializePartialToString()


def encode_content(payload: bytes, flag: int, msg_type: str | None, msg_time: str | None) -> bytes:
    """Return the part of a request that holds the record. `payload` and `flag` are `message.encode_payload`'s.

    The broker filters by `msg_type`, counts by `msg_time` (`yyyyMMddHHmm`), and compares the check sum.
    """
    return broker_pb.SendMessageRequestP2B(
        data=payload, flag=flag, checkSum=check_sum(payload), msgType=msg_type, msgTime=msg_time
    ).SerializePartialToString()
