# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.golden.capture <master> <file.zip> [framing]`` captures a conversation with a real TubeMQ.

The cluster must be new, with one broker and a topic ``demo`` of three partitions in one store, as ``python -m
tests.real`` starts it. The zip gets the frames ``<name>.request`` and ``<name>.reply`` of each exchange.
"""

from __future__ import annotations

import socket
import sys
import zipfile

from google.protobuf.message import Message

from tubemq_spark.protocol.constants import (
    READ_EVERYTHING,
    UNKNOWN_ID,
    Framing,
    Method,
    OpType,
    ReadStatus,
    ServiceType,
)
from tubemq_spark.protocol.envelope import Request, Response, decode_reply, encode_request, parse
from tubemq_spark.protocol.frame import FrameDecoder, encode_frame
from tubemq_spark.protocol.message import check_sum, encode_attributes, encode_payload
from tubemq_spark.protocol.metadata import Address, parse_addresses, parse_broker
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.protocol.pb import MasterService_pb2 as master_pb

TOPIC, GROUP, PRODUCER, CONSUMER, RIVAL = "demo", "golden_group", "golden_producer", "golden_consumer", "golden_rival"
PARTITION = 1
HOST, HOST_NUMBER = "127.0.0.1", 0x7F000001

PLAIN = b"plain \x00\xff"
ATTRIBUTED = "mit Attributen: größer".encode()
LONG = bytes(range(256)) * 40  # two blocks of a frame


class Capture:
    def __init__(self, files: zipfile.ZipFile, framing: Framing) -> None:
        self._files = files
        self._framing = framing
        self._serial_no = 0

    def call(self, name: str, address: Address, service: int, method: int, message: Message | bytes) -> bytes:
        """Send a request, store the bytes of request and reply, and return the reply's message, empty for a failure."""
        self._serial_no += 1
        data = message if isinstance(message, bytes) else message.SerializeToString()
        request = encode_frame(self._serial_no, encode_request(Request(service, method, 10_000, data)), self._framing)
        decoder, received = FrameDecoder(self._framing), b""
        with socket.create_connection(address, timeout=10) as connection:
            connection.sendall(request)
            while not (frames := decoder.feed(piece := connection.recv(65536))):
                if not piece:
                    raise EOFError(f"{address} closed the connection instead of replying to {name}")
                received += piece
            received += piece
        for kind, data in (("request", request), ("reply", received)):
            self._files.writestr(zipfile.ZipInfo(f"{name}.{kind}"), data, zipfile.ZIP_DEFLATED)
        reply = decode_reply(frames[0].body)
        print(f"{name}: {reply}"[:300])
        return reply.data if isinstance(reply, Response) else b""


def producer_calls(capture: Capture, master: Address) -> Address:
    """The broker's address."""
    register = master_pb.RegisterRequestP2M(
        clientId=PRODUCER,
        topicList=[TOPIC],
        brokerCheckSum=-1,
        hostName=HOST,
        appdConfig=master_pb.ApprovedClientConfig(configId=UNKNOWN_ID),
    )
    data = capture.call("producer_register", master, ServiceType.MASTER, Method.PRODUCER_REGISTER, register)
    registered = parse(master_pb.RegisterResponseM2P, data)
    heartbeat = master_pb.HeartRequestP2M(
        clientId=PRODUCER, brokerCheckSum=registered.brokerCheckSum, hostName=HOST, topicList=[TOPIC]
    )
    capture.call("producer_heartbeat", master, ServiceType.MASTER, Method.PRODUCER_HEARTBEAT, heartbeat)
    close = master_pb.CloseRequestP2M(clientId=PRODUCER)
    capture.call("producer_close", master, ServiceType.MASTER, Method.PRODUCER_CLOSE, close)
    capture.call("producer_unknown", master, ServiceType.MASTER, Method.PRODUCER_HEARTBEAT, heartbeat)
    broker = parse_broker(registered.brokerInfos[0])
    assert broker is not None
    return broker.address


def consumer_calls(capture: Capture, master: Address) -> None:
    register = master_pb.RegisterRequestC2MV2(
        clientId=CONSUMER, groupName=GROUP, hostName=HOST, sourceCount=-1, nodeId=-1, topicList=[TOPIC]
    )
    capture.call("consumer_register", master, ServiceType.MASTER, Method.CONSUMER_REGISTER_V2, register)
    meta = master_pb.GetPartMetaRequestC2M(
        clientId=CONSUMER, groupName=GROUP, brokerConfigId=UNKNOWN_ID, topicMetaInfoId=UNKNOWN_ID
    )
    capture.call("partition_meta", master, ServiceType.MASTER, Method.GET_PARTITION_META, meta)
    held = master_pb.ClientSubRepInfo(
        brokerConfigId=UNKNOWN_ID,
        topicMetaInfoId=UNKNOWN_ID,
        reportSubInfo=True,
        partSubInfo=[f"{TOPIC}#1:{PARTITION}"],
    )
    heartbeat = master_pb.HeartRequestC2MV2(clientId=CONSUMER, groupName=GROUP, subRepInfo=held)
    capture.call("consumer_heartbeat", master, ServiceType.MASTER, Method.CONSUMER_HEARTBEAT_V2, heartbeat)
    close = master_pb.CloseRequestC2M(clientId=CONSUMER, groupName=GROUP)
    capture.call("consumer_close", master, ServiceType.MASTER, Method.CONSUMER_CLOSE, close)


def send(capture: Capture, broker: Address, name: str, body: bytes, attributes: bytes = b"") -> None:
    payload, flag = encode_payload(body, attributes)
    message = broker_pb.SendMessageRequestP2B(
        clientId=PRODUCER,
        topicName=TOPIC,
        partitionId=PARTITION,
        data=payload,
        flag=flag,
        checkSum=check_sum(payload),
        sentAddr=HOST_NUMBER,
        authInfo=broker_pb.AuthorizedInfo(visitAuthorizedToken=UNKNOWN_ID),
    )
    if attributes:
        message.msgType, message.msgTime = "blue", "202402291530"
    capture.call(name, broker, ServiceType.BROKER_WRITE, Method.SEND_MESSAGE, message)


def broker_calls(capture: Capture, broker: Address) -> None:
    def register(client: str, op_type: OpType = OpType.REGISTER) -> broker_pb.RegisterRequestC2B:
        return broker_pb.RegisterRequestC2B(
            opType=op_type,
            clientId=client,
            groupName=GROUP,
            topicName=TOPIC,
            partitionId=PARTITION,
            readStatus=ReadStatus.NORMAL if op_type is OpType.REGISTER else ReadStatus.FROM_MAX,
            currOffset=0,
            qryPriorityId=READ_EVERYTHING,
            authInfo=broker_pb.AuthorizedInfo(visitAuthorizedToken=UNKNOWN_ID),
        )

    def read(name: str, method: Method, message: Message) -> None:
        capture.call(name, broker, ServiceType.BROKER_READ, method, message)

    def heartbeat(*partitions: str) -> broker_pb.HeartBeatRequestC2B:
        return broker_pb.HeartBeatRequestC2B(
            clientId=CONSUMER, groupName=GROUP, readStatus=ReadStatus.NORMAL, partitionInfo=partitions
        )

    get = broker_pb.GetMessageRequestC2B(
        clientId=CONSUMER, partitionId=PARTITION, groupName=GROUP, topicName=TOPIC, manualCommitOffset=True
    )
    roll_back = broker_pb.CommitOffsetRequestC2B(
        clientId=CONSUMER, topicName=TOPIC, partitionId=PARTITION, groupName=GROUP, lastPackConsumed=False
    )
    claim = f"1:{broker}#{TOPIC}:"

    attributes = encode_attributes({"colour": "grün", "size": ""}, "blue", "202402291530")
    send(capture, broker, "send_plain", PLAIN)
    send(capture, broker, "send_attributes", ATTRIBUTED, attributes)
    send(capture, broker, "send_long", LONG)
    send(capture, broker, "send_empty", b"")
    read("claim", Method.PARTITION_REGISTER, register(CONSUMER))
    read("claim_occupied", Method.PARTITION_REGISTER, register(RIVAL))
    read("get", Method.GET_MESSAGE, get)
    read("get_at_end", Method.GET_MESSAGE, get)
    read("roll_back", Method.COMMIT_OFFSET, roll_back)
    read("claim_heartbeat", Method.PARTITION_HEARTBEAT, heartbeat(f"{claim}{PARTITION}"))
    read("claim_heartbeat_failed", Method.PARTITION_HEARTBEAT, heartbeat(f"{claim}{PARTITION}", f"{claim}2"))
    read("error", Method.PARTITION_HEARTBEAT, heartbeat("no such form"))
    read("release", Method.PARTITION_REGISTER, register(CONSUMER, OpType.UNREGISTER))
    read("get_unclaimed", Method.GET_MESSAGE, get)
    capture.call("fatal", broker, ServiceType.BROKER_READ, Method.GET_MESSAGE, b"\xff")


def main() -> None:
    (master,) = parse_addresses(sys.argv[1])
    framing = Framing(sys.argv[3]) if len(sys.argv) > 3 else Framing.STANDARD
    with zipfile.ZipFile(sys.argv[2], "w") as files:
        capture = Capture(files, framing)
        broker = producer_calls(capture, master)
        consumer_calls(capture, master)
        broker_calls(capture, broker)


if __name__ == "__main__":
    main()
