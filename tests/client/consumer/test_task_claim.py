# SPDX-License-Identifier: Apache-2.0
"""Tests of the claim of a task: it comes with the first seek, and the reader looks for a broker that has moved."""

from __future__ import annotations

import socket

import pytest

from tests.peers import Peer, calling_itself, reply_bytes, requests
from tubemq_spark.client.consumer.partition_reader import PartitionReader
from tubemq_spark.client.consumer.range_to_read import PartitionSnapshot, RangeToRead
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.claim_id import ClaimId
from tubemq_spark.protocol.constants import IDENTITY_GROUP, Framing, Method
from tubemq_spark.protocol.metadata import Broker, Partition


def test_the_first_fetch_does_not_wait_for_the_reply_to_the_claim() -> None:
    """The broker answers nothing but who it is. It hangs up when the fetch has come."""
    methods: list[int] = []
    identify = calling_itself(1)

    def serve(connection: socket.socket) -> None:
        for serial_no, request in requests(connection):
            if IDENTITY_GROUP.encode() in request.data:
                if (reply := identify(request)) is not None:
                    connection.sendall(reply_bytes(serial_no, reply))
                continue
            methods.append(request.method)
            if request.method == Method.GET_MESSAGE:
                return

    with Peer(serve) as peer:
        reader = PartitionReader(
            ClientSettings((), framing=Framing.STANDARD, retry_for=0.0, rpc_timeout=5.0),
            "g",
            ClaimId("query", run=1, batch=1, task=0),
            RangeToRead(Partition(1, "demo", 0), 0, 280, owns_store=True),
            PartitionSnapshot(Broker(1, peer.address), "g_look"),
        )
        with pytest.raises(TransportError):
            list(reader.batches())
    assert methods == [Method.PARTITION_REGISTER, Method.GET_MESSAGE]
