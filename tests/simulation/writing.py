# SPDX-License-Identifier: Apache-2.0
"""Schedules of writing: a stream with its operator, foreign producers, batch writes, copies, and an administrator."""

from __future__ import annotations

import os
import pickle
import random
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa

from tests.simulation.connector import NumberSource, Row, TubeMQSink, TubeMQSource
from tests.simulation.promises import UNIT, BrokenError
from tests.simulation.schedule import (
    SERVER_KINDS,
    Disturbance,
    Moment,
    Outcome,
    Schedule,
    Setting,
    make_unrest,
    make_weather,
    small_servers,
    some,
    turn_knobs,
)
from tests.simulation.servers import DELETED, RETENTION, Message
from tests.simulation.spark import Application, Checkpoint, StageError, StreamQuery, TaskContext
from tests.simulation.world import Killed, the_world
from tests.simulation.writing_promises import Attempt, Origin, Plan, Writing
from tests.without_spark.sink import Cells, batches, schema
from tubemq_spark.client.cluster.session_pool import SESSIONS
from tubemq_spark.client.producer.send_queue import MAX_BYTES
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.errors import (
    ConfigError,
    DataLossError,
    FencedError,
    PartitionOccupiedError,
    PositionMovedError,
    ServerError,
    TransportError,
    TubeMQError,
)
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.sink.commit import Written
from tubemq_spark.testing import request_checks

QUERY_ID = "00000000-0000-4000-8000-000000000001"
DEAD, FROM = "dead", "s"
_CATCH_UP = 900.0  # seconds that a query may need after the last disturbance
_MOST_THREADS = 12  # of a process: a task, the heartbeats, and a connect to each server in the background
_MOST_SOCKETS = 9  # of a process: two for each server, and those that are being closed

# Tunables of the product, and smaller values.
KNOBS = (
    ("client.producer.send_queue", "_BATCH", (2, 10)),
    ("client.producer.send_queue", "_BATCH_BYTES", (40,)),
    ("client.producer.run_sender", "_MIN_RECORDS", (1, 2)),
    ("sink.task_writer", "_SLICE", (1, 2)),
    ("sink.packs", "_MAX_OPEN", (1, 2)),
)

_LONG_RETRIES = "60000"  # of `tubemq.retry.maxelapsedms`: longer than a topic is closed
_TOKENS: tuple[dict[str, Any], ...] = ({}, {"start_visit_token_check": True, "visit_token_check_in_valid_time": 0.0})

_SENDS, _COMMITS = "worker writes: send_message", "driver commits the writes"
_IN_A_BATCH = {"crowd": (_SENDS, _COMMITS), "hold requests": (_SENDS,), "change tasks": (_SENDS,)}  # mostly then

# What may explain each error of a query, by the words that `trouble` records.
_EXPLANATIONS: dict[type[BaseException], frozenset[str]] = {
    DataLossError: frozenset({"retention", "crash", "deleted"}),
    FencedError: frozenset({"repeated", "speculation", "zombie", "clock"}),
    PartitionOccupiedError: frozenset({"repeated", "speculation", "zombie", "clock", "hang", "crash", "network"}),
    PositionMovedError: frozenset(
        {"repeated", "speculation", "zombie", "clock", "hang", "crash", "network", "deleted"}
    ),
    ConfigError: frozenset({"closed", "tasks", "crash", "deleted"}),
    ServerError: frozenset({"closed"}),
}


class NumberSink(TubeMQSink):
    """Tells the schedule when it plans."""

    plans: Callable[[StreamQuery, int], None]
    watched: Callable[[Iterator[pa.RecordBatch], Sequence[Cells]], Iterator[pa.RecordBatch]]
    failed: Callable[[int, BaseException], None]

    def _write(
        self, writer: bytes, batch: int, number: int, make: Callable[[], Sequence[Any]]
    ) -> tuple[list[Cells], Written]:
        try:
            return super()._write(writer, batch, number, make)
        except TubeMQError as error:
            self.failed(batch, error)
            raise

    def _feed(self, rows: Sequence[Cells]) -> Iterator[pa.RecordBatch]:
        return self.watched(super()._feed(rows), rows)

    def write(self, batch: int, scans: Sequence[Sequence[Callable[[], Any]]]) -> None:
        self.plans(self._query, batch)
        super().write(batch, scans)


class RowSource(NumberSource):
    """As `NumberSource`, with a time from which on each batch is there; `order` puts the rows of a task into the order
    of an attempt."""

    def __init__(
        self,
        make: Callable[[int], Sequence[Sequence[Cells]]],
        times: Sequence[float],
        order: Callable[[int, int, Sequence[Cells]], list[Cells]],
    ) -> None:
        super().__init__(make, len(times))
        self._times, self._order = times, order

    def latest(self, start: str) -> str:
        batch = int(start)
        if batch < self._batches and the_world().now < self._times[batch]:
            return start
        return super().latest(start)

    def plan(self, start: str, end: str) -> Sequence[Sequence[Callable[[], Any]]]:
        batch = int(start)
        return [[partial(self._order, batch, task, rows) for task, rows in enumerate(self._make(batch))]]


class WritingSchedule(Schedule):
    """One stream of numbered rows, or of the messages of another topic, to one, two or ever new topics."""

    SLOTS = 10
    receipts: str | None = None  # their folder

    def make_setting(self, r: random.Random) -> Setting:
        interval = r.choice((0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 15.0, 70.0))
        once = r.random() < 0.5
        what = r.choice(("numbers",) * 6 + ("copy", "many topics"))
        if what == "copy":
            once = True
        horizon = {0.0: 12.0, 1.0: 12.0, 2.0: 15.0, 15.0: 50.0, 70.0: 200.0}[interval]
        topics = r.choice((("t",), ("t",), ("t", "u"))) if what != "copy" else ("t",)
        by_column = what == "many topics" or r.random() < 0.25
        options = self._options(r, what, once=once)
        if not by_column:
            topics = topics[:1]
            options["topic"] = "t"
        packed = "inlongpackrows" in options
        columns = _columns(r, what)
        columns += ("topic",) if by_column or (what == "numbers" and r.random() < 0.2) else ()  # the option wins
        columns += ("inlong_group", "inlong_stream") if packed else ()
        style = r.choice(("mixed", "mixed", "hot", "plain"))
        sizes, slow = r.choice(((0, 1, 3), (0, 1, 3), (1, 4, 8), (3, 12), (12,))), 0.0
        if r.random() < 0.15:
            slow = r.choice((0.05, 0.2, 0.5))
        first, repeated = r.choice((0, 0, 3, 20, 40)), some(r, 0.3, 0.2, 0.8)
        rate, spread = r.choice((0.2, 0.4, 0.7)), 0.8
        if what == "numbers" and r.random() < 0.12:  # full queues: each row waits for those before it
            style, sizes, slow, first = "hot", (60,), r.choice((0.1, 0.3, 0.3, 0.4)), 20
            options["tubemq.producer.maxinflight"] = "1"
            options.pop("tubemq.producer.maxinflightbytes", None)
            repeated, rate, spread = r.choice((0.0, 0.5)), 0.1, 0.1
            horizon = max(horizon, 120.0)  # a flush takes many seconds
        count = r.randrange(2, 5) if what != "many topics" else r.randrange(4, 8)
        kinds = [kind for kind in self.KINDS if r.random() < 0.3]
        knobs = turn_knobs(r, KNOBS)
        if what == "many topics":
            knobs = (*knobs, ("testing.request_checks", "_MAX_TOPICS", 10))
        config = small_servers(r, **r.choice(_TOKENS))
        if r.random() < 0.5:  # no more than the brokers keep in memory, in two blocks
            knobs = (*knobs, ("sink.stored_rows_search", "MARGIN", 2 * config.mem_cache_msg_count + 2))
        return Setting(
            brokers=r.choice((1, 1, 1, 2)),
            masters=r.choice((1, 1, 2)),
            partitions=r.choice((1, 1, 2)),
            stores=r.choice((1, 1, 1, 2)),
            horizon=horizon,
            interval=interval,
            weather=make_weather(r),
            unrest=replace(make_unrest(r), repeated_stage=repeated),
            options=options,
            config=config,
            kinds=tuple(kinds),
            knobs=knobs,
            rate=rate,
            extra={
                "what": what,
                "topics": topics,
                "columns": columns,
                "style": style,
                "batches": count,
                "times": [0.0, *sorted(spread * horizon * r.random() for _ in range(count - 1))],
                "slow": slow,  # seconds that each message takes
                "tasks": r.choice((1, 1, 2)),
                "sizes": sizes,
                "bad": r.choice((0.0, 0.1)) if "failedrows" in options else 0.0,
                "shuffled": r.random() < 0.15,
                "equal": r.random() < 0.1,
                "receipts": r.random() < 0.15 and not packed,
                "first": first,
                "pause": r.choice((0.1, 0.1, 1.0, 20.0)),
                "max_failures": r.choice((1, 2, 4)),
                "feed": sorted((r.random() * horizon, r.randrange(8), r.choice((1, 3, 10))) for _ in range(6)),
            },
        )

    def _options(self, r: random.Random, what: str, *, once: bool) -> dict[str, str]:
        options = {"checkpointlocation": "/checkpoints/writer"}
        if once:
            options["effectivelyonce"] = "true"
        elif r.random() < 0.3:
            options["stamprows"] = "true"
        if r.random() < 0.5:
            options["tubemq.producer.maxinflight"] = r.choice(("1", "1", "4", "1000"))
        if r.random() < 0.2:
            options["tubemq.producer.maxinflightbytes"] = r.choice(("200", "5000"))
        if r.random() < 0.5:
            options["tubemq.rpc.timeoutms"] = r.choice(("400", "1000", "2000"))
        options["tubemq.retry.maxelapsedms"] = r.choice(("5000", "20000", "60000"))
        if r.random() < 0.2:
            options["tubemq.connections.shared"] = "false"
        if what == "numbers" and not once and "stamprows" not in options and r.random() < 0.3:
            options["messageformat"] = "inlongmsg"
            options["inlongpackrows"] = r.choice(("2", "5", "100"))
        if r.random() < 0.15:
            options["compression"] = r.choice(("gzip", "zstd", "snappy", "lz4"))
        if what == "numbers" and r.random() < 0.25:
            options["failedrows"] = r.choice(("drop", "deadletter"))
            if options["failedrows"] == "deadletter":
                options["deadlettertopic"] = DEAD
        if once and r.random() < 0.1:
            options["effectivelyonceuncertain"] = "sendagain"
        if once and r.random() < 0.3:
            options["effectivelyoncemaxoffsets"] = r.choice(("1", "10"))
        return options

    # -- the rows -------------------------------------------------------------------------------------------------

    def rows(self, batch: int) -> list[list[Cells]]:
        """Return the rows of the tasks of a batch, the same ones each time."""
        return self._rows_of("b", batch, self.tasks_of.get(batch, self.setting.extra["tasks"]))

    def _rows_of(self, kind: str, batch: int, tasks: int) -> list[list[Cells]]:
        extra = self.setting.extra
        r = random.Random(f"rows {self.seed} {kind} {batch}")
        made: list[Cells] = []
        for task in range(extra["tasks"]):
            for number in range(r.choice(extra["sizes"])):
                body = f"{kind}{batch}/t{task}/r{number};" + "x" * r.choice((0, 0, 3, 40)) + "."
                made.append(self._cells(r, batch, body.encode()))
        if extra["equal"] and len(made) > 2:
            made[1] = made[0]
        if tasks == extra["tasks"]:
            divided: dict[int, list[Cells]] = {task: [] for task in range(tasks)}
            for row in made:
                divided[int(_task_of(row["value"]))].append(row)
            return list(divided.values())
        return [made[task::tasks] for task in range(tasks)]

    def _cells(self, r: random.Random, batch: int, body: bytes) -> Cells:
        extra = self.setting.extra
        columns, style = extra["columns"], extra["style"]
        cells: dict[str, Any] = {"value": body}
        if "topic" in columns:
            cells["topic"] = "elsewhere" if "topic" in self.options else r.choice(self.topics_of_batch(batch))
        if "inlong_group" in columns:
            cells |= {"inlong_group": "g", "inlong_stream": "s"}
        if style == "plain":
            return cells
        if "key" in columns and r.random() < (0.95 if style == "hot" else 0.6):
            cells["key"] = b"hot" if style == "hot" else r.choice((b"red", b"green", b"blue"))
        if "partition" in columns and r.random() < 0.3:
            cells |= {
                "broker_id": 1 + r.randrange(self.setting.brokers),
                "partition": r.randrange(self.setting.partitions),
            }
        if "attributes" in columns and r.random() < 0.5:
            cells["attributes"] = {"color": r.choice(("red", "blue")), "n": str(r.randrange(9))}
        if r.random() < extra["bad"]:
            cells["value"] = b"x" + body[1:]
            bad = r.choice(("attribute", "target", "partition"))
            if bad == "attribute" and "attributes" in columns:
                cells["attributes"] = {"a,b": "c"}
            elif "partition" in columns:
                cells |= {"broker_id": 1, "partition": None if bad == "target" else 99}
            else:
                cells["value"] = body
        return cells

    def topics_of_batch(self, batch: int) -> Sequence[str]:
        if self.setting.extra["what"] == "many topics":
            return [f"n{3 * batch + number}" for number in range(3)]
        return self.topics

    def _order(self, batch: int, task: int, rows: Sequence[Cells]) -> list[Cells]:
        """Return the rows of a task in the order in which an attempt gets them."""
        ordered = list(rows)
        if self.shuffled:
            self.world.numbers["order"] += 1
            random.Random(self.world.hash("order", batch, task, self.world.numbers["order"])).shuffle(ordered)
        return ordered

    # -- the actors -----------------------------------------------------------------------------------------------

    def play(self) -> Outcome:
        try:
            return super().play()
        finally:
            if self.receipts is not None:
                shutil.rmtree(self.receipts, ignore_errors=True)

    def begin(self) -> None:
        extra, setting, world = self.setting.extra, self.setting, self.world
        self.topics: tuple[str, ...] = extra["topics"]
        self.options = dict(setting.options)
        self.failed_rows = self.options.get("failedrows", "fail")
        self.packed = "inlongpackrows" in self.options
        self.shuffled: bool = extra["shuffled"]
        self.dead_topic = DEAD
        self.is_copy = extra["what"] == "copy"
        if extra["receipts"]:
            self.receipts = tempfile.mkdtemp(prefix="receipts-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
            self.options["receipts"] = self.receipts
        self.tasks_of: dict[int, int] = {}  # of batches that have another number of tasks than usual
        self.crashes: dict[int, list[float]] = defaultdict(list)
        self.partitions_changed = False
        self._finished = False
        self._foreign = 0
        self.app: Application | None = None
        self.query: StreamQuery | None = None
        self.writes: list[Any] = []
        made = [*self.topics]
        if extra["what"] == "many topics":
            made = [topic for batch in range(extra["batches"]) for topic in self.topics_of_batch(batch)]
        self.all_topics = tuple(made)
        for topic in (*made, DEAD, *((FROM,) if self.is_copy else ())):
            self.tubemq.create_topic(topic, setting.partitions, setting.stores)
        self.checkpoint = Checkpoint("/checkpoints/writer", QUERY_ID)
        self.writing = Writing(self, QUERY_ID)
        self._watch_storing()
        for topic in self.topics:
            self._send_foreign(topic, 0, extra["first"])
        if extra["slow"]:
            for broker_id in self.tubemq.broker_ids:
                self._hang_again(f"broker {broker_id}", extra["slow"], setting.horizon)
        self.fed = world.start("feeder", self._feed)
        self.operator = world.start("operator", self._operate)

    def _watch_storing(self) -> None:
        stored, truth = self.truth.stored, self.truth

        def watched(broker_id: int, request: Any, reply: Any) -> None:
            stored(broker_id, request, reply)
            partition = Partition(broker_id, request.topicName.strip(), request.partitionId)
            message: Message = truth.messages[partition.store][-1]
            serving = self.world.serving
            if partition.topic in self.all_topics or partition.topic == DEAD:
                process, held_for = (None, 0.0) if serving is None else (serving.process, serving.held_for)
                self.guarded(self.writing.stored, message, process, held_for)

        truth.stored = watched

    def _feed(self) -> None:
        for at, number, count in self.setting.extra["feed"]:
            self.world.sleep(max(0.0, at - self.world.now))
            topic = FROM if self.is_copy else self.topics[number % len(self.topics)]
            self._send_foreign(topic, number, count)

    def _send_foreign(self, topic: str, number: int, count: int) -> None:
        """Send messages that no query has written."""
        serving, self.world.serving = self.world.serving, None
        for _ in range(count):
            targets = self.partitions_of(topic)
            if not targets:
                break
            partition = targets[number % len(targets)]
            self._foreign += 1
            body = b"f%d" % self._foreign
            self.writing.foreign.add((topic, body))
            with suppress(ConfigError):  # its broker is down, or the topic is closed
                self.tubemq.send(topic, body, f"{partition.broker_id}:{partition.partition_id}")
        self.world.serving = serving

    def _operate(self) -> None:
        """Run the query, and start it again when it ends, as an operator or a supervisor does."""
        world = self.world
        while not self._finished:
            self._run_query()
            if not self._finished:
                world.sleep(self.setting.extra["pause"] if not self.is_calm else 5.0)

    def _run_query(self) -> None:
        world, extra = self.world, self.setting.extra
        world.numbers["app"] += 1
        app = Application(world, f"app{world.numbers['app']}", self.setting.unrest, max_failures=extra["max_failures"])
        self.app = app
        source: Any
        if self.is_copy:
            source = TubeMQSource(self.source_options())
        else:
            source = RowSource(self.rows, extra["times"], self._order)
        sink = NumberSink(self.raw(), extra["columns"], self._committed, self._cells_of, self._started)
        sink.plans, sink.watched, sink.failed = self._plans, self._watched, self._attempt_failed
        interval = self.setting.interval if not self.is_calm else min(1.0, self.setting.interval)
        self._run_options = dict(self.options)
        query = StreamQuery(app, self.checkpoint, source, sink, interval=interval)
        self.query = query
        query.ended.wait()
        killed = isinstance(query.ended.error, Killed)
        if query.error is not None:
            self._judge(query, query.error)
        elif not killed and query.ended.error is not None:
            raise query.ended.error
        self.query = None
        if not killed:
            app.end()
        else:
            self.trouble("zombie")

    def raw(self, **more: str) -> dict[str, str]:
        return {
            "tubemq.master": self.tubemq.master,
            "tubemq.rpc.framing": "standard",
            **self.options,
            **more,
        }

    def source_options(self) -> dict[str, str]:
        return {
            "tubemq.master": self.tubemq.master,
            "tubemq.rpc.framing": "standard",
            "tubemq.group": "copiers",
            "subscribe": FROM,
            "startingoffsets": "earliest",
            "failondataloss": "false",
        }

    def _cells_of(self, row: Any) -> Cells:
        if not isinstance(row, Row):
            cells: Cells = row
            return cells
        return {"value": row.body} if "topic" in self.options else {"value": row.body, "topic": "t"}

    def _plans(self, query: StreamQuery, batch: int) -> None:
        topics = self.topics_of_batch(batch)
        stores = [self.store_of(partition) for topic in topics for partition in self.partitions_of(topic)]
        held = ((store.max_offset - store.min_offset) // UNIT for store in stores if store is not None)
        largest = max(held, default=0)
        if not self.is_copy:
            for task, rows in enumerate(self.rows(batch)):
                self.writing.want(("batch", batch), task, rows, self.options.get("topic"))
        self.writing.planned(query.run_id, ("batch", batch), Plan(self.world.now, largest, "topic" in self.options))

    def _started(self, query: StreamQuery, batch: int, task: int, context: TaskContext, rows: Sequence[Cells]) -> None:
        running = self.world.running
        assert running is not None
        if self.is_copy:
            self.writing.want(("batch", batch), task, rows, self.options.get("topic"))
        self._begin_attempt(query.app.name, query.run_id, ("batch", batch), task, context, rows, self._run_options)

    def _begin_attempt(
        self,
        app: str,
        run: str,
        origin: Origin,
        task: int,
        context: TaskContext,
        rows: Sequence[Cells],
        options: Mapping[str, str],
    ) -> None:
        running = self.world.running
        assert running is not None
        once = options.get("effectivelyonce") == "true"
        attempt = Attempt(
            running.process,
            app,
            run,
            origin,
            task,
            context.stage,
            context.attempt,
            self.world.now,
            rows,
            stamped=once or options.get("stamprows") == "true",
            once=once,
            send_again=options.get("effectivelyonceuncertain") == "sendagain",
            most_bytes=int(options.get("tubemq.producer.maxinflightbytes", MAX_BYTES)),
        )
        self.writing.begun(attempt)
        if attempt.meets_earlier_stage:
            self.trouble("repeated")
        if attempt.is_speculative:
            self.trouble("speculation")

    def _watched(self, feed: Iterator[pa.RecordBatch], rows: Sequence[Cells]) -> Iterator[pa.RecordBatch]:
        running, given = self.world.running, 0
        assert running is not None
        for batch in feed:
            yield batch
            given += batch.num_rows
            self.guarded(self.writing.bounded_memory, running.process, rows[:given])

    def _committed(self, query: StreamQuery, batch: int, tasks: list[list[Cells]], written: list[Written]) -> None:
        self.batches += 1
        if self.is_copy:
            self.writing.wanted(("batch", batch), tasks, self.options.get("topic"))
        self.writing.committed(query.run_id, ("batch", batch), tasks, written)
        self.guarded(self.nothing_left)

    def _attempt_failed(self, batch: int, error: BaseException) -> None:
        self.guarded(self.writing.error_true, ("batch", batch), str(error))
        # Others may rightly end an attempt, and the next one succeeds; a refusal or a wrong bookmark has a cause.
        if isinstance(error, ServerError) or "which is too late" in str(error):
            self._explain(f"a task of batch {batch}", error)

    def _judge(self, query: StreamQuery, error: BaseException) -> None:
        """A query has ended by an error. Something must explain it."""
        batch = self.checkpoint.committed
        self.guarded(self.writing.error_true, ("batch", batch), str(error))
        if isinstance(error, DataLossError) or "effectivelyOnceUncertain" in str(error):
            self.options["effectivelyonceuncertain"] = "sendagain"  # as the error advises
        if "effectivelyOnceMaxOffsets" in str(error):
            self.options.pop("effectivelyoncemaxoffsets", None)  # as the error advises
            return
        self._explain("the query", error)

    def _explain(self, who: str, error: BaseException) -> None:
        now = self.world.now
        recent = {what for at, what in self.troubles if now - at < 200.0}
        if isinstance(error, Killed) and "kill worker" in self.came:
            return
        if isinstance(error, TransportError) and (self.has_weather or recent):
            return
        if isinstance(error, ServerError) and self.options["tubemq.retry.maxelapsedms"] == _LONG_RETRIES:
            recent.discard("closed")
        for kind, words in _EXPLANATIONS.items():
            if isinstance(error, kind) and (recent & words):
                return
        self.breaks(BrokenError("errors_explained", f"{who} ended by {type(error).__name__}: {str(error)[:300]}"))

    @property
    def has_weather(self) -> bool:
        weather = self.setting.weather
        return bool(weather.late or weather.late_reply or weather.cut or weather.cut_reply or weather.lost)

    # -- what the promises ask ------------------------------------------------------------------------------------

    def partitions_of(self, topic: str) -> list[Partition]:
        layouts = self.tubemq.servers.catalog.topics.get(topic, {})
        return [
            Partition(broker_id, topic, number)
            for broker_id, layout in sorted(layouts.items())
            for number in layout.partition_ids
        ]

    def store_of(self, partition: Partition) -> Any:
        service = self.tubemq.servers.brokers[partition.broker_id].service
        return service.stores.get(partition.topic, partition.store_id)

    def broker_failed_since(self, at: float) -> bool:
        """Return True if a broker may not have answered for two seconds since then."""
        weather = self.setting.weather
        if weather.lost or ((weather.late or weather.late_reply) and weather.longest >= 2.0):
            return True
        words = {"crash", "stop", "hang", "network", "deleted"}
        return any(when >= at - 40.0 and what in words for when, what in self.troubles)

    # -- the end --------------------------------------------------------------------------------------------------

    def calm_down(self) -> None:
        super().calm_down()
        for topic in self.all_topics:
            self.tubemq.open_topic(topic)

    def rest(self) -> None:
        world = self.world
        world.run(lambda: self.fed.done)
        if self.setting.interval > 1.0 and self.query is not None:  # it would need hours
            self.query.stop()
        end = world.now + _CATCH_UP
        while not self._has_all():
            if world.now > end:
                if any(loss.store[1] == FROM and loss.how == DELETED for loss in self.truth.losses):
                    break  # the source cannot tell a topic that was created anew with as many messages as it has read
                raise BrokenError(
                    "comes_to_rest",
                    f"{self.checkpoint.committed} batches are committed {_CATCH_UP:.0f} s after the last disturbance",
                )
            world.pass_time(1.0)
        world.run(lambda: all(write.done for write in self.writes))
        weather = self.setting.weather
        world.pass_time(2.0 + 2 * weather.longest if weather.late else 3.0)  # whatever is late arrives
        self._finished = True
        self.guarded(self.nothing_left)
        if self.query is not None:
            self.query.stop()
        world.run(lambda: self.operator.done)
        for call in (self.operator, *self.writes):
            if call.error is not None:
                raise call.error
        self.writing.at_end()
        if self.is_copy:
            self.guarded(self.copied_once)

    def _has_all(self) -> bool:
        if not self.is_copy:
            return self.checkpoint.committed >= int(self.setting.extra["batches"])
        if self.checkpoint.is_pending or self.query is None or self.query.app.jvm.state != "waits for messages":
            return False
        there = {entry.body for entry in self.writing.entries.values() if entry.copies}
        return all(message.body in there for message in self.truth.of_topic(FROM) if message.lost is None)

    def copied_once(self) -> None:
        """Each message of the topic that is copied is in the other topic, and once, as `stored_once` says."""
        for message in self.truth.of_topic(FROM):
            entry = self.writing.entries.get(("t", message.body))
            if message.lost is None and (entry is None or not entry.copies) and not self._is_anew(message):
                raise BrokenError("rows_stored", f"{message} was not copied")
            if entry is not None and len(entry.rows) > 1:
                raise BrokenError("stored_once", f"{message} was read in {', '.join(map(str, entry.rows))}")

    def _is_anew(self, message: Message) -> bool:
        """Return True if the topic was created anew before the message came: see `known`."""
        losses = (loss for loss in self.truth.losses if loss.store == message.partition.store)
        return any(loss.how == DELETED and loss.at <= message.at for loss in losses)

    def nothing_left(self) -> None:
        """A process holds no more threads, connections and topics than one task needs, however many ran in it.

        The master refuses all requests of a session that names more topics than it takes, also those of other tasks.
        """
        for process in self.world.processes:
            sessions = process.runtime._values.get(SESSIONS)
            for shared in sessions._entries.values() if sessions is not None else ():
                topics = len(shared.session._topics)
                if topics > request_checks._MAX_TOPICS:
                    raise BrokenError(
                        "nothing_left",
                        f"a session of {process} names {topics} topics, of which the master takes "
                        f"{request_checks._MAX_TOPICS}",
                    )
            if len(process.actors) > _MOST_THREADS or len(process.sockets) > _MOST_SOCKETS:
                raise BrokenError(
                    "nothing_left",
                    f"{process} has {len(process.actors)} threads and {len(process.sockets)} connections",
                )

    def _make_disturbance(self, r: random.Random) -> Disturbance:
        planned = super()._make_disturbance(r)
        if planned.kind in _IN_A_BATCH and r.random() < 0.8:
            state = r.choice(_IN_A_BATCH[planned.kind])
            after = 0.01 * r.randrange(3) if state == _SENDS else 0.0
            return replace(planned, moment=Moment("state", (state, r.choice((1, 1, 2, 3))), after))
        return planned

    # -- disturbances ---------------------------------------------------------------------------------------------

    def _topic(self, planned: Disturbance) -> str:
        topic: str = self.all_topics[planned.number % len(self.all_topics)]
        return topic

    def crash_broker(self, planned: Disturbance) -> None:
        broker_id = self.broker_of(planned)
        self.crashes[broker_id].append(self.world.now)
        self.partitions_changed = True
        super().crash_broker(planned)

    def stop_broker(self, planned: Disturbance) -> None:
        self.partitions_changed = True
        super().stop_broker(planned)

    def switch_master(self, planned: Disturbance) -> None:
        self.partitions_changed = True
        super().switch_master(planned)

    def stop_master(self, planned: Disturbance) -> None:
        self.partitions_changed = True
        super().stop_master(planned)

    def empty_disk(self, planned: Disturbance) -> None:
        broker_id = self.broker_of(planned)
        self.world.tell(f"broker {broker_id}", "loses its disk")
        self.partitions_changed = True
        self.crashes[broker_id].append(self.world.now)
        self.trouble("crash")
        self.trouble("deleted")
        self.tubemq.crash_broker(broker_id)
        self.tubemq.lose_disk(broker_id)
        self.note_losses(DELETED)
        self.world.at(0.2 + planned.strength**2 * 20, self._start_broker, broker_id)

    def slow_broker(self, planned: Disturbance) -> None:
        """A broker handles what has come at most a few times a second, for a while."""
        broker_id = self.broker_of(planned)
        pause = 0.05 + planned.strength**2 * 0.8
        seconds = 5.0 + planned.number % 30
        self.world.tell(f"broker {broker_id}", f"needs {pause:.2f} s for each message for {seconds:.0f} s")
        self.trouble("slow")
        self._hang_again(f"broker {broker_id}", pause, self.world.now + seconds)

    def _hang_again(self, server: str, pause: float, until: float) -> None:
        hangs, now = self.network.hangs, self.world.now
        if now < until and not self.is_calm:
            hangs[server] = max(hangs.get(server, 0.0), now + pause)
            self.world.at(pause + 0.001, self._hang_again, server, pause, until)

    def kill_driver(self, planned: Disturbance) -> None:
        if self.app is not None and self.app.alive:
            self.app.kill()

    def kill_worker(self, planned: Disturbance) -> None:
        if self.app is not None and self.app.alive:
            self.app.kill_worker(planned.number)

    def stop_query(self, planned: Disturbance) -> None:
        if self.query is not None:
            self.query.stop()

    def expire(self, planned: Disturbance) -> None:
        topic = self._topic(planned)
        self.world.tell("retention", f"removes messages of {topic}")
        self.trouble("retention")
        self.tubemq.expire(topic, planned.number % 4)
        self.note_losses(RETENTION)

    def flush(self, planned: Disturbance) -> None:
        self.tubemq.flush(self._topic(planned))

    def enlarge_topic(self, planned: Disturbance) -> None:
        topic = self._topic(planned)
        self.world.tell("administrator", f"adds partitions to {topic}")
        self.partitions_changed = True
        self.tubemq.create_topic(topic, self.setting.partitions + planned.number % 2, self.setting.stores + 1)

    def close_topic(self, planned: Disturbance) -> None:
        topic = self._topic(planned)
        seconds = 0.5 + planned.strength**2 * 20
        self.world.tell("administrator", f"closes topic {topic} for producers for {seconds:.1f} s")
        self.trouble("closed")
        self.partitions_changed = True
        self.tubemq.close_topic(topic, subscribe=False)
        self.world.at(seconds, self.tubemq.open_topic, topic)

    def hold_requests(self, planned: Disturbance) -> None:
        """The servers do not handle what comes over the present connections of a worker, but answer others."""
        workers = [process for process in self.world.processes if process.role == "worker" and process.sockets]
        if not workers:
            return
        worker = workers[planned.number % len(workers)]
        seconds = 0.5 + 2.3 * planned.strength  # a new run waits 3 s for what an earlier one has sent
        self.world.tell(worker, f"has sent what the servers handle only in {seconds:.1f} s")
        self.trouble("hang")
        for socket in worker.sockets:
            socket.hold(seconds)

    def crowd(self, planned: Disturbance) -> None:
        """The driver is killed in a batch, and others write more messages than a search reads before the bookmark.

        While it commits, they write before it moves its bookmarks, and Spark does not log the commit.
        """
        app = self.app
        if app is None or not app.alive:
            return
        commits = app.jvm.state == "commits the writes"
        if commits:
            kill = replace(planned, kind="kill driver")
            self._at_state.setdefault("driver writes the commit log", []).append((1, kill))
        else:
            app.kill()
        self._send_foreign(self._topic(planned), planned.number, 90)

    def rotate_token(self, planned: Disturbance) -> None:
        times = 6 + planned.number % 3  # brokers accept the last six
        self.world.tell("master", f"makes {times} new visit tokens")
        self.tubemq.rotate_visit_token(times)

    def burst(self, planned: Disturbance) -> None:
        topic = FROM if self.is_copy else self._topic(planned)
        self._send_foreign(topic, planned.number, 10 + int(planned.strength * 30))

    def change_options(self, planned: Disturbance) -> None:
        """The operator restarts the query with other options, or loses it and does so."""
        names = ("tubemq.producer.maxinflight", "tubemq.producer.maxinflightbytes", "tubemq.connections.shared")
        name = names[planned.number % 3]
        values = {
            names[0]: ("1", "4", "1000"),
            names[1]: ("200", "5000", "1000000"),
            names[2]: ("true", "false", "true"),
        }
        self.options[name] = values[name][planned.number // 3 % 3]
        if "effectivelyonce" not in self.options and not self.packed and planned.number % 2:
            self.options["stamprows"] = "true"
        self._restart(planned, f"changes {name} to {self.options[name]}")

    def switch_on(self, planned: Disturbance) -> None:
        """The operator restarts the query with effectivelyOnce, which it did not have before."""
        if "effectivelyonce" in self.options or self.packed:
            return
        self.options["effectivelyonce"] = "true"
        self._restart(planned, "switches effectivelyOnce on")

    def _restart(self, planned: Disturbance, what: str) -> None:
        self.world.tell("operator", what)
        if planned.strength < 0.5:
            self.kill_driver(planned)
        else:
            self.stop_query(planned)

    def change_tasks(self, planned: Disturbance) -> None:
        """The query is restarted with another number of tasks, which an unfinished batch then has as well."""
        if self.is_copy or self.app is None or not self.app.alive:
            return
        batch = self.checkpoint.committed
        self.trouble("tasks")
        self.app.kill()
        for number in range(batch, self.setting.extra["batches"]):
            self.tasks_of[number] = 1 + planned.number % 4
        self.writing.unwant(("batch", batch))
        self.world.tell("operator", f"restarts the query with {1 + planned.number % 4} tasks")

    def write_batch(self, planned: Disturbance) -> None:
        """Somebody writes a batch to the same topics."""
        self.writes.append(self.world.start("writer", self._write_batch, planned))

    def _write_batch(self, planned: Disturbance) -> None:
        world = self.world
        world.numbers["batch write"] += 1
        number = world.numbers["batch write"]
        app = Application(world, f"batch{number}", self.setting.unrest, max_failures=1 + planned.number % 2 * 3)
        raw = self.raw()
        for name in ("effectivelyonce", "effectivelyonceuncertain", "effectivelyoncemaxoffsets", "checkpointlocation"):
            raw.pop(name, None)
        columns = schema([dict.fromkeys(self.setting.extra["columns"])])
        origin = "write", number
        tasks = self._rows_of("w", number, self.setting.extra["tasks"])
        if self.setting.extra["what"] == "many topics":
            tasks = [[{**row, "topic": self.all_topics[0]} for row in rows] for rows in tasks]
        for task, rows in enumerate(tasks):
            self.writing.want(origin, task, rows, raw.get("topic"))
        world.tell(f"batch{number}", f"writes {sum(map(len, tasks))} rows")
        call = app.jvm.start("batch", self._run_write, app, raw, columns, origin, tasks)
        call.wait()
        error = call.error.cause if isinstance(call.error, StageError) else call.error
        if error is None:
            self.writing.committed(app.name, origin, tasks, call.result())
        elif isinstance(error, (TubeMQError, Killed)):
            self.guarded(self.writing.error_true, origin, str(error))
            self._explain(f"batch write {number}", error)
        else:
            raise error
        app.end()

    def _run_write(
        self, app: Application, raw: Mapping[str, str], columns: Any, origin: Origin, tasks: Sequence[Sequence[Cells]]
    ) -> list[Written]:
        def plan() -> bytes:
            return pickle.dumps(TubeMQDataSource(dict(raw)).writer(columns, False))

        def write(task: int, rows: Sequence[Cells], writer: bytes) -> Written:
            running = self.world.running
            assert running is not None
            self._begin_attempt(app.name, app.name, origin, task, running.context, rows, raw)
            running.process.state = "writes"
            written: Written = pickle.loads(
                pickle.dumps(pickle.loads(writer).write(self._watched(_feed(rows, columns), rows)))
            )
            return written

        def commit(writer: bytes, written: list[Any]) -> None:
            pickle.loads(writer).commit(written)

        writer = app.call("write planner", plan)
        functions = [partial(write, task, rows, writer) for task, rows in enumerate(tasks)]
        written = app.run_stage("write a batch", functions)
        app.call("write committer", commit, writer, list(written))
        return written

    KINDS: ClassVar[dict[str, Callable[[WritingSchedule, Disturbance], None]]] = {
        **SERVER_KINDS,
        "crash broker": crash_broker,
        "stop broker": stop_broker,
        "switch master": switch_master,
        "stop master": stop_master,
        "empty disk": empty_disk,
        "slow broker": slow_broker,
        "kill driver": kill_driver,
        "kill worker": kill_worker,
        "stop query": stop_query,
        "flush": flush,
        "retention": expire,
        "enlarge topic": enlarge_topic,
        "close topic": close_topic,
        "rotate token": rotate_token,
        "burst": burst,
        "crowd": crowd,
        "hold requests": hold_requests,
        "change options": change_options,
        "switch on": switch_on,
        "change tasks": change_tasks,
        "batch write": write_batch,
    }


def _columns(r: random.Random, what: str) -> tuple[str, ...]:
    if what == "copy":
        return ()
    columns = [name for name, chance in (("key", 0.7), ("attributes", 0.4)) if r.random() < chance]
    if r.random() < 0.3:
        columns += ["broker_id", "partition"]
    return tuple(columns)


def _feed(rows: Sequence[Cells], columns: Any) -> Iterator[pa.RecordBatch]:
    world = the_world()
    for batch in batches(rows, columns, 3):
        if pause := world.decide("slow write", world.unrest.slow_task, lambda r: r.random() ** 3):
            world.sleep(10 * pause)
        yield batch


def _task_of(body: bytes) -> bytes:
    return body.split(b"/t")[1].split(b"/")[0]


__all__ = ["WritingSchedule"]
