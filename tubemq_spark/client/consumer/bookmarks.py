# SPDX-License-Identifier: Apache-2.0
"""Bookmarks: the positions behind which the messages of a sink's batch are stored (the read side of effectively once).

A batch that Spark repeats must find what its earlier attempts have stored, without reading whole topics. So each query
keeps positions at the brokers, in two consumer groups of its own, `<base>_0` and `<base>_1`, in which nobody reads. The
commit of batch b moves group `<base>_{b % 2}` to the present end of every partition. All messages of batch b are sent
after the commit of b - 1, so they are stored behind the position of `<base>_{(b - 1) % 2}`. That position stays while b
and its commit are repeated. `client.consumer.partition_scan` reads in further groups, `<base>_look_<n>`, whose
positions have no meaning.

A third group, `<base>_plan`, shows whether an attempt of a batch has begun since the last commit: whoever begins with a
batch moves it to the end, a commit moves it to the beginning. If it is before the bookmark of a batch, the batch has no
messages yet (`Bookmark.is_untried` has the exact rule). The sink uses this proof only where the bookmark itself does
not help: retention has removed the messages behind it, or there are too many of them. Nothing else decides this case,
because a query that was stopped may start again on another computer. The proof is lost, in the unsafe direction, when a
broker crashes before it has written the move of the third group to disk, or moves it for a commit when the next batch
has begun.

A new group begins at the end of a partition: the first client that reads the bookmarks of a partition sets them. So a
task must read them before it sends its first message to a partition, also to one that was added meanwhile.

A position that is too old is never wrong, it only costs more reading. So a commit asks for the end, and then names it
in the request that moves the group, which a broker may execute late. And nothing is lost when a commit reaches only
some brokers, or when a broker crashes before it has written a new position (it does that every few seconds; wire:
DefaultOffsetManager).

The client registers and unregisters in one write, so it holds each claim only for a moment. The master does not know
these groups, so its rules for groups do not apply. Processes of one query may meet at a partition: each may end the
claims of the others, which have served their purpose once they are answered.

After a crash a bookmark may be behind the end of the store. Whoever begins with a batch moves it back to the end, so
that the third group is not before it.

A bookmark may be behind messages of the batch, after a crash or if servers have dropped the group: docs/sink.md lists
the cases. Brokers from release 2.1 on drop groups that did not change for long: 20 days by default, a day at most if
set. After a crash the positions of a lost tail are given to other messages, so `partition_scan` begins `MARGIN` entries
before the bookmark. A store that can hold more messages in memory needs a greater margin.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tubemq_spark.client import system
from tubemq_spark.client.cluster.master_client import new_client_id
from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.consumer.broker_requests import GroupRequests
from tubemq_spark.client.consumer.claim_acquirer import ClaimTarget, GroupPosition, send_claims
from tubemq_spark.client.consumer.working_group import bookmark_group, plan_group
from tubemq_spark.client.retries import Retries
from tubemq_spark.client.runtime import PerProcess
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.constants import ReadStatus
from tubemq_spark.protocol.metadata import Partition

_log = logging.getLogger(__name__)

_BOOKMARK_FIRST_PAUSE = (0.02, 0.08)  # seconds; random in this range, so that two clients part
_OUTAGE = "reading the bookmarks of effectivelyOnce"
_ROLE = "bookmarks"


class _Registration(NamedTuple):
    """One register in `group`. The group moves to `position`; if that is None, `read_status` decides."""

    partition: Partition
    group: str
    read_status: ReadStatus
    position: int | None = None


class Bookmark(NamedTuple):
    """The positions of the two groups in a partition, and the end of its store at that moment: bytes of the index.

    After a crash of the broker the groups may be behind the end. `planned` is the position of the third group before
    this reading moved it; None if it was not read.
    """

    even: int
    odd: int
    end: int
    planned: int | None = None

    def before(self, batch: int) -> int:
        """Return the position behind which all messages of `batch` are, except after crashes of the broker."""
        return self.odd if batch % 2 == 0 else self.even

    def is_untried(self, batch: int) -> bool:
        """Return True if it is proven that no message of `batch` was before `end` when the bookmark was read.

        Then no attempt has begun since the last commit. That was not the commit of `batch`, or there was nothing new
        for it: else the batch's own group would be behind the other one.
        """
        before, own = self.before(batch), self.even if batch % 2 == 0 else self.odd
        return self.planned is not None and self.planned < before and own <= before


def read_bookmarks(
    session: ProducerSession,
    base: str,
    partitions: Iterable[Partition],
    retry_for: float | None = None,
    *,
    within: float | None = None,
    begin_batch: bool = False,
) -> dict[Partition, Bookmark]:
    """Return the bookmarks of `partitions`. Where there were none, both are set to the end; with `begin_batch` those
    that are behind the end move there, too.

    With `within`, partitions whose brokers do not answer in so many seconds are left out. A caller that begins
    with a batch, or may send messages of it, passes `begin_batch`: the third group is read and then moved.

    Raise `TransportError` with the `unserved` partitions if a broker stays away, or another client keeps one of the
    groups, for longer than `retry_for` seconds (default: those of the settings); `AuthError`, `ServerError`.
    """
    names = bookmark_group(base, 0), bookmark_group(base, 1), plan_group(base)
    groups = [(name, ReadStatus.FROM_MAX) for name in names]
    if begin_batch:
        groups.append((plan_group(base), ReadStatus.FROM_MAX_ALWAYS))
    wanted = {p: [_Registration(p, *group) for group in groups] for p in partitions}
    found = _register(session, [one for several in wanted.values() for one in several], retry_for, within)
    # After a crash a bookmark may be behind the end. The third group is before it then, as if no batch had begun.
    stale = {
        one: one._replace(read_status=ReadStatus.NORMAL, position=found[begun].group)
        for *read, begun in (wanted.values() if begin_batch else ())
        for one in read[:2]
        if {one, begun} <= found.keys() and found[one].group > found[begun].group
    }
    lowered = _register(session, list(stale.values()), retry_for, within)
    moved = {one: lowered[to]._replace(end=found[one].end) for one, to in stale.items() if to in lowered}
    found = {one: at for one, at in found.items() if one not in stale} | moved
    bookmarks: dict[Partition, Bookmark] = {}
    for partition, registrations in wanted.items():
        if all(one in found for one in registrations):
            even, odd, plan, *_ = (found[one] for one in registrations)
            bookmarks[partition] = Bookmark(even.group, odd.group, max(even.end, odd.end), plan.group)
    return bookmarks


def move_bookmarks(
    session: ProducerSession, base: str, batch: int, partitions: Iterable[Partition], *, within: float | None = None
) -> None:
    """Move the group of `batch` to the present end of `partitions`, and then the third group to their beginning. With
    `within`, partitions whose brokers do not answer in so many seconds keep their bookmarks.

    Raise as `read_bookmarks`, after it has moved the others. The caller may ignore that: where a bookmark was not
    moved, later batches only read more.
    """
    group = bookmark_group(base, batch)
    read = [_Registration(partition, group, ReadStatus.FROM_MAX) for partition in dict.fromkeys(partitions)]
    ends = _register(session, read, None, within)
    # A broker may execute a request late, when messages of the next batch are stored: so it names the position.
    moves = [_Registration(one.partition, group, ReadStatus.NORMAL, at.end) for one, at in ends.items()]
    moved = _register(session, moves, None, within)
    # Only where the bookmark was moved: the third group must not prove a commit that no bookmark shows.
    begins = [_Registration(one.partition, plan_group(base), ReadStatus.NORMAL, 0) for one in moved]
    _register(session, begins, None, within)


def exchange_position(
    session: ProducerSession, group: str, partition: Partition, position: int | None, *, within: float
) -> tuple[int, int] | None:
    """Move `group` to `position`; None leaves it. Return where it was, and where it is now: the broker moves a group
    only within the store.

    A new group is at the beginning of the store. Return None if the broker does not answer within so many seconds; the
    group may have moved. Raise `AuthError`, `ServerError`.
    """
    read = _Registration(partition, group, ReadStatus.NORMAL)
    wanted = [read] if position is None else [read, _Registration(partition, group, ReadStatus.NORMAL, position)]
    found = _register(session, wanted, None, within)
    return (found[read].group, found[wanted[-1]].group) if len(found) == len(wanted) else None


def _register(
    session: ProducerSession, wanted: Sequence[_Registration], retry_for: float | None, within: float | None
) -> dict[_Registration, GroupPosition]:
    """Return the group's position and the end of the store for each registration. A broker handles the registrations at
    one partition in their order.

    `ClaimAcquirer` would do too much: it compares claims and waits for siblings. Here nothing is held for longer than a
    request, so a claim of another process of the query may be ended at any time.
    """
    settings = session.settings
    retry_for = settings.retry_for if retry_for is None else retry_for
    timeout = settings.rpc_timeout
    if within is not None:
        retry_for, timeout = min(retry_for, within), min(timeout, within)
    log = _log if within is None else None
    first = system.randomizer.uniform(*_BOOKMARK_FIRST_PAUSE)
    retries = Retries(retry_for, settings.clock, _OUTAGE, log, first=first)
    holders: dict[_Registration, str] = {}
    found: dict[_Registration, GroupPosition] = {}
    missing = list(wanted)
    while missing:
        answers, problems = _attempt(session, missing, holders, timeout)
        found |= answers
        missing = [one for one in missing if one not in found]
        if answers:
            retries.progress()
        if not missing:
            break
        unserved = frozenset(one.partition for one in missing)
        problem = problems[missing[0]]
        if retries.failed(f"{problem}; {len(unserved)} partitions are missing"):
            continue
        if within is not None:
            _log.warning("[bookmarks-left-out] bookmarks of %d partitions are left out: %s", len(unserved), problem)
            return found
        raise TransportError(
            f"{problem}; gave up after {retry_for:g} s, with {len(unserved)} of "
            f"{len({one.partition for one in wanted})} partitions to go. Check that the brokers run, that the driver "
            "and the executors can reach them, and that no other client uses the group",
            unserved=unserved,
        )
    return found


def _attempt(
    session: ProducerSession, wanted: Sequence[_Registration], holders: dict[_Registration, str], timeout: float
) -> tuple[dict[_Registration, GroupPosition], dict[_Registration, str]]:
    """Send one write to each broker. Return the answers, and what went wrong with the other registrations.

    `holders` are the other processes of the query whose claims are in the way. Their claims are released first.
    """
    positions: dict[_Registration, GroupPosition] = {}
    problems: dict[_Registration, str] = {}
    targets: dict[_Registration, ClaimTarget] = {}
    for one in wanted:
        broker = session.known_broker(one.partition.broker_id)
        if broker is None:
            problems[one] = f"the master lists no broker {one.partition.broker_id}, which has {one.partition}"
            continue
        targets[one] = ClaimTarget(
            GroupRequests(session.settings, one.group, session.token),
            broker,
            one.partition,
            _client_id(),
            one.position,
            one.read_status,
            release_first=holders.pop(one, None),
            release_after=True,
        )
    answers = send_claims(list(targets.values()), timeout)
    for (one, target), (position, holder, error, *_) in zip(targets.items(), answers, strict=True):
        if position is not None:
            positions[one] = position
        elif isinstance(error, TransportError):
            problems[one] = str(error)
        elif error is not None:
            raise error
        else:
            problems[one] = f"{target.register().what}: the client {holder} holds it"
            if holder is not None and holder.startswith(f"spark_{_ROLE}_"):
                holders[one] = holder
    return positions, problems


# One for each process: a claim that a broken connection left must not stop the next attempt.
_client_id = PerProcess(lambda: new_client_id(_ROLE))
