# SPDX-License-Identifier: Apache-2.0
"""The listener that hears of each micro-batch and passes reports on to publishers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

from pyspark.sql.streaming.listener import StreamingQueryListener

from tubemq_spark.monitoring.report import BatchReport, EndReport, Query, batch_report, end_report, seconds_of

_log = logging.getLogger(__name__)


class Publisher(Protocol):
    """Where reports go. Spark calls the listener in one thread, one event after the other."""

    def started(self, query: Query) -> None: ...

    def batch(self, report: BatchReport) -> None: ...

    def idle(self, query: Query, at: float) -> None:
        """A query found no new messages. `at` is in seconds since the epoch."""

    def ended(self, report: EndReport) -> None: ...


class TubeMQListener(StreamingQueryListener):
    """Reports the progress of all queries of a session: `spark.streams.addListener(TubeMQListener(...))`.

    With Spark Connect it runs in the client. An error of a publisher is logged; it fails neither the query nor the
    other publishers.
    """

    def __init__(self, *publishers: Publisher) -> None:
        self._publishers = publishers
        self._queries: dict[str, Query] = {}  # by run id, because some events lack the name

    def onQueryStarted(self, event: Any) -> None:
        query = Query(str(event.id), str(event.runId), event.name)
        self._queries[query.run_id] = query
        self._publish(lambda publisher: publisher.started(query))

    def onQueryProgress(self, event: Any) -> None:
        report = batch_report(event.progress)
        self._queries[report.query.run_id] = report.query
        self._publish(lambda publisher: publisher.batch(report))

    def onQueryIdle(self, event: Any) -> None:
        query, at = self._query(event), seconds_of(event.timestamp)
        self._publish(lambda publisher: publisher.idle(query, at))

    def onQueryTerminated(self, event: Any) -> None:
        report = end_report(self._query(event), event.exception)
        self._queries.pop(report.query.run_id, None)
        self._publish(lambda publisher: publisher.ended(report))

    def _query(self, event: Any) -> Query:
        run_id = str(event.runId)
        return self._queries.get(run_id) or Query(str(event.id), run_id, None)

    def _publish(self, action: Callable[[Publisher], None]) -> None:
        for publisher in self._publishers:
            try:
                action(publisher)
            except Exception:
                _log.exception("[monitor-failed] %s could not publish a report", type(publisher).__name__)
