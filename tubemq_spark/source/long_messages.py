# SPDX-License-Identifier: Apache-2.0
"""Long messages: those that a broker leaves out when it reads from its memory, without a word.

Only topics whose limit is above the cluster's have such messages (`client.cluster.topic_limits`). Brokers deliver them
from files, and read every position before the flushed end from files. So a read of such a topic ends there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from tubemq_spark.client.cluster.topic_limits import TopicLimits
from tubemq_spark.client.consumer.probe import Prober
from tubemq_spark.client.retries import Deadline
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import ServerError
from tubemq_spark.protocol.errcode import ErrCode, code_name
from tubemq_spark.protocol.log_fingerprint import Store
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.offset import Positions

FLUSH_POLL = 0.5  # seconds; between two requests that ask whether brokers have written messages to their files

Spans = Mapping[Partition, tuple[int, int]]


class FlushWait:
    """Waits until brokers write messages to their files. Gives up after the settings' `retry_for` seconds in which no
    broker wrote any."""

    def __init__(self, settings: ClientSettings) -> None:
        self._clock, self._retry_for = settings.clock, settings.retry_for
        self._missing: Spans = {}
        self._deadline = Deadline(0.0, self._clock)

    def pause(self, missing: Spans) -> None:
        """Pause before the next request. `missing` are the positions in memory. Raise `ServerError` after too long."""
        if missing != self._missing:
            self._missing, self._deadline = missing, Deadline(self._retry_for, self._clock)
        elif self._deadline.passed:
            partition, (begin, end) = next(iter(missing.items()))
            message = "not flushed"
            raise ServerError(
                f"{partition}: topic {partition.topic} may have messages that are too long for its broker to deliver "
                f"from memory, and in {self._retry_for:g} s the broker did not write [{begin}, {end}) to files, from "
                "where it delivers all. Raise option 'tubemq.retry.maxElapsedMs' above the topic's memCacheFlushIntvl, "
                "or lower that",
                code=ErrCode.NOT_FOUND,
                name=code_name(ErrCode.NOT_FOUND),
                message=message,
            )
        self._clock.sleep(FLUSH_POLL)


class LongMessages:
    """The topics of one query, or of one batch read, that may have long messages: those that the masters tell, and
    those that the user has `named`. Not thread-safe."""

    def __init__(self, prober: Prober, named: frozenset[str] = frozenset()) -> None:
        self._named, self._prober = named, prober
        self._settings = prober.visitor.settings
        self._limits = TopicLimits(self._settings)

    def close(self) -> None:
        self._limits.close()

    def flushed_ends(
        self, begin: Positions, log_ends: Positions, fingerprints: Collection[Store]
    ) -> dict[Partition, int]:
        """Return where files end, for partitions whose topics may have long messages, and that have new entries, or
        none of the `fingerprints` in their store: a read of [begin, log_ends) must end there. Raises as
        `TopicLimits.long_topics` and `Prober.extents`."""
        return self._flushed_ends(
            one for one, end in log_ends.items() if begin[one] < end or (begin[one] and one.store not in fingerprints)
        )

    def wait_until_flushed(self, ends: Positions) -> None:
        """Wait until the files of topics that may have long messages reach these `ends`. Do not wait for a store that
        has become shorter: its readers report that. Raises as `flushed_ends` and `FlushWait.pause`."""
        wait = FlushWait(self._settings)
        while True:
            flushed = self._flushed_ends(ends)
            missing = {one: (end, ends[one]) for one, end in flushed.items() if end < ends[one]}
            extents = self._prober.extents(missing)
            missing = {one: span for one, span in missing.items() if extents[one].end >= span[1]}
            if not missing:
                return
            wait.pause(missing)

    def found(self, log_ends: Positions, find: Callable[[], dict[Partition, int]]) -> dict[Partition, int]:
        """Return what a search in stores that end at `log_ends` finds. `find` does not see long messages in memory: if
        there may be one before a position that it returns, search again when all are in files. Raises as
        `wait_until_flushed`."""
        flushed = self._flushed_ends(log_ends)
        found = find()
        unsure = {one: log_ends[one] for one, end in flushed.items() if end < found[one]}
        if unsure:
            self.wait_until_flushed(unsure)
            found |= {one: at for one, at in find().items() if one in unsure}
        return found

    def _flushed_ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return where files end, for partitions whose topics may have long messages."""
        wanted = list(partitions)
        topics = {partition.topic for partition in wanted}
        unnamed = topics - self._named
        long = (topics & self._named) | (self._limits.long_topics(unnamed) if unnamed else frozenset())
        return self._prober.flushed_ends([partition for partition in wanted if partition.topic in long])
