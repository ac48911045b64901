"""Bookmarks: before which position of each partition the messages of a batch cannot stand.

A batch that is tried again must find what its earlier tries have stored, without reading whole topics. So a query keeps
positions at the brokers, where its messages are, in two consumer groups of its own that nobody reads in, `<base>_0` and
`<base>_1`. When batch b is committed, group `<base>_{b % 2}` is moved to the present end of every partition. All
messages of batch b were sent after the commit of b - 1, hence they stand behind the position of `<base>_{(b - 1) % 2}`;
and that stays where it is while b, and its commit, are repeated. More groups, `<base>_look_<n>`, serve for reading
(`client.look`); where these stand means nothing.

A third group, `<base>_plan`, tells whether anybody has begun with a batch since the last commit. Who begins with a
batch moves it to the end, a commit moves it to the beginning. If it stands before the bookmark of a batch, no try of
the batch has begun, and the batch has no messages yet. `Bookmark.is_untried` has the exact rule. This proof is only
used where the bookmark itself does not help, because retention has removed the messages behind it, or because there are
too many messages behind it. It is lost, in the unsafe direction, when a broker crashes before it has written the third
group's move down.

A group that is new in a partition begins at its end, and the broker remembers that: whoever first asks for the
bookmarks of a partition sets them. So a task must have asked before it sends its first message to a partition, to one
that was added in the meantime as well; then what any try of the batch has sent stands behind.

A position that is older than it should be is never wrong, it only means more reading: a commit that reached some of the
brokers, or none, loses nothing, and so does a broker that crashes before it has written a new position down (it does so
every few seconds; wire: DefaultOffsetManager).

All this is done by claims of a moment, a register and an unregister in one write. The master knows of none of these
groups, so none of its rules for groups applies. Processes of one query may meet each other; what a claim is good for
has been answered by then, so that a later one may take it from an earlier one, dead or alive.

What it cannot hold against:

* A group's first position in a partition is lost for good when the broker crashes before it was ever written down. The
  group begins at the end once more then, in front of which messages of the batch may stand: those that were flushed
  during the few seconds between.
* A crash takes the unflushed tail of a store, and its positions are given to other messages. A bookmark may stand
  behind messages that were sent later, then; `client.look` begins well before it. A store that can hold more messages
  in memory than it goes back (`MARGIN`) needs a greater margin.
* Retention that removes messages behind a bookmark: `client.look` raises.
* Releases from 2.1 on drop groups that did not change for long (20 days by default, a day at most where it is set), and
  an administrator can. A batch that stood half done for so long finds its groups at the end.
* TubeMQ knows no fencing of producers. What an earlier try sends while a later one looks, or has sent without the
  broker having handled it yet, is not seen.
* Two runs of a query with one base at the same time move each other's bookmarks.
* Topics that are closed for reading cannot be looked at.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

from tubemq_spark.client.backoff import RetryBackoff
from tubemq_spark.client.cluster.master_session import new_client_id
from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.consumer.broker_requests import GroupRequests
from tubemq_spark.client.consumer.driver_claims import GroupPosition
from tubemq_spark.client.net.rpc import ServerRequest, send_requests, unwrap_reply
from tubemq_spark.client.outage_log import OUTAGES
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.claim_id import holder_in
from tubemq_spark.protocol.constants import ReadStatus
from tubemq_spark.protocol.errcode import ErrCode, Reaction, error_for_code, reaction_to
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb

_log = logging.getLogger(__name__)

_BOOKMARKS = "the look for the bookmarks of effectivelyOnce"

_ROLE = "bookmarks"
_FIRST_PAUSE = 0.02, 0.08  # seconds, drawn, lest processes that met each other meet again


class _Visit(NamedTuple):
    """A partition, the group to register in there, and how: `position` is where the group is put, None for what
    `read_status` says."""

    partition: Partition
    group: str
    read_status: ReadStatus
    position: int | None = None


class Bookmark(NamedTuple):
    """Where the two groups stand in a partition, and where its store ended at that moment: bytes of the index. After a
    crash of the broker the groups may stand behind the end. `planned` is where the third group stood before this
    reading moved it, None where it was not read."""

    even: int
    odd: int
    end: int
    planned: int | None = None

    def before(self, batch: int) -> int:
        """No message of `batch` stands before this position, but for crashes of the broker."""
        return self.odd if batch % 2 == 0 else self.even

    def is_untried(self, batch: int) -> bool:
        """Whether it is proven that no message of `batch` stood before `end` when the bookmark was read.

        The last commit has put the third group to the beginning, and nobody has begun with a batch since then. That
        commit was not the one of `batch`, or there was nothing new for it: else the batch's own group would stand
        behind the other one.
        """
        before, own = self.before(batch), self.even if batch % 2 == 0 else self.odd
        return self.planned is not None and self.planned < before and own <= before

    def older(self, other: Bookmark) -> Bookmark:
        """What is true by both bookmarks of the same partition, which belong to two names of one query. Each commit
        moves the groups of both names."""
        known = None not in (self.planned, other.planned)
        planned = max(self.planned or 0, other.planned or 0) if known else None
        return Bookmark(min(self.even, other.even), min(self.odd, other.odd), min(self.end, other.end), planned)


def bookmark_group(base: str, batch: int) -> str:
    """The group that is moved when `batch` is committed."""
    return f"{base}_{batch % 2}"


def plan_group(base: str) -> str:
    """The group that is moved when somebody begins with a batch."""
    return f"{base}_plan"


def read_bookmarks(
    session: ProducerSession,
    base: str,
    partitions: Iterable[Partition],
    retry_for: float | None = None,
    *,
    within: float | None = None,
    asks: bool = False,
    begins: bool = False,
) -> dict[Partition, Bookmark]:
    """The bookmarks of `partitions`; where there were none, both are at the end from now on. With `within` those are
    left out whose brokers do not answer in so many seconds. Who `asks` whether a batch has begun reads the third group
    too. Who `begins` with a batch, or may send messages of it, reads it and then moves it.

    Raises `TransportError` with the `unserved` partitions when a broker stays away, or somebody else keeps one of the
    groups, for longer than `retry_for` seconds, by default those of the settings; `AuthError`, `ServerError`.
    """
    hows = [(bookmark_group(base, number), ReadStatus.FROM_MAX) for number in (0, 1)]
    if asks or begins:
        hows.append((plan_group(base), ReadStatus.FROM_MAX))
    if begins:
        hows.append((plan_group(base), ReadStatus.FROM_MAX_ALWAYS))
    partitions = list(dict.fromkeys(partitions))
    heard = _visit_all(
        session, [_Visit(partition, *how) for partition in partitions for how in hows], retry_for, within
    )
    bookmarks = {}
    for partition in partitions:
        standings = [heard.get(_Visit(partition, *how)) for how in hows]
        if any(one is None for one in standings):
            continue
        even, odd, *plan = (one for one in standings if one is not None)
        planned = plan[0].group if plan else None
        bookmarks[partition] = Bookmark(even.group, odd.group, max(even.end, odd.end), planned)
    return bookmarks


def move_bookmarks(
    session: ProducerSession, base: str, batch: int, partitions: Iterable[Partition], *, within: float | None = None
) -> None:
    """Puts the group of `batch` to the present end of `partitions`, and then the third group to their beginning. With
    `within` those are left as they are whose brokers do not answer in so many seconds.

    Raises as `read_bookmarks`, when it has moved those that it could; later batches will only read more where it could
    not, so who likes may go on.
    """
    group = bookmark_group(base, batch)
    visits = [_Visit(partition, group, ReadStatus.FROM_MAX_ALWAYS) for partition in dict.fromkeys(partitions)]
    moved = _visit_all(session, visits, within=within)
    # Only where the bookmark is known to stand: the third group must not tell of a commit that left no trace.
    visits = [_Visit(visit.partition, plan_group(base), ReadStatus.NORMAL, 0) for visit in moved]
    _visit_all(session, visits, within=within)


def _visit_all(
    session: ProducerSession,
    visits: Sequence[_Visit],
    retry_for: float | None = None,
    within: float | None = None,
) -> dict[_Visit, GroupPosition]:
    """Registers as each visit says, and leaves at once: where the groups stand, and the ends. The broker handles the
    visits to a partition in their order. With `within` not all need be there after so many seconds."""
    patience = session.settings.retry_for if retry_for is None else retry_for
    if within is not None:
        patience = min(patience, within)
    stamina = RetryBackoff(patience, first=random.uniform(*_FIRST_PAUSE))
    heard: dict[_Visit, GroupPosition] = {}
    holders: dict[_Visit, str] = {}  # processes like this one, whose claims are in the way
    partitions = {visit.partition for visit in visits}
    missing = list(visits)
    while missing:
        standings, troubles = _visit(session, missing, holders, within)
        heard |= standings
        missing = [visit for visit in missing if visit not in heard]
        if standings:
            stamina.progress()
        if missing and within is None:
            OUTAGES.failed(_log, _BOOKMARKS, partial(_complaint, missing, troubles), stamina.left)
        if missing and not stamina.pause():
            if within is not None:
                _log.warning("bookmarks of %d partitions are left out: %s", len(missing), troubles[missing[0]])
                return heard
            raise TransportError(
                f"{troubles[missing[0]]}; gave up after {patience:g} s, with "
                f"{len({visit.partition for visit in missing})} of {len(partitions)} partitions to go. Check that the "
                "brokers run and can be reached from the driver and the executors, and that nobody else uses the group",
                unserved=frozenset(visit.partition for visit in missing),
            )
    OUTAGES.worked(_log, _BOOKMARKS)
    return heard


def _complaint(missing: Sequence[_Visit], troubles: Mapping[_Visit, str]) -> str:
    return f"where {len({visit.partition for visit in missing})} partitions stand is not known: {troubles[missing[0]]}"


def _visit(
    session: ProducerSession,
    visits: Sequence[_Visit],
    holders: dict[_Visit, str],
    timeout: float | None,
) -> tuple[dict[_Visit, GroupPosition], dict[_Visit, str]]:
    """One write for each broker: what was heard, and what went wrong. `holders` are sent away, and those met noted."""
    client_id = _client_id(os.getpid())
    registers: list[int] = []
    calls: list[ServerRequest] = []
    known = session.cluster.brokers
    troubles = {
        visit: f"the master lists no broker {visit.partition.broker_id}, which has {visit.partition}"
        for visit in visits
        if visit.partition.broker_id not in known
    }
    visits = [visit for visit in visits if visit not in troubles]
    for visit in visits:
        partition, group, read_status, position = visit
        asking = GroupRequests(session.settings, group, session.token)
        broker = known[partition.broker_id]
        holder = holders.pop(visit, None)
        if holder is not None:
            calls.append(asking.unregister(broker, partition, holder))
        registers.append(len(calls))
        calls.append(asking.register(broker, partition, client_id, position, read_status))
        calls.append(asking.unregister(broker, partition, client_id))
    seconds = session.settings.rpc_timeout if timeout is None else min(timeout, session.settings.rpc_timeout)
    outcomes = send_requests(session.settings, calls, seconds)
    standings: dict[_Visit, GroupPosition] = {}
    for visit, number in zip(visits, registers, strict=True):
        call = calls[number]
        try:
            reply = unwrap_reply(outcomes[number], broker_pb.RegisterResponseB2C, call.what)
        except TransportError as error:
            troubles[visit] = str(error)
            continue
        if reply.errCode == ErrCode.SUCCESS:
            standings[visit] = GroupPosition(reply.currOffset, reply.maxOffset)
        elif reaction_to(reply.errCode) is Reaction.RETRY:
            troubles[visit] = f"{call.what}: {reply.errCode} {reply.errMsg}"
            holder = holder_in(reply.errMsg)
            if reply.errCode == ErrCode.PARTITION_OCCUPIED and holder.startswith(f"spark_{_ROLE}_"):
                holders[visit] = holder
        else:
            raise error_for_code(reply.errCode, reply.errMsg, call.what)
    return standings, troubles


@lru_cache(maxsize=1)
def _client_id(_pid: int) -> str:
    """One for each process, so that what a broken connection left claimed is no obstacle to the next try."""
    return new_client_id(_ROLE)
