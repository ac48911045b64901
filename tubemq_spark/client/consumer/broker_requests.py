# SPDX-License-Identifier: Apache-2.0
"""Requests of a consumer group to brokers: register (claim and seek), fetch, commit, heartbeat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.message import Message

from tubemq_spark.client.net.broker_identity import ExpectedBroker
from tubemq_spark.client.net.rpc import Outcome, ServerRequest, unwrap_reply
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.client.visit_token import NO_TOKEN, VisitToken, authorization
from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol.claim_id import holder_in
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.constants import READ_EVERYTHING, Method, OpType, ReadStatus, ServiceType
from tubemq_spark.protocol.envelope import Response
from tubemq_spark.protocol.errcode import ErrCode, Reaction, error_for_code, is_retryable, reaction_to, refused_for_now
from tubemq_spark.protocol.fetched_batch import StoredMessage
from tubemq_spark.protocol.message_columns import split_reply
from tubemq_spark.protocol.metadata import Broker, Partition, partition_info
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb

COLUMNS_FROM = 1 << 15
"""Bytes of a reply whose messages are decoded as columns; for less the parser is faster."""

Exchange = tuple[ServerRequest, Outcome]

MAX_POSITION = 1 << 56
"""Bytes of an index: those of 80 years with a million messages a second."""


@dataclass(frozen=True)
class GroupRequests:
    """Builds requests of `group`, with the newest visit token where a request carries one."""

    settings: ClientSettings
    group: str
    token: VisitToken = NO_TOKEN

    def register(
        self,
        broker: Broker,
        partition: Partition,
        client_id: str,
        position: int | None = None,
        read_status: ReadStatus = ReadStatus.NORMAL,
        filters: Sequence[str] = (),
        policy: int = READ_EVERYTHING,
    ) -> ServerRequest:
        """Claim the partition for `client_id`, or seek in a claimed one. `ClaimTarget` explains the positions.

        With filters, fetches return messages whose type has the same hash code as one of them. `policy` is what fetches
        may read until the next registration.
        """
        message = self._registration(OpType.REGISTER, partition, client_id, read_status)
        message.qryPriorityId = policy
        message.filterCondStr.extend(filters)
        if position is not None:
            message.currOffset = position
        return self._request(broker, Method.PARTITION_REGISTER, message, f"claiming {partition} for group {self.group}")

    def unregister(self, broker: Broker, partition: Partition, client_id: str) -> ServerRequest:
        """Release the claim. The group stays where it is; messages that were delivered are not confirmed."""
        message = self._registration(OpType.UNREGISTER, partition, client_id, ReadStatus.FROM_MAX)
        return self._request(broker, Method.PARTITION_REGISTER, message, f"releasing {partition}")

    def fetch(self, broker: Broker, partition: Partition, client_id: str, *, escape: bool = False) -> ServerRequest:
        """Read from the cursor on. With `escape` the broker does not apply its rate limit."""
        message = broker_pb.GetMessageRequestC2B(
            clientId=client_id,
            partitionId=partition.partition_id,
            groupName=self.group,
            topicName=partition.topic,
            manualCommitOffset=True,
            escFlowCtrl=escape,
        )
        return self._request(broker, Method.GET_MESSAGE, message, f"reading {partition}")

    def roll_back(self, broker: Broker, partition: Partition, client_id: str) -> ServerRequest:
        """Move the cursor back to the confirmed position. The reply has that position and the end of the store."""
        message = broker_pb.CommitOffsetRequestC2B(
            clientId=client_id,
            topicName=partition.topic,
            partitionId=partition.partition_id,
            groupName=self.group,
            lastPackConsumed=False,
        )
        return self._request(broker, Method.COMMIT_OFFSET, message, f"asking for the end of {partition}")

    def heartbeat(self, broker: Broker, client_id: str, partitions: Sequence[Partition]) -> ServerRequest:
        message = broker_pb.HeartBeatRequestC2B(
            clientId=client_id,
            groupName=self.group,
            readStatus=ReadStatus.NORMAL,
            partitionInfo=[partition_info(broker, partition) for partition in partitions],
            qryPriorityId=READ_EVERYTHING,
            authInfo=authorization(self.settings.credentials, self.token.value),
        )
        return self._request(broker, Method.PARTITION_HEARTBEAT, message, f"the heartbeat of {client_id}")

    def _registration(
        self, op_type: OpType, partition: Partition, client_id: str, read_status: ReadStatus
    ) -> broker_pb.RegisterRequestC2B:
        return broker_pb.RegisterRequestC2B(
            opType=op_type,
            clientId=client_id,
            groupName=self.group,
            topicName=partition.topic,
            partitionId=partition.partition_id,
            readStatus=read_status,
            authInfo=authorization(self.settings.credentials, self.token.value),
        )

    def _request(self, broker: Broker, method: Method, message: Message, what: str) -> ServerRequest:
        token = self.token if method in (Method.PARTITION_REGISTER, Method.PARTITION_HEARTBEAT) else None
        server = ExpectedBroker(broker, self.token)
        return ServerRequest(server, ServiceType.BROKER_READ, method, message, f"{what} at {broker}", token)


def check_positions(what: str, cursor: int, end: int) -> None:
    """Raise `ProtocolError` if no store can have these positions: they must not come into a checkpoint.

    Only the broker decides about `end`. Administrators may have set a group's position to any number.
    """
    if not (0 <= cursor <= MAX_POSITION and 0 <= end <= MAX_POSITION and end % UNIT == 0):
        raise ProtocolError(
            f"{what}: the broker reports position {cursor} and the end {end} of the store. Positions are multiples of "
            f"{UNIT} from 0 to {MAX_POSITION}: check that this is a broker of TubeMQ, and its log"
        )


def unwrap_seek(exchange: Exchange) -> broker_pb.RegisterResponseB2C:
    """Return the reply to a seek of a planner.

    Raise `TransportError` if the same seek may succeed later, else as `error_for_code` and `check_positions`.
    """
    request, outcome = exchange
    reply = unwrap_reply(outcome, broker_pb.RegisterResponseB2C, request.what)
    if reply.errCode == ErrCode.SUCCESS:
        check_positions(request.what, reply.currOffset, reply.maxOffset)
        return reply
    if is_retryable(reply.errCode) or reaction_to(reply.errCode) is Reaction.CLAIM_LOST:
        raise refused_for_now(reply.errCode, reply.errMsg, request.what, holder_in(reply.errMsg))
    raise error_for_code(reply.errCode, reply.errMsg, request.what)


def unwrap_fetch(outcome: Outcome, what: str) -> tuple[broker_pb.GetMessageResponseB2C, Sequence[StoredMessage]]:
    """Return the reply to a fetch, whose own `messages` do not count, and its messages, as columns if that pays.

    Raises as `unwrap_reply`.
    """
    if isinstance(outcome, Response) and len(outcome.body) >= COLUMNS_FROM:
        split = split_reply(outcome.body, outcome.begin)
        if split is not None:
            rest, messages = split
            try:
                reply = unwrap_reply(Response(outcome.method, rest), broker_pb.GetMessageResponseB2C, what)
            except ProtocolError:
                pass  # the error has to show the whole reply
            else:
                if not reply.messages:  # all were found
                    return reply, messages
    reply = unwrap_reply(outcome, broker_pb.GetMessageResponseB2C, what)
    return reply, reply.messages
