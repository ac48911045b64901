# SPDX-License-Identifier: Apache-2.0
"""Plans a write on the driver: checks all that can be checked before a task runs, and collects what tasks need."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyspark.sql.types import StructType

from tubemq_spark.client.cluster.cluster_metadata import KnownTopics
from tubemq_spark.client.cluster.deployed_topics import add_topics
from tubemq_spark.client.cluster.session_pool import SESSIONS
from tubemq_spark.client.cluster.unknown_topics import UnknownTopicError
from tubemq_spark.errors import ConfigError, TransportError
from tubemq_spark.sink.batch_plan import BatchPlan, plan_batch
from tubemq_spark.sink.options import EFFECTIVELY_ONCE, SinkOptions
from tubemq_spark.sink.receipts import check_folder
from tubemq_spark.sink.schema import check_columns, columns_read, has_source_schema

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WritePlan:
    """What the driver sends to the tasks of a batch: plain values.

    `write_id` is None for streams. `batch` is for tasks with `effectivelyOnce`. `has_targets` is True if rows may name
    the partition that they go to.
    """

    options: SinkOptions
    write_id: str | None = None
    batch: BatchPlan | None = None
    has_targets: bool = False
    known: KnownTopics | None = field(default=None, compare=False, repr=False)
    """The topics of the options, for tasks that get no answer of a master."""
    no_answer: TransportError | None = field(default=None, compare=False, repr=False)
    """Why the topics of a stream are not known to exist. Its tasks need to know, the commit of a batch does not."""

    def for_tasks(self) -> WritePlan:
        """Return the plan with that of the batch, if the options say `effectivelyOnce`.

        To be called once for each attempt of a batch, before its tasks begin. Raise as `plan_write` and `plan_batch`.
        """
        if self.no_answer is not None:
            raise self.no_answer
        once = self.options.effectively_once
        if once is None or self.batch is not None:
            return self
        with SESSIONS().lease(self.options.client) as session:
            try:
                batch = plan_batch(session, once, all_needed=self.has_targets)
            except UnknownTopicError as error:
                raise error.with_similar_names(self.options.client) from None
            topics = {*once.topics, *(self.known.topics if self.known is not None else ())}
            return replace(self, batch=batch, known=session.known(topics))


def plan_write(raw: Mapping[str, str], schema: StructType, overwrite: bool, write_id: str | None = None) -> WritePlan:
    """Return the plan of a write with the options `raw`; `write_id` is that of a batch write.

    Raise `ConfigError` for options, columns, a mode or a topic that cannot be used, `AuthError`, and `TransportError`
    if no master answers or all brokers of a topic are down; for a stream, `WritePlan.for_tasks` raises that.
    """
    if overwrite:
        raise ConfigError("TubeMQ only appends: write with mode('append'), or stream with outputMode('append')")
    if write_id is not None and EFFECTIVELY_ONCE.get(raw):
        raise ConfigError("option 'effectivelyOnce' is for streams; a batch write may use option 'stampRows'")
    options = SinkOptions.from_options(raw)
    check_columns(schema, options.topic, options.message_format)
    if options.message_format == "inlongmsg" and options.compression != "none":
        _log.warning(
            "[compressed-packs] option 'compression' makes packs that only this source reads: a job of InLong Sort "
            "that meets one fails and restarts without end; 'inlongPackCompression' makes packs that InLong reads"
        )
    names = tuple(schema.fieldNames())
    has_targets = "partition" in columns_read(names, options.topic)
    if options.topic is None and has_source_schema(names):
        _log.warning(
            "[copied-by-topic-column] rows have the columns of the source and no option 'topic' is given: each goes to "
            "the topic that it was read from. In the same cluster give option 'topic', else they are read again"
        )
    if ignored := [name for name in names if name not in columns_read(names, options.topic)]:
        _log.info("the sink ignores the columns %s: option 'topic' wins, or they say where rows were read", ignored)
    if options.receipts is not None:
        check_folder(options.receipts)
    topics = [topic for topic in (options.topic, options.dead_letter_topic) if topic is not None]
    known = None
    if topics:
        with SESSIONS().lease(options.client) as session:
            try:
                add_topics(session, topics)
            except UnknownTopicError as error:
                raise error.with_similar_names(options.client) from None
            except TransportError as error:
                if write_id is not None:
                    raise
                return WritePlan(options, has_targets=has_targets, no_answer=error)
            known = session.known(topics)
        options = replace(options, client=replace(options.client, master_reachable=True))
    return WritePlan(options, write_id, has_targets=has_targets, known=known)
