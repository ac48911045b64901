# SPDX-License-Identifier: Apache-2.0
"""Writing without disturbances: a stream with its operator, and what the promises ask of it."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar
from unittest import mock

from tests.simulation.connector import FOLDER_FAILS, Row, RowSource, TubeMQSink, TubeMQSource
from tests.simulation.operated import (
    ELAPSED,
    LONG,
    TOPIC_LIMIT,
    OperatedSchedule,
    Possible,
    let_messages_be_long,
    some_options,
)
from tests.simulation.promises import UNIT, BrokenError, granted_by
from tests.simulation.schedule import Disturbance, Moment, Outcome, Setting, some, turn_knobs
from tests.simulation.servers import DELETED, Message
from tests.simulation.spark import Application, Checkpoint, StreamQuery, TwoRunsError
from tests.simulation.writing_promises import Writing
from tests.simulation.written import Attempt, Origin, Plan
from tests.without_spark.sink import Cells
from tubemq_spark.client.cluster import producer_session
from tubemq_spark.client.cluster.session_pool import SESSIONS
from tubemq_spark.client.producer.send_queue import DEFAULT_LIMITS
from tubemq_spark.compression import CODECS
from tubemq_spark.errors import (
    ConfigError,
    DataLossError,
    FencedError,
    PartitionOccupiedError,
    ServerError,
    TubeMQError,
)
from tubemq_spark.protocol.constants import MAX_TOPICS
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.sink.commit import Written
from tubemq_spark.testing import request_checks

QUERY_ID = "00000000-0000-4000-8000-000000000001"
DEAD, FROM = "dead", "s"
_MOST_TOPICS = "testing.request_checks", "_MAX_TOPICS"  # of a session, for the master and then also for clients
_HORIZONS = {0.0: 7.0, 1.0: 8.0, 2.0: 10.0, 15.0: 40.0, 70.0: 150.0}  # seconds, by the interval of the trigger
_MOST_THREADS = 12  # of a process: a task, the heartbeats, and a connect to each server in the background
_MOST_SOCKETS = 9  # of a process: two for each server, and those that are being closed

# Tunables of the product, and smaller values.
KNOBS = (
    ("client.producer.send_queue", "BATCH", (1, 2, 10)),
    ("client.producer.send_queue", "_BATCH_BYTES", (40,)),
    ("client.producer.send_queue", "_STEP", (2, 10)),
    ("client.producer.send_queue", "_SEARCHED", (1,)),
    ("sink.task_writer", "_SLICE", (1, 2)),
    ("sink.inlong.packs", "_MAX_OPEN", (1, 2)),
)

OPTIONS: Possible = (
    (1.0, "checkpointlocation", ("/checkpoints/writer",)),
    (0.5, "tubemq.producer.maxinflight", ("1", "1", "4", "1000")),
    (0.2, "tubemq.producer.maxinflightbytes", ("200", "5000")),
    (0.5, "tubemq.rpc.timeoutms", ("400", "1000", "2000")),
    (1.0, ELAPSED, ("5000", "20000", "60000")),
    (0.2, "tubemq.connections.shared", ("false",)),
    (0.15, "compression", tuple(CODECS)),
)
ONCE_OPTIONS: Possible = (
    (1.0, "effectivelyonce", ("true",)),
    (0.1, "effectivelyonceuncertain", ("sendagain",)),
    (0.3, "effectivelyoncemaxoffsets", ("1", "10")),
)
PACK_OPTIONS: Possible = (
    (1.0, "messageformat", ("inlongmsg",)),
    (1.0, "inlongpackrows", ("2", "5", "100")),
    (0.4, "inlongpackms", ("0", "50")),
    (0.3, "inlongpackbytes", ("60",)),
)
PROTOBUF_OPTIONS: Possible = (
    (1.0, "inlongpackformat", ("protobuf",)),
    (0.6, "inlongpackcompression", ("gzip", "snappy")),
)
CHANGES: Possible = (  # of options, from one run to the next
    (1.0, "tubemq.producer.maxinflight", ("1", "4", "1000")),
    (1.0, "tubemq.producer.maxinflightbytes", ("200", "5000", "1000000")),
    (1.0, "tubemq.connections.shared", ("true", "false", "true")),
)
_LONG_RETRIES = "60000"  # of `ELAPSED`: longer than a topic is closed
_TOKENS: tuple[dict[str, Any], ...] = ({}, {"start_visit_token_check": True, "visit_token_check_in_valid_time": 0.0})
_SENDS, _COMMITS = "worker writes: send_message", "driver commits the writes"
_IN_A_BATCH = {  # mostly then
    "crowd": (_SENDS, _COMMITS),
    **dict.fromkeys(("hold requests", "change tasks", "hang server", "crash broker", "lose reply"), (_SENDS,)),
}
_LATE = frozenset({"repeated", "speculation", "zombie", "clock", "hang", "crash", "network"})


class OperatedWriting(OperatedSchedule):
    """One stream of numbered rows, or of the messages of another topic, to one, two or ever new topics."""

    KINDS = (
        *OperatedSchedule.KINDS,
        *("slow broker", "change options", "switch on", "change tasks", "batch write"),
        *("rotate token", "crowd", "hold requests", "full broker", "lose reply", "second driver"),
    )
    EXPLANATIONS: ClassVar[Mapping[type[BaseException], frozenset[str]]] = {
        DataLossError: frozenset({"retention", "crash", "deleted"}),
        # A broker that is slow may not take the mark of an attempt, which finds that of the one before it.
        FencedError: frozenset(
            {"repeated", "speculation", "zombie", "clock", "crash", "retention", "slow", "two runs"}
        ),
        PartitionOccupiedError: _LATE,
        ConfigError: frozenset({"closed", "tasks", "crash", "deleted", "switched on"}),
        ServerError: frozenset({"closed", "full"}),
    }
    CLIENTS = "producers"
    CATCH_UP = 900.0
    receipts: str | None = None  # their folder

    def make_setting(self, r: random.Random) -> Setting:
        setting = super().make_setting(r)
        setting.interval = r.choice((0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 15.0, 70.0))
        horizon, spread = _HORIZONS[setting.interval], 0.8
        what = r.choice(("numbers",) * 11 + ("copy", "many topics"))
        once = what == "copy" or (r.random() < 0.5 and what != "many topics")
        topics = r.choice((("t",), ("t",), ("t", "u"))) if what != "copy" else ("t",)
        by_column = what == "many topics" or r.random() < 0.25
        setting.options = options = self._options(r, what, once=once)
        if not by_column:
            topics = topics[:1]
            options["topic"] = "t"
        elif once:
            options["effectivelyoncetopics"] = ",".join(topics)
        packed = "inlongpackrows" in options
        columns = _columns(r, what)
        columns += ("topic",) if by_column or (what == "numbers" and r.random() < 0.2) else ()  # the option wins
        columns += ("inlong_group", "inlong_stream") if packed else ()
        style = r.choice(("mixed", "mixed", "hot", "plain"))
        sizes: tuple[int, ...] = r.choice(((0, 1, 3), (0, 1, 3), (1, 3, 6), (2, 8)))
        slow = r.choice((0.05, 0.2, 0.5)) if r.random() < 0.15 else 0.0
        first, repeated = r.choice((0, 0, 3, 20)), some(r, 0.3, 0.2, 0.8)
        if what == "numbers" and r.random() < 0.07:  # full queues: each row waits for those before it
            style, sizes, slow, first = "hot", (40,), r.choice((0.1, 0.3, 0.3, 0.4)), 20
            options["tubemq.producer.maxinflight"] = "1"
            options.pop("tubemq.producer.maxinflightbytes", None)
            repeated, setting.rate, spread = r.choice((0.0, 0.5)), 0.1, 0.1
            horizon = max(horizon, 50.0)  # a flush takes many seconds
        setting.horizon, setting.unrest = horizon, replace(setting.unrest, repeated_stage=repeated)
        setting.unrest.bad_folder = some(r, 0.2, 0.02, 0.2)
        count = r.randrange(2, 5) if what != "many topics" else r.randrange(4, 6)
        setting.knobs = turn_knobs(r, KNOBS)
        setting.config = replace(setting.config, **r.choice(_TOKENS))
        if what == "many topics":
            setting.knobs = (*setting.knobs, (*_MOST_TOPICS, 10))
        margin = 2 * setting.config.mem_cache_msg_count + 2  # no more than the brokers keep in memory, in two blocks
        setting.knobs = (*setting.knobs, ("client.consumer.partition_scan", "MARGIN", margin))
        setting.extra = {
            **setting.extra,
            "what": what,
            "topics": topics,
            "columns": columns,
            "style": style,
            "batches": count,
            "times": [0.0, *sorted(spread * horizon * r.random() for _ in range(count - 1))],
            "slow": slow,  # seconds that each message takes
            "tasks": r.choice((1, 1, 1, 2)),
            "sizes": sizes,
            "bad": r.choice((0.0, 0.1)) if "failedrows" in options else 0.0,
            "shuffled": r.random() < 0.15,
            "equal": r.random() < 0.1,
            "receipts": r.random() < 0.15 and not packed,
            "first": first,
            "host": "driver host" if r.random() < 0.5 else "",  # else one for each run
            "feed": sorted((r.random() * horizon, r.randrange(8), r.choice((1, 3, 10))) for _ in range(6)),
            "behind_nat": r.random() < 0.15,
        }
        if once and r.random() < 0.2:
            _let_brokers_be_silent(setting)
        # A search for rows that are stored reads the brokers' memory, which leaves out long ones.
        if not once and "switch on" not in setting.kinds and r.random() < 0.16:
            let_messages_be_long(r, setting, (TOPIC_LIMIT,))
        return setting

    def _options(self, r: random.Random, what: str, *, once: bool) -> dict[str, str]:
        options = some_options(r, OPTIONS)
        if once:
            options |= some_options(r, ONCE_OPTIONS)
        elif r.random() < 0.3:
            options["stamprows"] = "true"
        elif what == "numbers" and r.random() < 0.3:
            options |= some_options(r, PACK_OPTIONS)
            options |= some_options(r, PROTOBUF_OPTIONS) if r.random() < 0.5 else {}
        if what == "numbers" and r.random() < 0.25:
            options["failedrows"] = r.choice(("drop", "deadletter"))
            if options["failedrows"] == "deadletter":
                options["deadlettertopic"] = DEAD
        return options

    # -- the rows -------------------------------------------------------------------------------------------------

    def rows(self, batch: int) -> list[list[Cells]]:
        """Return the rows of the tasks of a batch, the same ones each time."""
        return self._rows_of("b", batch, self.tasks_of.get(batch, self.setting.extra["tasks"]))

    def _rows_of(self, kind: str, batch: int, tasks: int) -> list[list[Cells]]:
        extra = self.setting.extra
        r = random.Random(f"rows {self.seed} {kind} {batch}")
        made: list[Cells] = []
        lengths = (0, 0, 3, LONG if "long" in extra else 40)
        for task in range(extra["tasks"]):
            for number in range(r.choice(extra["sizes"])):
                body = f"{kind}{batch}/t{task}/r{number};" + "x" * r.choice(lengths) + "."
                made.append(self._cells(r, batch, body.encode()))
        if extra["equal"]:
            made = [r.choice(made) for _ in made]
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
            body = body.replace(b"x" * LONG, b"")  # one dead letter has it
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
        topics: tuple[str, ...] = self.setting.extra["topics"]
        return topics

    def in_order(self, batch: int, task: int, rows: Sequence[Cells]) -> list[Cells]:
        """Return the rows of a task in the order in which an attempt gets them."""
        ordered = list(rows)
        if self.shuffled:
            random.Random(self.world.hash("order", batch, task, self.world.count("order"))).shuffle(ordered)
        return ordered

    # -- the actors -----------------------------------------------------------------------------------------------

    def play(self) -> Outcome:
        limits = [value for module, name, value in self.setting.knobs if (module, name) == _MOST_TOPICS]
        try:
            with mock.patch.object(producer_session, "MAX_TOPICS", limits[0] if limits else MAX_TOPICS):
                return super().play()
        finally:
            if self.receipts is not None:
                shutil.rmtree(self.receipts, ignore_errors=True)

    def begin(self) -> None:
        extra, setting = self.setting.extra, self.setting
        self.options = dict(setting.options)
        self.failed_rows = self.options.get("failedrows", "fail")
        self.packed = "inlongpackrows" in self.options
        self.shuffled: bool = extra["shuffled"]
        self.dead_topic = DEAD
        self.is_copy = extra["what"] == "copy"
        if extra["receipts"]:
            self.receipts = tempfile.mkdtemp(prefix="receipts-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
            self.options["receipts"] = self.receipts
        self._options_of_run: dict[str, Mapping[str, str]] = {}
        self.tasks_of: dict[int, int] = {}  # of batches that have another number of tasks than usual
        self.host = extra.get("host", "")
        self.topics = extra["topics"]
        if extra["what"] == "many topics":
            self.topics = tuple(topic for batch in range(extra["batches"]) for topic in self.topics_of_batch(batch))
        self.fed_topics = (FROM,) if self.is_copy else self.topics[:2]
        self.raised_at = {}
        for topic in (*self.topics, DEAD, *((FROM,) if self.is_copy else ())):
            self.create_topic(topic)
        self.checkpoint = Checkpoint("/checkpoints/writer", QUERY_ID)
        self.writing = Writing(self, QUERY_ID)
        self._watch_storing()
        for topic in self.topics[:2]:
            self.send(topic, 0, extra["first"])
        if extra["slow"]:
            for broker_id in self.tubemq.broker_ids:
                self._hang_again(f"broker {broker_id}", extra["slow"], setting.horizon)
        fed = self.fed_topics
        self.start_actors((at, fed[number % len(fed)], number, count) for at, number, count in extra["feed"])

    def _watch_storing(self) -> None:
        stored, truth = self.truth.stored, self.truth

        def watched(broker_id: int, request: Any, reply: Any) -> None:
            stored(broker_id, request, reply)
            partition = Partition(broker_id, request.topicName.strip(), request.partitionId)
            message: Message = truth.messages[partition.store][-1]
            if partition.topic in self.topics or partition.topic == DEAD:
                self.guarded(self.writing.stored, message, self.world.serving)

        truth.stored = watched

    def _hang_again(self, server: str, pause: float, until: float) -> None:
        hangs, now = self.network.hangs, self.world.now
        if now < until and not self.is_calm:
            hangs[server] = max(hangs.get(server, 0.0), now + pause)
            self.world.at(pause + 0.001, self._hang_again, server, pause, until)

    def message(self, topic: str, number: int) -> tuple[bytes, str | None]:
        body = b"f%d" % number + self.filling(topic, number)
        self.writing.foreign.add((topic, body))
        return body, None

    def new_query(self, app: Application) -> StreamQuery:
        extra = self.setting.extra
        source: Any = RowSource(self, extra["times"])
        if self.is_copy:
            options = {"startingoffsets": "earliest", "failondataloss": "false"}
            source = TubeMQSource(self.raw(**{"tubemq.group": "copiers", "subscribe": FROM, **options}))
        sink = TubeMQSink(self.raw(**self.options), extra["columns"], self)
        interval = self.setting.interval if not self.is_calm else min(1.0, self.setting.interval)
        query = StreamQuery(app, self.checkpoint, source, sink, interval=interval)
        self._options_of_run[query.run_id] = dict(self.options)  # another run may begin with others beside it
        return query

    def cells_of(self, row: Any) -> Cells:
        if not isinstance(row, Row):
            cells: Cells = row
            return cells
        return {"value": row.body} if "topic" in self.options else {"value": row.body, "topic": "t"}

    def planned(self, query: StreamQuery, batch: int) -> None:
        topics = {self.options["topic"]} if "topic" in self.options else set(self.topics)
        stores = [self.store_of(partition) for topic in topics for partition in self.partitions_of(topic)]
        could_mark = any(
            store is not None
            and store.max_offset - store.min_offset >= UNIT * max(32, min(1024, store.max_offset // UNIT // 2))
            for store in stores
        )
        if not self.is_copy:
            for task, rows in enumerate(self.rows(batch)):
                self.writing.want(("batch", batch), task, rows, self.options.get("topic"))
        self.writing.planned(query.run_id, ("batch", batch), Plan(self.world.now, could_mark))

    def started(self, query: StreamQuery, batch: int, task: int, rows: Sequence[Cells]) -> None:
        if self.is_copy:
            self.writing.want(("batch", batch), task, rows, self.options.get("topic"))
        self._begin_attempt(query.run_id, ("batch", batch), task, rows, self._options_of_run[query.run_id])

    def _begin_attempt(
        self, run: str, origin: Origin, task: int, rows: Sequence[Cells], options: Mapping[str, str]
    ) -> None:
        running = self.world.running
        assert running is not None
        once = options.get("effectivelyonce") == "true"
        attempt = Attempt(
            running.process,
            run,
            origin,
            task,
            running.context.stage,
            running.context.attempt,
            self.world.now,
            rows,
            stamped=once or options.get("stamprows") == "true",
            once=once,
            send_again=options.get("effectivelyonceuncertain") == "sendagain",
            most_bytes=int(options.get("tubemq.producer.maxinflightbytes", DEFAULT_LIMITS.size)),
        )
        self.writing.begun(attempt)
        if attempt.is_of_repeated_stage:
            self.trouble("repeated")
        if attempt.is_speculative:
            self.trouble("speculation")

    def asks_for_more(self, given: Sequence[Cells]) -> None:
        running = self.world.running
        assert running is not None
        self.guarded(self.writing.bounded_memory, running.process, given)

    def attempt_failed(self, batch: int, error: TubeMQError) -> None:
        self.guarded(self.writing.error_true, ("batch", batch), str(error))
        # Others may rightly end an attempt, and the next one succeeds; a refusal has a cause.
        if isinstance(error, ServerError):
            self.explain(f"a task of batch {batch}", error)

    @granted_by("limits.md", "the task of the next run may take copies for other rows, and fails")
    def _copies_are_taken_for_other_rows(self, batch: int) -> bool:
        attempts = self.writing.attempts_of(("batch", batch))
        return any(one.is_speculative for one in attempts) or self.writing.stored_once.is_unmarked(attempts)

    def explain(self, who: str, error: BaseException) -> None:
        is_long = self.options.get(ELAPSED) == _LONG_RETRIES
        if isinstance(error, ServerError) and is_long and not self.broker_failed_since(self.world.now):
            self.is_unexplained(who, error)
        elif "rotate token" in self.came and "was not acknowledged within" in str(error):
            pass  # no master had a new one
        elif "enlarge topic" in self.came and "not every entry" in str(error):
            return  # a store got a second partition after the plan, and brokers flush less often than tasks try again
        elif "since the driver planned the batch" in str(error) and "enlarge topic" in self.came:
            pass  # rows name a partition that is too new
        elif FOLDER_FAILS in str(error) or (isinstance(error, TwoRunsError) and "second driver" in self.came):
            pass
        elif ("knows no topic" in str(error) or "has no topic" in str(error)) and "master" in self.recent_troubles():
            pass  # brokers register at a new master when they can
        else:
            super().explain(who, error)

    @property
    def _has_late_requests(self) -> bool:
        weather, hangs = self.setting.weather, self.setting.extra["slow"] or "hang" in self.recent_troubles()
        return bool(weather.late or (weather.late_after_hang and hangs))

    def committed(self, query: StreamQuery, batch: int, tasks: list[list[Cells]], written: list[Written]) -> None:
        self.batches += 1
        if self.is_copy:
            self.writing.wanted(("batch", batch), tasks, self.options.get("topic"))
        self.writing.committed(query.run_id, ("batch", batch), tasks, written)
        self.guarded(self.nothing_left)

    def judge(self, query: StreamQuery, error: BaseException) -> None:
        batch = query.batch
        self.guarded(self.writing.error_true, ("batch", batch), str(error))
        is_second = "two runs" in self.recent_troubles()
        if is_second and "of effectivelyOnce" in str(error):
            return  # the other run has committed more batches meanwhile
        if isinstance(error, DataLossError) or "effectivelyOnceUncertain" in str(error):
            self.options["effectivelyonceuncertain"] = "sendagain"  # as the error advises
        if is_second and "two runs at once" in str(error):
            return  # each replaced the file of the other, and one commit is gone
        if "effectivelyOnceMaxOffsets" in str(error):
            self.options.pop("effectivelyoncemaxoffsets", None)  # as the error advises
            return
        if "not among its rows" in str(error) and self._copies_are_taken_for_other_rows(batch):
            return
        if isinstance(error, FencedError) and (self.has_other_attempts or self._has_late_requests):
            return  # the newer attempt of a copy may fence this one before it writes, a late move of a mark as well
        self.explain("the query", error)

    # -- what the promises ask ------------------------------------------------------------------------------------

    @property
    def partitions_changed(self) -> bool:
        """True if a key may have got another partition."""
        words = {"crash", "stop", "master", "closed"}
        return "enlarge topic" in self.came or any(what in words for _, what in self.troubles)

    def broker_failed_since(self, at: float) -> bool:
        """Return True if a broker may not have answered for two seconds since then."""
        weather = self.setting.weather
        late_if_slow = self.setting.extra["slow"] and weather.late_after_hang
        if weather.lost or ((weather.late or weather.late_reply or late_if_slow) and weather.longest >= 2.0):
            return True
        words = {"crash", "stop", "hang", "network", "deleted", "slow"}
        return any(end >= at - 10.0 and what in words for end, what in self.troubles)

    # -- the end --------------------------------------------------------------------------------------------------

    def at_end(self) -> None:
        self.writing.at_end()
        if self.is_copy:
            self.guarded(self.copied_once)

    def has_all(self) -> bool:
        if not self.is_copy:
            return self.checkpoint.committed >= len(self.setting.extra["times"])
        if not self.is_waiting():
            return False
        there = {entry.body for entry in self.writing.entries.values() if entry.copies}
        left = [m for m in self.truth.of_topic(FROM) if m.lost is None and m.body not in there]
        return all(map(self._is_anew, left))

    def copied_once(self) -> None:
        """Each message of the topic that is copied is in the other topic, and once, as `stored_once` says."""
        for message in self.truth.of_topic(FROM):
            entry = self.writing.entries.get(("t", message.body))
            if message.lost is None and (entry is None or not entry.copies) and not self._is_anew(message):
                raise BrokenError("rows_stored", f"{message} was not copied")
            if entry is not None and len(entry.rows) > 1:
                raise BrokenError("stored_once", f"{message} was read in {', '.join(map(str, entry.rows))}")

    def _is_anew(self, message: Message) -> bool:
        """Return True if the topic was created anew before, or if a lost message had its place."""
        losses = (loss for loss in self.truth.losses if loss.store == message.partition.store)
        return any(
            loss.at <= message.at and (loss.how == DELETED or loss.first <= message.position < loss.end)
            for loss in losses
        )

    def nothing_left(self) -> None:
        """A process holds no more than one task needs of threads, connections, topics, registrations, however many ran.

        The master refuses all requests of a session that names more topics than it takes, also those of other tasks.
        """
        producers = self.tubemq.servers.masters[0].service._producers
        for process in self.world.processes:
            if process.name == "system":  # the model's own actors
                continue
            sessions = process.runtime._values.get(SESSIONS)
            for shared in sessions._entries.values() if sessions is not None else ():
                topics = len(shared.session._topics)
                if topics > request_checks._MAX_TOPICS:
                    raise BrokenError(
                        "nothing_left",
                        f"a session of {process} names {topics} topics, of which the master takes "
                        f"{request_checks._MAX_TOPICS}",
                    )
            used = len(sessions._entries) if sessions is not None else 0
            registered = sum(f"_{1000 + process.number}_" in one for one in producers._heartbeats._deadlines)
            if registered > used + 1 and not self.has_weather and not self.troubles:  # one may be closing just now
                raise BrokenError("nothing_left", f"{process} has {registered} registrations, and uses {used}")
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
            if planned.kind == "hang server" and planned.number // 2 % 2:
                planned = replace(planned, strength=0.7 + 0.3 * planned.strength)  # longer than look-ups wait
            return replace(planned, moment=Moment("state", (state, r.choice((1, 1, 2, 3))), after))
        return planned


def _let_brokers_be_silent(setting: Setting) -> None:
    """Let brokers hang for longer than a look-up waits, and then handle what was sent before behind newer requests."""
    setting.kinds += ("hang server",) * len(setting.kinds)
    setting.weather = replace(setting.weather, late_after_hang=0.9, longest=8.0)
    setting.horizon = max(setting.horizon, 60.0)
    setting.options = {**setting.options, "tubemq.rpc.timeoutms": "1000", ELAPSED: _LONG_RETRIES}


def _columns(r: random.Random, what: str) -> tuple[str, ...]:
    if what == "copy":
        return ()
    columns = [name for name, chance in (("key", 0.7), ("attributes", 0.4)) if r.random() < chance]
    if r.random() < 0.3:
        columns += ["broker_id", "partition"]
    return tuple(columns)


def _task_of(body: bytes) -> bytes:
    return body.split(b"/t")[1].split(b"/")[0]
