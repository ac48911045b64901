# SPDX-License-Identifier: Apache-2.0
"""The text of docs/log-lines.md: each id that a line of the log may begin with, what it means, and what to do.

An id never changes and is never used for something else: programs count lines by it. An id that is not used any more
moves to `RETIRED`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Line(NamedTuple):
    """What a line of the log means, and what to do about it."""

    meaning: str
    action: str


_NOTHING = "Nothing."

LINES: Mapping[str, Line] = {
    # Driver and tasks
    "outage": Line(
        "A server cannot be reached or refuses, and the client retries. The line says since when and until when.",
        "Look whether the server runs and can be reached. Nothing if `[outage-over]` follows.",
    ),
    "outage-over": Line("The server of an `[outage]` works again.", _NOTHING),
    "broker-moved": Line("The master lists a broker at another address than before.", _NOTHING),
    "heartbeat-failed": Line(
        "A heartbeat to a server failed. More failures in a row are not logged.",
        "Nothing at first. If a claim is lost, or lines with `[outage]` follow, look at the server.",
    ),
    "heartbeat-crashed": Line("A heartbeat failed with an unexpected error.", "Report it with the traceback."),
    "hostname-unverified": Line(
        "`tubemq.tls.verifyHostname` is false, so another server can pose as the master or a broker.",
        "Use certificates that name the servers' hosts, and leave the option out.",
    ),
    "partitions-maybe-old": Line(
        "The master does not answer, so the sink uses the partitions of a topic that it knows.",
        "Look at the masters.",
    ),
    "partitions-of-driver": Line(
        "No master answers a new Python process of the sink, so it uses the partitions that the driver knows.",
        "Look at the masters.",
    ),
    "flow-rule-ignored": Line(
        "The cluster's flow rule for the group cannot be parsed, so the source reads without it.",
        "Correct the rule at the master.",
    ),
    # Source
    "claim-wait": Line(
        "Another consumer of the group, or another scan of the same data, holds the partition; the reader waits.",
        "If it is not another scan: stop the other consumer, or use another `tubemq.group`.",
    ),
    "data-loss": Line(
        "Messages are lost. `failOnDataLoss` is false, so the query goes on. The line has the exact range.",
        "Restore the messages from their origin if they matter. Against retention: keep messages for longer.",
    ),
    "flow-limit": Line(
        "The cluster limits how fast the group may read, so the reader pauses for a long time.",
        "Nothing if the limit is intended; otherwise change the cluster's flow rule.",
    ),
    "new-partitions-wait": Line(
        "New partitions cannot be claimed yet. The query reads the others and tries again.",
        "If the line repeats, look at the brokers of these partitions.",
    ),
    "partition-lists-wait": Line(
        "No master tells which partitions there are. The query reads those that it knows and asks again. At most one "
        "line a minute.",
        "Look at the masters. A query cannot start without one.",
    ),
    "partition-lists-again": Line("A master answers again after `[partition-lists-wait]`.", _NOTHING),
    "group-moved": Line(
        "Another client moved the group. The driver moves it back to the position of the checkpoint.",
        "Find the other client, and give it a group of its own.",
    ),
    "new-messages-unclear": Line(
        "A store lost its tail, and the ids of its messages do not tell which are new. The query skips the range.",
        "Read the range in the line with a batch read, and compare.",
    ),
    "partition-left-out": Line(
        "The checkpoint has partitions that `subscribe` and `assign` do not name any more.",
        "Nothing if the options changed on purpose.",
    ),
    "corrupt-messages": Line(
        "A task read damaged messages and skipped or kept them, as `corruptMessages` says.",
        "Look at the producer, or at the disk of the broker.",
    ),
    "no-message-times": Line(
        "No message of a partition has a `$msgTime$`, so a search by time ends at the end of the store.",
        "Use positions instead of times for this topic.",
    ),
    "starting-time-too-late": Line(
        "No message is as late as `startingTimestamp`, so the read begins at the end of its partitions.",
        "Nothing if messages are to come. Otherwise check the year and the zone of the option.",
    ),
    "time-search-refused": Line(
        "A search for a position by time was refused at a broker, and is tried again.",
        "Read the broker's text in the line. Nothing if the query goes on.",
    ),
    "times-missing-in-filter": Line(
        "`pushFilters`: conditions on `msg_time` cannot reduce what is read. The rows are right.", _NOTHING
    ),
    "push-filters-ignored": Line("`pushFilters` is set on a stream.", "Leave the option out."),
    "read-limits-missing": Line(
        "A read limit is set, but this Spark has none: each micro-batch reads all that is there.",
        "Use Spark 4.2 or later, or leave the option out.",
    ),
    "read-limit-ignored": Line("A read limit is set on a batch read.", "Leave the option out."),
    # Sink
    "bad-row": Line(
        "A row can never be sent. `failedRows` decides if it is dropped or becomes a dead letter. Logged for the first "
        "rows of a task.",
        "Correct the query that makes the row.",
    ),
    "task-rows-dropped": Line("A task has dropped rows; the line has their number.", "Look for `[bad-row]`."),
    "batch-rows-dropped": Line("A batch has dropped rows; the line has their number.", "Look for `[bad-row]`."),
    "batch-failed": Line(
        "A batch failed after some of its messages were stored. Its next attempt may store them again.",
        "Nothing if duplicates are allowed; otherwise use `effectivelyOnce`.",
    ),
    "topic-unlisted": Line(
        "The master no longer lists a partition of a topic that the sink writes to.",
        "Check whether the topic was closed or removed, and whether its brokers run.",
    ),
    "repeated-hour": Line(
        "Rows have times that the zone of the executors has twice, when its summer time ends. Where Spark has no Arrow "
        "writers (4.0 for streams), the sink takes the earlier one, and some times are too early. Once for a day.",
        "Let the executors run with `TZ=UTC` (`spark.executorEnv.TZ`), or write `msg_time` as a string.",
    ),
    "task-count-changed": Line(
        "`effectivelyOnce`: a batch is repeated with fewer tasks than before, so rows may be stored twice.",
        "Keep the number of tasks between restarts: the line says by which settings.",
    ),
    "rows-maybe-twice": Line(
        "`effectivelyOnceUncertain=sendAgain`: a task could not find out what is stored, and sends its rows again.",
        "Remove duplicates by the attributes `spark_id`, `spark_batch`, `spark_partition` and `spark_row`.",
    ),
    "rows-twice": Line(
        "`effectivelyOnce`: earlier attempts of a task that wrote at the same time have stored rows twice, in another "
        "order, or a task has fewer equal rows than before.",
        "Remove duplicates by the attributes `spark_id`, `spark_batch`, `spark_partition` and `spark_digest`.",
    ),
    "bookmarks-not-moved": Line(
        "`effectivelyOnce`: the bookmarks stay behind the batch. A retry has more to read.", "Look at the brokers."
    ),
    "bookmarks-left-out": Line(
        "`effectivelyOnce`: brokers do not tell some bookmarks. The search reads more.", "Look at the brokers."
    ),
    "commit-note-unwritten": Line(
        "`effectivelyOnce`: a local note cannot be written, so the next batch searches more.",
        "Look at the disk of the driver.",
    ),
    "receipts-unreadable": Line("A damaged file of receipts is replaced.", "Look at the storage of the receipts."),
    "receipts-other-columns": Line(
        "A file in the folder of receipts has other columns, and is replaced.", "Give receipts a folder of their own."
    ),
    # Others
    "monitor-failed": Line(
        "A publisher of `TubeMQListener` raised an error. The query goes on.", "Read the traceback in the line."
    ),
    "embedded-handler-failed": Line(
        "`EmbeddedTubeMQ`: the handler of a request failed unexpectedly.", "Report it with the traceback."
    ),
}

RETIRED: frozenset[str] = frozenset({"commit-note-damaged"})

HEAD = """\
# Log lines

<!-- Written by scripts/generate_docs.py from scripts/log_reference.py: change it there. -->

Each warning and error of the connector begins with an id in brackets, for example `[claim-wait]`. An id never changes
its meaning and is never used again for another one, so programs may search and count lines by it. `grep` for
`tubemq_spark` finds the lines of all ids, because each line names its logger.

| line | meaning | what to do |
|---|---|---|
"""


def document() -> str:
    """Return the text of docs/log-lines.md."""
    return HEAD + "".join(f"| `[{name}]` | {line.meaning} | {line.action} |\n" for name, line in sorted(LINES.items()))
