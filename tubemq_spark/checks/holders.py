# SPDX-License-Identifier: Apache-2.0
"""Check `holders`: who holds the partitions of a group now.

A fetch from a client that holds nothing changes nothing: the broker refuses it with 411 if nobody holds the partition,
and with 412 and the holder's client id if somebody does (wire: BrokerServiceServer.getConsumer).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress

from tubemq_spark.checks.cluster import Found
from tubemq_spark.checks.network import MAX_TIMEOUT
from tubemq_spark.checks.result import CheckResult, ok, warning
from tubemq_spark.checks.settings import CheckSettings
from tubemq_spark.client.cluster.master_client import new_client_id
from tubemq_spark.client.consumer.broker_requests import GroupRequests
from tubemq_spark.client.net.rpc import send_requests, unwrap_reply
from tubemq_spark.client.settings import ClientSettings
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
    held: defaultdict[str, list[Partition]] = defaultdict(list)
    for partition, holder in _holders(settings.client, settings.group, found, partitions):
        held[holder].append(partition)
    known, free = sum(map(len, held.values())), len(held.pop("", ()))
    for holder, theirs in sorted(held.items()):
        claim = ClaimId.parse(holder)
        who = f"client {holder}" if claim is None else f"query {claim.query} of this connector"
        who += f" ({claim.label})" if claim is not None and claim.label else ""
        shown = ", ".join(map(str, sorted(theirs)[:_MAX_SHOWN]))
        more = f" and {len(theirs) - _MAX_SHOWN} more" if len(theirs) > _MAX_SHOWN else ""
        yield warning(
            "holders",
            settings.group,
            f"{who} holds {len(theirs)} of {len(partitions)} partitions: {shown}{more}",
            "stop that consumer, or use another 'tubemq.group'; nothing is wrong if it is your own running query",
        )
    if free or not held:
        silent = f", {len(partitions) - known} brokers' partitions unknown" if known < len(partitions) else ""
        yield ok("holders", settings.group, f"{free} of {len(partitions)} partitions are free{silent}")


def _holders(
    client: ClientSettings, group: str, found: Found, partitions: Sequence[Partition]
) -> Iterator[tuple[Partition, str]]:
    """Yield each partition with its holder's client id, empty if nobody holds it. Partitions whose broker does not
    answer are left out."""
    requests = GroupRequests(client, group)
    client_id = new_client_id("check", client.clock)
    asked = [requests.fetch(found.brokers[one.broker_id], one, client_id) for one in partitions]
    outcomes = send_requests(client, asked, min(MAX_TIMEOUT, client.rpc_timeout))
    for partition, request, outcome in zip(partitions, asked, outcomes, strict=True):
        with suppress(TubeMQError):
            reply = unwrap_reply(outcome, pb.GetMessageResponseB2C, request.what)
            if reply.errCode == ErrCode.DUPLICATE_PARTITION:
                yield partition, holder_in(reply.errMsg) or "another client"
            elif reply.errCode == ErrCode.HB_NO_NODE:
                yield partition, ""
