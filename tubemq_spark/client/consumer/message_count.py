"""Counts the messages of held partitions between where their group stands and the end of their stores.

The cursor of a held partition stands where its group does, so a fetch needs no seek. A roll-back in the same write puts
the cursor back, and tells where the group stands and where the store ends afterwards. The group is not moved.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from tubemq_spark.client.cluster.master_client import ConsumerSession
from tubemq_spark.client.consumer.broker_requests import GroupRequests
from tubemq_spark.client.consumer.driver_claims import DriverClaims
from tubemq_spark.client.net.rpc import ServerRequest, send_requests, unwrap_reply
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb

_log = logging.getLogger(__name__)

_TOGETHER = 32  # partitions in one write: a fetch may bring a third of a megabyte, and all answers are kept


class MessageCount(NamedTuple):
    """One fetch found so many `messages`; the store ended at `end` after it."""

    messages: int
    end: int


def count_messages(
    session: ConsumerSession, claims: DriverClaims, partitions: Sequence[Partition]
) -> dict[Partition, MessageCount]:
    """What one fetch of each partition finds; a partition is missing when its broker gave an unusual answer, which is
    left to `DriverClaims.ask`, or when its store has already got more than `claims` knew of. `claims` must hold the
    partitions."""
    calls = GroupRequests(session.settings, session.group, session.token)
    found: dict[Partition, MessageCount] = {}
    for first in range(0, len(partitions), _TOGETHER):
        grown = {one.store for one, counted in found.items() if counted.end != claims.standing(one).end}
        part = [one for one in partitions[first : first + _TOGETHER] if one.store not in grown]
        requests: list[ServerRequest] = []
        for partition in part:
            client_id = claims.client_id(partition)
            assert client_id is not None, f"{partition} is not held"
            broker = session.broker(partition)
            requests.append(calls.fetch(broker, partition, client_id, escape=True))
            requests.append(calls.roll_back(broker, partition, client_id))
        outcomes = send_requests(session.settings, requests)
        for number, partition in enumerate(part):
            asked, heard = requests[2 * number : 2 * number + 2], outcomes[2 * number : 2 * number + 2]
            try:
                got = unwrap_reply(heard[0], broker_pb.GetMessageResponseB2C, asked[0].what)
                back = unwrap_reply(heard[1], broker_pb.CommitOffsetResponseB2C, asked[1].what)
            except TransportError as trouble:
                _log.info("%s", trouble)
                continue
            counted = _count(got, claims.standing(partition).group)
            if counted is not None and back.errCode == ErrCode.SUCCESS:
                found[partition] = MessageCount(counted, back.maxOffset)
    return found


def _count(got: broker_pb.GetMessageResponseB2C, group: int) -> int | None:
    """The messages of a fetch that began where the group stands, None when it did not, or read nothing."""
    if got.errCode == ErrCode.NOT_FOUND:
        return 0
    return len(got.messages) if got.errCode == ErrCode.SUCCESS and got.currOffset == group else None
