"""Reads the bookmarks of a query: the positions from which on messages of a batch can be stored.

`client.consumer.bookmarks` explains how brokers keep bookmarks, and why an old one is never wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from tubemq_spark.client.cluster.deployed_topics import all_partitions
from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.consumer.bookmarks import Bookmark, read_bookmarks
from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.sink.options import EffectivelyOnceOptions

_log = logging.getLogger(__name__)

Bookmarks = Mapping[Partition, Bookmark]


class QueryBookmarks:
    """The bookmarks that one batch of a query needs.

    `known` has the first bookmark of each partition that was read for this attempt of the batch. A later reading cannot
    replace it, because the messages that this attempt sends are behind the first one only.
    """

    def __init__(self, session: ProducerSession, options: EffectivelyOnceOptions, planned: Bookmarks) -> None:
        """`planned` are the bookmarks that the driver has read before the batch began."""
        self._session = session
        self._options = options
        self._away_after = session.settings.timings.broker_away_after
        self._away: set[Partition] = set()
        self.known: dict[Partition, Bookmark] = dict(planned)

    def of_topic(self, topic: str) -> list[Partition]:
        return [partition for partition in self.known if partition.topic == topic]

    def read_missing(self, partitions: Sequence[Partition], *, needed: bool) -> None:
        """Make the bookmarks of `partitions` known.

        A partition whose broker does not answer stays without one as long as the task lasts, so that keys do not move
        to and fro. If all partitions are `needed`, raise `TransportError` instead.
        """
        missing = [one for one in partitions if one not in self.known and (needed or one not in self._away)]
        if missing:
            found = self.read(missing, skip_away=not needed)
            self.known |= found
            self._away.update(one for one in missing if one not in found)

    def read_for_batch(self, topic: str | None, earlier_topics: Iterable[str]) -> Bookmarks:
        """Return the bookmarks that the tasks of a batch need, read on the driver.

        These are the bookmarks of all partitions of `topic`, the option, and of the partitions that accept messages of
        `earlier_topics`, to which the query has written before. A task reads further ones itself.
        """
        partitions: set[Partition] = set()
        if topic is not None:
            partitions |= self._all_partitions(topic)
        for other in sorted(set(earlier_topics) - {topic}):
            try:
                self._session.add_topics([other])
            except ConfigError as error:  # a row for this topic fails with the same error
                _log.info("the plan reads no bookmarks of topic %s: %s", other, error)
            partitions.update(one for one in self._session.cluster.partitions(other) if self._session.lists(one))
        return self.read(partitions)

    def read_topic(
        self, topic: str, *, refresh: bool = False, skip_away: bool = True, begins: bool = True
    ) -> dict[Partition, Bookmark]:
        """Return the present bookmarks of all partitions of `topic`: those that the master lists and the known ones.

        With `refresh`, ask the master for its list even if it was asked a moment ago.
        """
        partitions = self._all_partitions(topic, refresh=refresh).union(self.of_topic(topic))
        return self.read(partitions, skip_away=skip_away, begins=begins)

    def read(
        self, partitions: Iterable[Partition], *, skip_away: bool = True, begins: bool = True
    ) -> dict[Partition, Bookmark]:
        """Return the present bookmarks of `partitions`, by both names that the query may have at the brokers.

        With `skip_away`, leave out partitions whose broker does not answer soon; without, raise `TransportError` for
        them. `begins` is False for a caller that does not send yet.
        """
        within = self._away_after if skip_away else None
        read = partial(read_bookmarks, self._session, within=within, read_plan=True, begin_batch=begins)
        bookmarks = read(self._options.group, sorted(partitions))
        if self._options.former_group is None or not bookmarks:
            return bookmarks
        former = read(self._options.former_group, list(bookmarks))
        return {one: bookmark.older(former[one]) for one, bookmark in bookmarks.items() if one in former}

    def _all_partitions(self, topic: str, *, refresh: bool = False) -> frozenset[Partition]:
        return all_partitions(self._session, f"{self._options.group}_look_{topic}", topic, anew=refresh)
