# SPDX-License-Identifier: Apache-2.0
"""Read all messages of a topic in the simplest way, to check what is stored."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from google.protobuf.message import Message

from tests.clusters import Cluster
from tests.messages import broker, partitions, settings
from tubemq_spark.client.net.rpc import ServerRequest, send_requests, unwrap_reply
from tubemq_spark.protocol.constants import READ_EVERYTHING, UNKNOWN_ID, Method, OpType, ReadStatus, ServiceType
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.message import Attributes, check_sum, decode_attributes, split_payload
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb


@dataclass(frozen=True)
class Stored:
    """A message as a consumer receives it."""

    body: bytes
    attributes: Attributes
    partition: Partition


def stored_in(
    cluster: Cluster, topic: str, broker_id: int | None = None, *, filters: Sequence[str] = ()
) -> list[Stored]:
    """Return all messages of a topic, on one broker or on all, by partition, read by a new group. With `filters`,
    return only messages of these types."""
    chosen = [p for p in partitions(cluster, topic) if broker_id in (None, p.broker_id)]
    return [stored for partition in chosen for stored in _read(cluster, partition, filters)]


def _read(cluster: Cluster, partition: Partition, filters: Sequence[str]) -> Iterator[Stored]:
    client = group = f"stored_{uuid.uuid4().hex[:12]}"
    address = broker(cluster, partition.broker_id).address

    def call(method: Method, message: Message) -> ServerRequest:
        return ServerRequest(address, ServiceType.BROKER_READ, method, message, f"reading {partition}")

    def claim(op_type: OpType) -> int:
        message = broker_pb.RegisterRequestC2B(
            opType=op_type,
            clientId=client,
            groupName=group,
            topicName=partition.topic,
            partitionId=partition.partition_id,
            readStatus=ReadStatus.FROM_MAX,
            currOffset=0,
            filterCondStr=filters,
            qryPriorityId=READ_EVERYTHING,
            authInfo=broker_pb.AuthorizedInfo(visitAuthorizedToken=UNKNOWN_ID),
        )
        (outcome,) = send_requests(settings(cluster), [call(Method.PARTITION_REGISTER, message)])
        reply = unwrap_reply(outcome, broker_pb.RegisterResponseB2C, f"{op_type.name} of {partition}")
        assert reply.errCode == ErrCode.SUCCESS, reply
        return reply.maxOffset

    get = broker_pb.GetMessageRequestC2B(
        clientId=client,
        partitionId=partition.partition_id,
        groupName=group,
        topicName=partition.topic,
        manualCommitOffset=True,
    )
    begun = claim(OpType.REGISTER) > 0  # an empty store has no end
    while begun:
        (outcome,) = send_requests(settings(cluster), [call(Method.GET_MESSAGE, get)])
        reply = unwrap_reply(outcome, broker_pb.GetMessageResponseB2C, f"reading {partition}")
        if "reached maxOffset" in reply.errMsg:
            break
        assert reply.errCode in (ErrCode.SUCCESS, ErrCode.NOT_FOUND), reply
        for message in reply.messages:
            assert message.checkSum == check_sum(message.payLoadData)
            attributes, body = split_payload(message.payLoadData, message.flag)
            yield Stored(body, decode_attributes(attributes), partition)
    claim(OpType.UNREGISTER)
