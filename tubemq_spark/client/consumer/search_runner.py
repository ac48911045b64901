# SPDX-License-Identifier: Apache-2.0
"""Runs searches over the indexes of many partitions together.

`protocol.index_search` decides where to probe next. Here the probes are sent. A binary search takes O(log n) probes
among n entries if the messages have times. Stretches without times are read once or twice, several fetches a probe.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tubemq_spark.client.consumer.broker_requests import Exchange, unwrap_seek
from tubemq_spark.client.consumer.conversations import Conversation, Wait, hold
from tubemq_spark.client.consumer.visitor import Visitor
from tubemq_spark.client.net.rpc import unwrap_reply
from tubemq_spark.errors import TimestampMissingError, TransportError
from tubemq_spark.protocol.errcode import (
    ErrCode,
    NotFound,
    Reaction,
    error_for_code,
    is_retryable,
    not_found_kind,
    reaction_to,
)
from tubemq_spark.protocol.flow_rules import LEAST_DATA_WAIT, LONGEST_WAIT
from tubemq_spark.protocol.index_search import Reply, Search
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb

_log = logging.getLogger(__name__)


def run_searches(
    visitor: Visitor,
    searches: Mapping[Partition, Search],
    what: str,
    without_times: Callable[[Partition], int | None] = lambda _: None,
) -> dict[Partition, int]:
    """Return the position that each search finds. Error messages call the wanted message `what`. `without_times` is
    asked for the position where messages seem to have no times; None raises `TimestampMissingError`.

    A group that the cluster limits (452) waits as long as the limit lasts. Raise `TransportError` if a broker stays
    away or refuses for longer than the settings' `retry_for`; `ServerError` or another `TubeMQError` for a permanent
    refusal.
    """
    conversations = {
        partition: partial(searching, visitor, partition, search, what, without_times)
        for partition, search in searches.items()
    }
    return hold(visitor, conversations, f"looking for {what} in group {visitor.group}")


def searching(
    visitor: Visitor,
    partition: Partition,
    search: Search,
    what: str,
    without_times: Callable[[Partition], int | None] = lambda _: None,
) -> Conversation[int]:
    """Return the position that the search finds, see `run_searches`."""
    is_limited = False
    while search.position is None:
        if search.is_hopeless:
            if (position := without_times(partition)) is None:
                raise TimestampMissingError(
                    f"{partition}: the search for {what} has read {search.times.untimed} messages from all over the "
                    "store, and none has a $msgTime$. Let the producers set it, or give positions instead, with "
                    "'startingOffsets' and 'endingOffsets'"
                )
            search.finish(position)
            continue
        probe = search.next_probe()
        assert probe is not None, f"{search!r} needs none"
        seek, fetch = visitor.seek(partition, probe.position), visitor.fetch(partition, escape=False)
        refusal = _evaluate(search, (yield [seek, *[fetch] * probe.fetches, seek]))
        if refusal is not None:
            is_news = refusal.seconds and not is_limited
            is_limited = is_limited or bool(refusal.seconds)
            _log.log(
                logging.WARNING if is_news else logging.INFO, "[time-search-refused] %s; trying again", refusal.reason
            )
            if not (yield refusal):
                raise TransportError(refusal.reason)
    return search.position


def _evaluate(search: Search, exchanges: Sequence[Exchange]) -> Wait | None:
    """Pass the replies to `search`. Return why it got no further, None if it did."""
    begin, again = unwrap_seek(exchanges[0]), unwrap_seek(exchanges[-1])
    found: list[Reply | NotFound] = []
    refusal = Wait(f"{exchanges[1][0].what}: nothing new was found at {begin.currOffset}")
    for request, outcome in exchanges[1:-1]:
        reply = unwrap_reply(outcome, broker_pb.GetMessageResponseB2C, request.what)
        if reply.errCode == ErrCode.SUCCESS:
            found.append(Reply(reply.currOffset, reply.messages))
            continue
        if not is_retryable(reply.errCode) and reaction_to(reply.errCode) is not Reaction.CLAIM_LOST:
            raise error_for_code(reply.errCode, reply.errMsg, request.what)
        kind = not_found_kind(reply.errMsg) if reply.errCode == ErrCode.NOT_FOUND else NotFound.WAIT
        found.append(kind)
        if kind is NotFound.WAIT:
            refusal = Wait(f"{request.what}: {reply.errCode} {reply.errMsg}")
            if reply.errCode == ErrCode.SERVER_CONSUME_SPEED_LIMIT:
                pause = min(max(LEAST_DATA_WAIT, reply.minLimitTime), LONGEST_WAIT) / 1000
                refusal = Wait(f"{refusal.reason}, asked again after {pause:g} s", pause)
            break
    return None if search.found(begin.currOffset, found, again.maxOffset) else refusal
