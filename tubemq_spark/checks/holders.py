# SPDX-License-Identifier: Apache-2.0
"""Check `holders`: who holds the partitions of a group now.

A fetch from a client that holds nothing changes nothing: the broker refuses it with 411 if nobody holds the partition,
and with 412 and the holder's client id if somebody does (wire: BrokerServiceServer.getConsumer).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from tubemq_spark.checks.cluster import Found
from tubemq_spark.checks.result import CheckResult, ok, warning
from tubemq_spark.checks.settings import CheckSettings
from tubemq_spark.client.cluster.master_client import new_client_id
from tubemq_spark.client.consumer.broker_requests import GroupRequests
from tubemq_spark.client.net.rpc import send_requests, unwrap_reply
from tubemq_spark.errors import TubeMQError
from tubemq_spark.protocol.claim_id import ClaimId, holder_in
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.pb import BrokerService_pb2 as pb

_MAX_SHOWN = 4  # partitions of a holder


def check_holders(settings: CheckSettings, found: Found) -> Iterator[CheckResult]:
    """Yield one result for each holder of a partition of the group, or one that says that there is none."""
    if settings.group is None or not found.readable:
        return
    partitions = [partition for layout in found.readable for partition in layout.all_partitions()]
    holders = find_holders(settings, found, partitions)
    held: defaultdict[str, list[Partition]] = defaultdict(list)
    for partition, holder in holders.items():
        if holder:
            held[holder].append(partition)
    for holder, theirs in sorted(held.items()):
        yield warning(
            "holders",
            settings.group,
            f"{_described(holder)} holds {len(theirs)} of {len(partitions)} partitions: {_listed(theirs)}",
            "stop that consumer, or use another 'tubemq.group'; nothing is wrong if it is your own running query",
        )
    free = sum(not holder for holder in holders.values())
    if free or not held:
        silent = len(partitions) - len(holders)
        text = f"{free} of {len(partitions)} partitions are free"
        yield ok("holders", settings.group, text + (f", {silent} brokers' partitions unknown" if silent else ""))


def find_holders(settings: CheckSettings, found: Found, partitions: Sequence[Partition]) -> dict[Partition, str]:
    """Return the client id of each partition's holder, empty if nobody holds it. Partitions whose broker does not
    answer are left out."""
    assert settings.group is not None
    requests = GroupRequests(settings.client, settings.group)
    client_id = new_client_id("check", settings.client.clock)
    asked = [requests.fetch(found.brokers[one.broker_id], one, client_id) for one in partitions]
    outcomes = send_requests(settings.client, asked, min(5.0, settings.client.rpc_timeout))
    holders = {}
    for partition, request, outcome in zip(partitions, asked, outcomes, strict=True):
        try:
            reply = unwrap_reply(outcome, pb.GetMessageResponseB2C, request.what)
        except TubeMQError:
            continue
        if reply.errCode == ErrCode.DUPLICATE_PARTITION:
            holders[partition] = holder_in(reply.errMsg) or "another client"
        elif reply.errCode == ErrCode.HB_NO_NODE:
            holders[partition] = ""
    return holders


def _described(holder: str) -> str:
    claim = ClaimId.parse(holder)
    if claim is None:
        return f"client {holder}"
    return f"query {claim.query} of this connector" + (f" ({claim.label})" if claim.label else "")


def _listed(partitions: Sequence[Partition]) -> str:
    more = f" and {len(partitions) - _MAX_SHOWN} more" if len(partitions) > _MAX_SHOWN else ""
    return ", ".join(map(str, sorted(partitions)[:_MAX_SHOWN])) + more
