# SPDX-License-Identifier: Apache-2.0
"""Reads a topic without Spark, in a group of its own, so that no group of the user moves.

The group's name is new for each command. Its positions have no meaning; brokers since release 2.1 drop them when they
were unused for long. With a group of the user's, which some topics demand, the positions stay where they are.
"""

from __future__ import annotations

import platform
import secrets
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timezone, tzinfo
from typing import TypeVar

from tubemq_spark.cli.messages import Message, messages_of
from tubemq_spark.cli.moments import Place
from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.consumer.claim_acquirer import GroupPosition
from tubemq_spark.client.consumer.group_claims import GroupClaims
from tubemq_spark.client.consumer.loss_policy import LossPolicy
from tubemq_spark.client.consumer.partition_reader import PartitionReader
from tubemq_spark.client.consumer.probe import Extent, PartitionPosition, Prober
from tubemq_spark.client.consumer.range_to_read import PartitionSnapshot, RangeToRead
from tubemq_spark.client.consumer.time_search import find_positions
from tubemq_spark.client.consumer.visitor import visitor_for
from tubemq_spark.client.consumer.working_group import TEMPORARY, batch_group, look_group
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import AuthError, ConfigError
from tubemq_spark.protocol.claim_id import COMMAND_PREFIX, ClaimId, label_of
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.index_search import outside_repeated_hour
from tubemq_spark.protocol.message import microseconds_of
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.long_messages import LongMessages
from tubemq_spark.source.offset import Positions
from tubemq_spark.source.row_format import MAX_UNPACKED

R = TypeVar("R", bound="TopicReader")


def temporary_group() -> str:
    """Return the name of a group that no other client uses."""
    return f"{TEMPORARY}{secrets.token_hex(6)}"


def new_claim() -> ClaimId:
    """Return a claim that other clients see as one of a foreign consumer, with this machine's name."""
    return ClaimId(
        f"{COMMAND_PREFIX}{secrets.token_hex(6)}", run=0, batch=0, label=label_of(platform.node(), "tubemq-spark")
    )


class TopicReader:
    """A member of a group that reads topics while the `with` block runs; the group does not move.

    Without `group`, a temporary one is used. Entering raises as `ConsumerSession.register`.
    """

    def __init__(
        self,
        settings: ClientSettings,
        group: str | None,
        *topics: str,
        filters: Sequence[str] = (),
        zone: tzinfo = timezone.utc,
        max_unpacked: int = MAX_UNPACKED,
    ) -> None:
        self.topics = topics
        self.zone = zone
        self.filters = tuple(filters)
        self.max_unpacked = max_unpacked
        self.session = ConsumerSession(
            settings, group or temporary_group(), topics, dict.fromkeys(topics, self.filters) if filters else {}
        )
        self.reading_group = self.session.group if group is None else batch_group(group)
        self.partitions: list[Partition] = []
        self._visitor = visitor_for(self.session)
        self._prober = Prober(self._visitor)
        self.long_messages = LongMessages(self._prober)

    def __enter__(self: R) -> R:
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        try:
            self.session.register()
        except AuthError as error:
            if self.session.group.startswith(TEMPORARY):
                raise AuthError(f"{error}. --group names a group that may read the topic") from None
            raise
        self.look_for_partitions()

    def close(self) -> None:
        self._visitor.close()
        self.long_messages.close()
        self.session.close()

    def extents(self, partitions: Iterable[Partition] | None = None) -> dict[Partition, Extent]:
        """Return where the partitions' stores begin and end now, by default of all partitions."""
        return self._prober.extents(self.partitions if partitions is None else sorted(partitions))

    def look_for_partitions(self) -> list[Partition]:
        """Return the partitions that the topics got since the last look. Raises as entering does."""
        cluster = self.session.refresh() if self.partitions else self.session.cluster
        listed = {partition for topic in self.topics for partition in cluster.partitions(topic)}
        new = sorted(listed - set(self.partitions))
        self.partitions += new
        return new

    def check(self, partitions: Collection[Partition]) -> None:
        """Raise `ConfigError` for a partition that the topics do not have."""
        if unknown := sorted(set(partitions) - set(self.partitions)):
            known = ", ".join(map(str, self.partitions))
            raise ConfigError(f"there is no {', '.join(map(str, unknown))}; the partitions are {known}")

    def first_ids(self, places: Iterable[PartitionPosition]) -> dict[PartitionPosition, int]:
        """Return the id of the first message from each place on, if there is one. `changed` takes it."""
        found = self._prober.probe(places)
        return {place: result.first_id for place, result in found.items() if result.first_id is not None}

    def changed(self, first_ids: Mapping[PartitionPosition, int]) -> list[Partition]:
        """Return the partitions whose stores have other messages now: a broker lost them, or the topic was created
        anew. What retention has removed does not count."""
        found = self._prober.probe(first_ids)
        return sorted(
            {
                place[0]
                for place, first_id in first_ids.items()
                if (now := found.get(place)) is None or (now.begin <= place[1] and now.first_id != first_id)
            }
        )

    def resolve(
        self, place: Place, extents: Mapping[Partition, Extent] | None = None, *, is_end: bool = False
    ) -> dict[Partition, int]:
        """Return the position that `place` means in each partition of `extents`, by default in all as they are now. A
        position outside of a store becomes the store's beginning or end. `is_end`: of a read, see
        `outside_repeated_hour`."""
        extents = self.extents() if extents is None else extents
        if isinstance(place, datetime):
            moment = outside_repeated_hour(place, self.zone, is_end=is_end)
            moments = dict.fromkeys(extents, microseconds_of(moment))
            return self.long_messages.found(
                {one: extent.end for one, extent in extents.items()},
                lambda: find_positions(self._visitor, moments, extents, self.zone, is_end=is_end),
            )
        at = {one: place if place >= 0 else end + place * UNIT for one, (_, end) in extents.items()}
        return {one: max(begin, min(at[one], end)) for one, (begin, end) in extents.items()}


class GroupMember(TopicReader):
    """A reader that holds all partitions of the topics in `group`, or in a temporary one.

    Entering raises `PartitionOccupiedError` if another client holds one for longer than `claim_timeout` seconds.
    """

    def __init__(
        self,
        settings: ClientSettings,
        group: str | None,
        *topics: str,
        claim_timeout: float = 0.0,
        zone: tzinfo = timezone.utc,
    ) -> None:
        super().__init__(settings, group, *topics, zone=zone)
        self.claims = GroupClaims(self.session, new_claim(), claim_timeout, keeps_position=False)

    def _open(self) -> None:
        super()._open()
        self.claims.take(dict.fromkeys(self.partitions))

    def close(self) -> None:
        self.claims.release()
        super().close()

    @property
    def positions(self) -> dict[Partition, GroupPosition]:
        """The group's positions and the stores' ends."""
        return {partition: self.claims.position(partition) for partition in self.partitions}


def read_range(reader: TopicReader, starts: Positions, ends: Positions) -> Generator[Message, None, None]:
    """Yield the messages from `starts` to `ends`, one partition after the other, of the reader's types.

    What retention removes meanwhile is left out with a warning. Raises as `PartitionReader.batches`.
    """
    session, filters = reader.session, reader.filters
    for partition, end in ends.items():
        if starts[partition] >= end:
            continue
        owns_store = session.cluster.owns_store(partition) and not filters
        reading = PartitionReader(
            session.settings,
            reader.reading_group,
            replace(new_claim(), task=0),
            RangeToRead(partition, starts[partition], end, owns_store, filters),
            PartitionSnapshot(
                session.broker(partition),
                look_group(session.group),
                session.cluster.store_ids(partition),
                session.flow_rules,
            ),
            token=session.token,
            loss_policy=LossPolicy(fail=False),
            find_broker=session.current_broker,
        )
        with closing(reading.batches()) as batches:
            for batch in batches:
                for message in messages_of(partition, batch, reader.zone, reader.max_unpacked):
                    if not filters or message.msg_type in filters or message.problem is not None:
                        yield message
