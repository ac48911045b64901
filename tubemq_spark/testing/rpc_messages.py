# SPDX-License-Identifier: Apache-2.0
"""The request and reply message of each RPC method (wire: PbEnDecoder)."""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.message import Message

from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.protocol.pb import MasterService_pb2 as master_pb

REQUESTS: Mapping[Method, type[Message]] = {
    Method.PRODUCER_REGISTER: master_pb.RegisterRequestP2M,
    Method.PRODUCER_HEARTBEAT: master_pb.HeartRequestP2M,
    Method.PRODUCER_CLOSE: master_pb.CloseRequestP2M,
    Method.CONSUMER_REGISTER: master_pb.RegisterRequestC2M,
    Method.CONSUMER_HEARTBEAT: master_pb.HeartRequestC2M,
    Method.CONSUMER_CLOSE: master_pb.CloseRequestC2M,
    Method.BROKER_REGISTER: master_pb.RegisterRequestB2M,
    Method.BROKER_HEARTBEAT: master_pb.HeartRequestB2M,
    Method.BROKER_CLOSE: master_pb.CloseRequestB2M,
    Method.CONSUMER_REGISTER_V2: master_pb.RegisterRequestC2MV2,
    Method.CONSUMER_HEARTBEAT_V2: master_pb.HeartRequestC2MV2,
    Method.GET_PARTITION_META: master_pb.GetPartMetaRequestC2M,
    Method.SEND_MESSAGE: broker_pb.SendMessageRequestP2B,
    Method.PARTITION_REGISTER: broker_pb.RegisterRequestC2B,
    Method.PARTITION_HEARTBEAT: broker_pb.HeartBeatRequestC2B,
    Method.GET_MESSAGE: broker_pb.GetMessageRequestC2B,
    Method.COMMIT_OFFSET: broker_pb.CommitOffsetRequestC2B,
}

REPLIES: Mapping[Method, type[Message]] = {
    Method.PRODUCER_REGISTER: master_pb.RegisterResponseM2P,
    Method.PRODUCER_HEARTBEAT: master_pb.HeartResponseM2P,
    Method.PRODUCER_CLOSE: master_pb.CloseResponseM2P,
    Method.CONSUMER_REGISTER: master_pb.RegisterResponseM2C,
    Method.CONSUMER_HEARTBEAT: master_pb.HeartResponseM2C,
    Method.CONSUMER_CLOSE: master_pb.CloseResponseM2C,
    Method.CONSUMER_REGISTER_V2: master_pb.RegisterResponseM2CV2,
    Method.CONSUMER_HEARTBEAT_V2: master_pb.HeartResponseM2CV2,
    Method.GET_PARTITION_META: master_pb.GetPartMetaResponseM2C,
    Method.SEND_MESSAGE: broker_pb.SendMessageResponseB2P,
    Method.PARTITION_REGISTER: broker_pb.RegisterResponseB2C,
    Method.PARTITION_HEARTBEAT: broker_pb.HeartBeatResponseB2C,
    Method.GET_MESSAGE: broker_pb.GetMessageResponseB2C,
    Method.COMMIT_OFFSET: broker_pb.CommitOffsetResponseB2C,
}
"""Of the methods that clients call."""
