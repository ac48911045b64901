"""Whether the stores still hold what the query has read, and where to go on in those that do not.

A broker that crashes loses what it had not flushed and uses the positions again. Each end of a batch near the end of a
store comes with marks (see `protocol.marks`), and before anything behind a position is read, the newest mark before it
is looked at: when another message stands there, the store lost what was read. Then a look at the older marks and a
search between two of them tell each partition's first message that is new.

Checking the last batch's marks and taking those of the next one is one write for each broker. What is idle costs
nothing.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from tubemq_spark.client.backoff import RetryBackoff
from tubemq_spark.client.cluster.master_client import ConsumerSession
from tubemq_spark.client.consumer.driver_claims import DriverClaims
from tubemq_spark.client.consumer.probe import PartitionPosition as Place
from tubemq_spark.client.consumer.probe import Prober, ProbeResult
from tubemq_spark.client.consumer.time_search import run_searches
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.fetched_batch import StoredMessage
from tubemq_spark.protocol.log_fingerprint import Fingerprint, KnownIds, Marks, Store, span_between, thinned
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.time_search import Search
from tubemq_spark.source.offset import Positions
from tubemq_spark.source.range_planner import store_of

_log = logging.getLogger(__name__)

# More than a broker keeps unflushed of a store with the usual settings: its memory has two blocks of 5 120 messages.
# Topics may have larger ones. Where more than this is behind a position, the broker is asked what is in its files.
_IN_MEMORY = 20_000 * UNIT
_A_WHILE = 60  # seconds


class Checked(NamedTuple):
    """Where each partition of a store that lost what was read goes on, and the marks for the end of the batch."""

    lost: dict[Partition, int]
    marks: Marks


class _Batch(NamedTuple):
    """What is to be read of a store, from the least start to the greatest end of its partitions. A crash loses nothing
    before `flushed`, None when that was not asked."""

    partitions: Sequence[Partition]
    start: int
    end: int
    head: int
    marks: tuple[Fingerprint, ...]
    flushed: int | None = None

    @property
    def newest(self) -> Fingerprint | None:
        return self.marks[-1] if self.marks else None

    @property
    def last_entry(self) -> list[Place]:
        """Of which one partition has a message there: all others are known not to when they have passed it."""
        return [(partition, self.end - UNIT) for partition in self.partitions]

    @property
    def is_far_behind(self) -> bool:
        return self.head - self.end > _IN_MEMORY

    @property
    def wants_marks(self) -> bool:
        """Whether a crash may lose a message of the batch."""
        is_safe = self.is_far_behind and self.flushed is not None and self.end <= self.flushed
        return self.start < self.end and not is_safe

    def begins_at_a_mark(self, now: int) -> bool:
        """Taken a little while ago, so that its id most likely tells where those of the batch begin."""
        newest = self.newest
        return newest is not None and newest.position == self.start - UNIT and 0 <= now - newest.time <= _A_WHILE


def check(
    session: ConsumerSession,
    claims: DriverClaims,
    begin: Positions,
    ends: Positions,
    heads: Positions,
    marks: Marks,
    *,
    idle_too: bool = False,
    empty: Collection[Partition] = frozenset(),
) -> Checked:
    """For a batch [begin, ends), which is not read yet, of stores that end at `heads`; `marks` are those of `begin`.
    Stores that the batch has nothing of are looked at with `idle_too`. The partitions that are `empty` have no message
    in the batch, nor behind it.

    `claims` must hold the partitions of `begin`. Raises `TransportError` when a broker stays away.
    """
    batches = {
        store: batch
        for store, batch in _by_store(begin, ends, heads, marks).items()
        if idle_too or any(begin[partition] != ends[partition] for partition in batch.partitions)
    }
    batches = _with_flushed_ends(session, claims, batches)
    now = max(0, int(time.time()))  # a mark has no negative time
    seen = {
        (partition, position): ProbeResult(position, ())
        for batch in batches.values()
        for partition in batch.partitions
        if partition in empty
        for position in (batch.start, batch.end - UNIT)
    }
    seen |= _look(
        session,
        claims,
        (place for item in batches.items() for place in _places(*item, now) if place not in seen),
        # Where a mark of the first message is wanted too, it must be known which first messages are of the batch.
        {
            place
            for batch in batches.values()
            if batch.wants_marks and batch.begins_at_a_mark(now)
            for place in batch.last_entry
        },
    )
    seen |= _look(
        session, claims, (place for item in batches.items() for place in _second_places(session, *item, seen, now))
    )
    lost: dict[Partition, int] = {}
    found = dict(marks)
    for store, batch in batches.items():
        if batch.newest is not None and _holds(batch.newest, store, seen) is False:
            offered, found[store] = _where_new_ones_begin(session, claims, store, batch)
        else:
            offered = {}
        fallen = {p: min(offered.get(p, heads[p]), begin[p]) for p in batch.partitions}
        if any(position < begin[partition] for partition, position in fallen.items()):
            lost |= fallen
        elif batch.wants_marks:
            found[store] = thinned([*found.get(store, ()), *_marks_of(session, batch, seen, now)], now)
    return Checked(lost, {store: listed for store, listed in found.items() if listed})


def lost_since(
    session: ConsumerSession, claims: DriverClaims, ends: Positions, marks: Marks, partitions: Iterable[Partition]
) -> dict[Partition, int]:
    """Where new messages begin before `ends`, which have `marks`, in stores of `partitions` that lost what stood there;
    all of the stores' partitions that `ends` has must be held."""
    stores = {store_of(partition) for partition in partitions}
    heads = {partition: claims.standing(partition).end for partition in ends if store_of(partition) in stores}
    batches = _by_store({partition: ends[partition] for partition in heads}, ends, heads, marks)
    newest = {store: batch.newest for store, batch in batches.items() if batch.newest is not None}
    wanted = {_partition(store, mark): [mark.position] for store, mark in newest.items()}
    seen = Prober(session, claims).probe({partition: at for partition, at in wanted.items() if partition in heads})
    lost: dict[Partition, int] = {}
    for store, mark in newest.items():
        if _holds(mark, store, seen) is False:
            offered, _ = _where_new_ones_begin(session, claims, store, batches[store])
            lost |= {partition: at for partition, at in offered.items() if at < ends[partition]}
    return lost


def ids_between(begin: Positions, ends: Positions, marks: Marks) -> dict[Partition, KnownIds]:
    """The ids of what stood in [begin, ends) when `marks`, those of `ends`, were taken, as far as they are known."""
    found: dict[Partition, KnownIds] = {}
    for store, batch in _by_store(begin, ends, ends, marks).items():
        at = {mark.position: mark for mark in batch.marks}
        first, last = at.get(batch.start, at.get(batch.start - UNIT)), at.get(batch.end - UNIT)
        if last is None:
            continue
        span = None if first is None else span_between(first, last)
        found |= dict.fromkeys(batch.partitions, KnownIds(span))
        owner = _partition(store, last)
        if begin[owner] < ends[owner] == batch.end:
            found[owner] = KnownIds(span, last.message_id)
    return found


def _by_store(begin: Positions, ends: Positions, heads: Positions, marks: Marks) -> dict[Store, _Batch]:
    stores: defaultdict[Store, list[Partition]] = defaultdict(list)
    for partition in begin:
        if partition in ends:
            stores[store_of(partition)].append(partition)
    return {
        store: _Batch(
            partitions,
            min(begin[partition] for partition in partitions),
            max(ends[partition] for partition in partitions),
            max(heads[partition] for partition in partitions),
            _usable(marks.get(store, ()), partitions),
        )
        for store, partitions in stores.items()
    }


def _usable(marks: Iterable[Fingerprint], partitions: Sequence[Partition]) -> tuple[Fingerprint, ...]:
    known = {partition.partition_id for partition in partitions}
    return tuple(mark for mark in marks if mark.partition_id in known)


def _partition(store: Store, mark: Fingerprint) -> Partition:
    return Partition(store[0], store[1], mark.partition_id)


def _with_flushed_ends(
    session: ConsumerSession, claims: DriverClaims, batches: Mapping[Store, _Batch]
) -> dict[Store, _Batch]:
    """Ask where files end, of stores where the usual size of a broker's memory does not tell what is safe."""
    unclear = {
        batch.partitions[0]
        for batch in batches.values()
        if batch.start < batch.end and (batch.is_far_behind or (batch.newest is None and batch.start))
    }
    ends = Prober(session, claims).flushed_ends(unclear) if unclear else {}
    return {store: batch._replace(flushed=ends.get(batch.partitions[0])) for store, batch in batches.items()}


# Where to look, and what is seen there


def _look(
    session: ConsumerSession,
    claims: DriverClaims,
    places: Iterable[Place],
    only_there: Collection[Place] = frozenset(),
) -> dict[Place, ProbeResult]:
    wanted: defaultdict[Partition, set[int]] = defaultdict(set)
    for partition, position in places:
        wanted[partition].add(position)
    return Prober(session, claims).probe(wanted, only_there)


def _places(store: Store, batch: _Batch, now: int) -> Iterable[Place]:
    newest = batch.newest
    if newest is not None:
        yield _partition(store, newest), newest.position
    if batch.wants_marks:
        yield from batch.last_entry
        for partition in batch.partitions:
            if not batch.begins_at_a_mark(now):
                yield partition, batch.start
            if newest is None:
                yield partition, _far_back(batch)


def _far_back(batch: _Batch) -> int:
    """Where a first mark is surely in the files. Other partitions' entries may follow, so it is not the last one."""
    flushed = batch.start if batch.flushed is None else min(batch.start, batch.flushed)
    return max(0, flushed - _IN_MEMORY)


def _holds(mark: Fingerprint, store: Store, seen: Mapping[Place, ProbeResult]) -> bool | None:
    """Whether `mark` is still true; None when nobody can tell, for it was not looked at, or is older than the store."""
    here = seen.get((_partition(store, mark), mark.position))
    if here is None or here.begin > mark.position:
        return None
    # A message before it may have been too long to be read from memory, and shows when it is in the files.
    return here.begin == mark.position and mark.message_id in here.message_ids


def _is_expired(mark: Fingerprint, store: Store, seen: Mapping[Place, ProbeResult]) -> bool:
    here = seen.get((_partition(store, mark), mark.position))
    return here is not None and here.begin > mark.position


def _second_places(
    session: ConsumerSession, store: Store, batch: _Batch, seen: Mapping[Place, ProbeResult], now: int
) -> Iterable[Place]:
    """Where to look as well: behind the end, when others have come there and it is not clear whose the last message of
    the batch is; at the start, when the message at the mark before it turns out to be an old one."""
    if not batch.wants_marks:
        return
    at_end = _seen_at(batch, batch.end - UNIT, seen)
    if not _is_the_only_one(session, batch, seen):
        yield from ((partition, batch.end) for partition in at_end)
    if batch.newest is not None and batch.begins_at_a_mark(now):
        ends = [Fingerprint(batch.end - UNIT, partition.partition_id, last, now) for partition, last in at_end.items()]
        if any(span_between(batch.newest, end) is None for end in ends):
            yield from ((partition, batch.start) for partition in batch.partitions)
            yield from batch.last_entry  # to the end now, to know which first messages are of the batch


def _is_the_only_one(session: ConsumerSession, batch: _Batch, seen: Mapping[Place, ProbeResult]) -> bool:
    """Whether no other partition than one can have a message at the last entry of the batch."""
    known = session.cluster.in_store_of(batch.partitions[0])
    complete = all((partition, batch.end - UNIT) in seen for partition in batch.partitions)
    return complete and known == len(batch.partitions) and len(_seen_at(batch, batch.end - UNIT, seen)) == 1


def _marks_of(
    session: ConsumerSession, batch: _Batch, seen: Mapping[Place, ProbeResult], now: int
) -> Iterable[Fingerprint]:
    """The last message of the batch; the first one, where no mark is near; and, when these are the first marks, one
    that is surely flushed."""
    at_end = _seen_at(batch, batch.end - UNIT, seen)
    if not _is_the_only_one(session, batch, seen):
        behind = {partition: seen.get((partition, batch.end)) for partition in at_end}
        at_end = {p: first for p, first in at_end.items() if (here := behind[p]) is not None and here.first_id != first}
    if len(at_end) != 1:
        return
    [(owner, last)] = at_end.items()
    # What came behind a mark is as young as that; the first look of all may find an old message.
    is_new = batch.newest is not None and batch.newest.position >= batch.start - UNIT
    yield Fingerprint(batch.end - UNIT, owner.partition_id, last, now if is_new else 0)

    def is_in_the_batch(partition: Partition, first: int) -> bool:
        later = seen.get((partition, batch.end - UNIT))
        return partition == owner or (later is not None and later.is_conclusive and later.first_id != first)

    starts = [here.begin for p in batch.partitions if (here := seen.get((p, batch.start))) is not None]
    begin = max(starts, default=batch.start)  # where the store begins, if retention has come so far
    firsts = {
        p: here.first_id
        for p in batch.partitions
        if (here := seen.get((p, batch.start))) is not None
        and here.begin == begin
        and here.first_id is not None
        and is_in_the_batch(p, here.first_id)
    }
    if firsts and begin < batch.end - UNIT:  # the earliest of them is the one that is farthest from the last
        partition, first = max(firsts.items(), key=lambda one: abs(one[1] - last))
        known = batch.newest is not None and batch.newest.position <= begin
        yield Fingerprint(begin, partition.partition_id, first, batch.newest.time if batch.newest and known else 0)
    if batch.newest is None:
        for partition in batch.partitions:
            here, after = seen.get((partition, _far_back(batch))), seen.get((partition, batch.start))
            if (
                here
                and after
                and here.first_id is not None
                and here.begin < batch.start
                and here.first_id != after.first_id
            ):
                yield Fingerprint(here.begin, partition.partition_id, here.first_id, 0)
                return


def _seen_at(batch: _Batch, position: int, seen: Mapping[Place, ProbeResult]) -> dict[Partition, int]:
    """The first messages of the partitions at or behind `position`."""
    found = {partition: seen.get((partition, position)) for partition in batch.partitions}
    return {
        p: here.first_id for p, here in found.items() if here and here.begin == position and here.first_id is not None
    }


# Where new messages begin


def _where_new_ones_begin(
    session: ConsumerSession, claims: DriverClaims, store: Store, batch: _Batch
) -> tuple[dict[Partition, int], tuple[Fingerprint, ...]]:
    """Of each partition of a store whose newest mark seems broken, and the marks that are not; no positions when that
    was a mistake."""
    stamina = RetryBackoff(session.settings.retry_for)
    while True:
        try:
            return _look_closer(session, claims, store, batch)
        except TransportError as trouble:
            if not stamina.pause():
                raise
            _log.info("%s; trying again", trouble)
            claims.take({partition: claims.standing(partition).group for partition in batch.partitions})


def _look_closer(
    session: ConsumerSession, claims: DriverClaims, store: Store, batch: _Batch
) -> tuple[dict[Partition, int], tuple[Fingerprint, ...]]:
    seen = _look(session, claims, ((_partition(store, mark), mark.position) for mark in batch.marks))
    holding = [_holds(mark, store, seen) for mark in batch.marks]
    if holding[-1] is not False:
        return {}, batch.marks
    intact = tuple(mark for mark, holds in zip(batch.marks, holding, strict=True) if holds)
    earliest = claims.earliest(batch.partitions)
    # What retention removed had been flushed, and was not lost in a crash.
    sound = [mark for mark in batch.marks if mark in intact or _is_expired(mark, store, seen)]
    if not sound and len(batch.marks) > 1:
        return earliest, ()  # not even an old message is there: all of them are new
    broken = next(mark for mark in batch.marks if not sound or mark.position > sound[-1].position)
    low = max(sound[-1].position + UNIT if sound else 0, *earliest.values())
    high = min(broken.position, *(claims.standing(partition).end for partition in batch.partitions))
    if low >= high:
        return dict.fromkeys(batch.partitions, high), intact
    span = span_between(sound[-1], broken) if sound else None
    if span is None:  # better a loss that is told, and can be read again, than messages that come twice untold
        _log.warning(
            "broker %d, topic %s, store %d: message ids do not tell which messages of [%d, %d) are new; they are left "
            "out, and a batch read of that range gives them", *store, low, high,
        )  # fmt: skip
        return dict.fromkeys(batch.partitions, high), intact

    def is_new(message: StoredMessage) -> int:
        return 0 if span.has(message.messageId) else 1

    searches = {partition: Search(1, low, high, is_new) for partition in batch.partitions}
    found = run_searches(Prober(session, claims), searches, "the first new message")
    # The first of the store, for all of them: what stands there now may be lost, too, and other ones take its place.
    return dict.fromkeys(found, min(found.values())), intact
