from __future__ import annotations

import zlib

from hypothesis import given
from hypothesis import strategies as st

from tubemq_spark.protocol.auth import Credentials, broker_authorization
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb
from tubemq_spark.protocol.send_request import encode_content, encode_target


@given(
    payload=st.binary(max_size=300),
    flag=st.sampled_from([0, 1]),
    msg_type=st.none() | st.text(max_size=20),
    msg_time=st.none() | st.just("202611210830"),
    partition_id=st.sampled_from([0, 2, 10_001]),
    token=st.integers(-2, 2**63 - 1),
    credentials=st.none() | st.just(Credentials("me", "secret")),
)
def test_target_and_content_are_one_request(
    payload: bytes,
    flag: int,
    msg_type: str | None,
    msg_time: str | None,
    partition_id: int,
    token: int,
    credentials: Credentials | None,
) -> None:
    authorization = broker_authorization(credentials, token, 1_700_000_000_000, 17)
    target = encode_target("client", Partition(3, "demo", partition_id), authorization)
    content = encode_content(payload, flag, msg_type, msg_time)

    request = broker_pb.SendMessageRequestP2B.FromString(target + content)

    assert request == broker_pb.SendMessageRequestP2B(
        clientId="client",
        topicName="demo",
        partitionId=partition_id,
        data=payload,
        flag=flag,
        checkSum=zlib.crc32(payload) & 0x7FFFFFFF,
        sentAddr=0x7F000001,
        msgType=msg_type,
        msgTime=msg_time,
        authInfo=authorization,
    )
