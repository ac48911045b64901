# SPDX-License-Identifier: Apache-2.0
"""Runs searches over the indexes of many partitions together.

`protocol.index_search` decides where to probe next. Here the probes are sent. A binary search takes O(log n) probes
among n entries if the messages have times. Stretches without times are read once or twice, several fetches a probe.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, cast

from tubemq_spark.client.consumer.broker_requests import Exchange, unwrap_seek
from tubemq_spark.client.consumer.probe import write_batches
from tubemq_spark.client.consumer.visitor import Visitor
from tubemq_spark.client.net.rpc import ServerRequest, unwrap_reply
from tubemq_spark.client.retries import Retries
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


class _Refusal(NamedTuple):
    """Why a probe found nothing new. `pause` is the number of seconds that a rate-limited group must wait, else 0."""

    text: str
    pause: float = 0.0


def run_searches(
    visitor: Visitor,
    searches: Mapping[Partition, Search],
    what: str,
    without_times: Callable[[Partition], int | None] = lambda _: None,
) -> dict[Partition, int]:
    """Return the position that each search finds. Error messages call the wanted message `what`. `without_times` is
    asked for the position where messages seem to have no times; None raises `TimestampMissingError`.

    Searches whose broker refused wait until the others are complete. A group that the cluster limits (452) waits as
    long as the limit lasts. Raise `TransportError` if a broker stays away or refuses for longer than the settings'
    `retry_for`; `ServerError` or another `TubeMQError` for a permanent refusal.
    """
    settings, goal = visitor.settings, f"looking for {what}"
    retries = Retries(settings.retry_for, settings.clock, f"{goal} in group {visitor.group}", _log)
    waiting: dict[Partition, _Refusal] = {}
    warned: set[Partition] = set()
    active = list(searches)
    while True:
        active = [partition for partition in active if searches[partition].position is None]
        if not active and not waiting:
            return {partition: cast(int, search.position) for partition, search in searches.items()}
        if not active:
            if (problem := _pause(retries, waiting.values())) is not None:
                raise TransportError(
                    f"{problem}; gave up {goal} after {settings.retry_for:g} s. Check that the broker runs, that the "
                    "driver can reach it, and that the topic is open for reading"
                )
            active, waiting = list(waiting), {}
        batch = write_batches(active)[0]
        refused = _probe(visitor, {partition: searches[partition] for partition in batch})
        for partition in batch:
            if searches[partition].is_hopeless:
                if (position := without_times(partition)) is not None:
                    searches[partition].finish(position)
                    continue
                raise TimestampMissingError(
                    f"{partition}: the search for {what} has read {searches[partition].times.untimed} messages from "
                    "all over the store, and none has a $msgTime$. Let the producers set it, or give positions "
                    "instead, with 'startingOffsets' and 'endingOffsets'"
                )
        if len(refused) < len(batch):
            retries.progress()
        for partition, refusal in refused.items():
            is_news = refusal.pause and partition not in warned
            warned.add(partition)
            _log.log(
                logging.WARNING if is_news else logging.INFO, "[time-search-refused] %s; trying again", refusal.text
            )
        waiting |= refused
        active = [*active[len(batch) :], *(partition for partition in batch if partition not in refused)]


def _pause(retries: Retries, refusals: Collection[_Refusal]) -> str | None:
    """Pause until all refused probes may be repeated. Return the problem if the time for retries is over."""
    least, most = min(refusals, key=lambda one: one.pause), max(one.pause for one in refusals)
    if least.pause:  # the cluster limits all of them, which is not a failure
        retries.progress()
        goes_on = retries.pause(most)
    else:
        goes_on = retries.failed(least.text, most)
    return None if goes_on else least.text


def _probe(visitor: Visitor, searches: Mapping[Partition, Search]) -> dict[Partition, _Refusal]:
    """Send the next probe of each search. Return the partitions whose search got no further."""
    requests: dict[Partition, list[ServerRequest]] = {}
    for partition, search in searches.items():
        probe = search.next_probe()
        assert probe is not None, f"{search!r} needs none"
        seek, fetch = visitor.seek(partition, probe.position), visitor.fetch(partition, escape=False)
        requests[partition] = [seek, *[fetch] * probe.fetches, seek]
    refused: dict[Partition, _Refusal] = {}
    for partition, exchanges in visitor.exchange(requests).items():
        try:
            refusal = _evaluate(searches[partition], exchanges)
        except TransportError as error:
            visitor.failed(partition, error)
            refusal = _Refusal(str(error))
        if refusal is not None:
            refused[partition] = refusal
    return refused


def _evaluate(search: Search, exchanges: Sequence[Exchange]) -> _Refusal | None:
    """Pass the replies to `search`. Return why it got no further, None if it did."""
    begin, again = unwrap_seek(exchanges[0]), unwrap_seek(exchanges[-1])
    found: list[Reply | NotFound] = []
    refusal = _Refusal(f"{exchanges[1][0].what}: nothing new was found at {begin.currOffset}")
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
            refusal = _Refusal(f"{request.what}: {reply.errCode} {reply.errMsg}")
            if reply.errCode == ErrCode.SERVER_CONSUME_SPEED_LIMIT:
                pause = min(max(LEAST_DATA_WAIT, reply.minLimitTime), LONGEST_WAIT) / 1000
                refusal = _Refusal(f"{refusal.text}, asked again after {pause:g} s", pause)
            break
    return None if search.found(begin.currOffset, found, again.maxOffset) else refusal
