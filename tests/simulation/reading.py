# SPDX-License-Identifier: Apache-2.0
"""Reading without disturbances: a stream with its operator, and what the promises ask of it."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from tests.simulation.connector import FileSink, Row, TubeMQSource
from tests.simulation.group_promises import Fencing, Group
from tests.simulation.operated import (
    ELAPSED,
    RETRY_FOR,
    TOPIC_LIMIT,
    OperatedSchedule,
    Possible,
    let_messages_be_long,
    some_options,
)
from tests.simulation.promises import UNIT, BrokenError, granted_by
from tests.simulation.reading_promises import Reading, Report
from tests.simulation.schedule import Disturbance, Setting, turn_knobs
from tests.simulation.servers import DAMAGED, RETENTION, StoreKey
from tests.simulation.spark import Application, Checkpoint, StreamQuery
from tests.simulation.world import Process
from tubemq_spark.client.consumer.working_group import stream_group
from tubemq_spark.errors import (
    ConfigError,
    DataLossError,
    FencedError,
    PartitionOccupiedError,
    ServerError,
    TimestampMissingError,
    TransportError,
)
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.testing.broker.group_offsets import GroupOffsets, Key

GROUP = "readers"
_TIMEOUT = "tubemq.claim.timeoutms"
LIMITS = ("maxoffsetspertrigger", "maxbytespertrigger")
_QUIET = ("waits for messages", "writes the files of a batch")

# Tunables of the product, and smaller values.
KNOBS: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    ("source.input_partition", "ROWS", (1, 3)),
    ("source.input_partition", "GATHERED", (20,)),
    ("client.consumer.partition_reader", "DEPTH", (1, 2)),
    ("client.consumer.conversations", "AT_ONCE", (1,)),
    ("source.truncation_check", "_STORES_AT_ONCE", (1,)),
    ("source.range_planner", "ENTRIES_PER_READ", (2,)),
    ("source.range_planner", "_MAX_SHARED_TASKS", (1,)),
    ("protocol.range_state", "_FULL_REPLY", (3,)),
)

TOKENS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {},
    {"start_visit_token_check": True, "visit_token_check_in_valid_time": 0.0},
)

_HORIZONS = {0.0: 4.0, 1.0: 7.0, 2.0: 10.0, 15.0: 50.0, 60.0: 130.0}  # seconds, by the interval of the trigger

OPTIONS: Possible = (
    (1.0, "startingoffsets", ("earliest", "earliest", "latest", "group")),
    (1.0, _TIMEOUT, ("5000", "45000")),
    (1.0, "headsintervalms", ("0", "100", "1000")),
    (0.08, "startingtimestamp", ("1764000000300", "1764000002000")),  # the world begins at 1764000000
    (0.3, "maxoffsetspertrigger", ("3", "5", "9")),
    (0.15, "maxbytespertrigger", ("60", "500")),
    (0.1, "minoffsetspertrigger", ("3",)),
    (1.0, "maxtriggerdelay", ("4s",)),
    (0.3, "failondataloss", ("false",)),
    (0.2, "maxpartitionspertask", ("3",)),
    (0.3, "tubemq.connections.shared", ("false",)),
    (0.3, "tubemq.rpc.timeoutms", ("500", "2000")),
    (0.1, "commitoffsets", ("false",)),
    (0.15, "filters", ("AaAa", "AaAa,other")),
    (0.3, "metadataintervalms", ("1000",)),
    (0.2, ELAPSED, ("5000",)),
)


class OperatedReading(OperatedSchedule):
    """One stream in group `readers`, from one or two topics to files."""

    KINDS = (
        *OperatedSchedule.KINDS,
        *("topic anew", "move group", "leave out topic", "rotate token"),
        *("start elsewhere", "late fetch", "rival", "batch read", "java consumer", "java producer"),
    )
    EXPLANATIONS: ClassVar[Mapping[type[BaseException], frozenset[str]]] = {
        PartitionOccupiedError: frozenset({"stranger", "clock"}),
        ConfigError: frozenset({"deleted", "closed", "removed", "master", "crash", "stop"}),
    }
    CLIENTS = "consumers"
    CATCH_UP = 160 + 4 * RETRY_FOR

    def make_setting(self, r: random.Random) -> Setting:
        setting = super().make_setting(r)
        setting.interval = r.choice((0.0, 0.0, 0.0, 1.0, 1.0, 2.0, 15.0, 60.0))
        setting.horizon = horizon = _HORIZONS[setting.interval]
        setting.config = config = replace(setting.config, **r.choice(TOKENS))
        setting.options = options = some_options(r, OPTIONS)
        damaged = r.choice((0.0, 0.0, 0.0, 0.1))
        if damaged:
            options["corruptmessages"] = "skip"
        topics = r.choice((("t",), ("t",), ("t", "u")))
        feed = [
            (r.random() * horizon, r.choice(topics), r.randrange(8), r.choice((1, 1, 2, 5)))
            for _ in range(r.randrange(2, 7))
        ]
        first = [(-1.0, topic, number, r.choice((0, 1, 3, 8))) for topic in topics for number in range(2)]
        knobs = KNOBS
        if slowly_read := r.random() < 0.08:  # rows reach Spark one by one, and other attempts come meanwhile
            knobs = tuple((module, name, values * 4) for module, name, values in KNOBS if name not in ("ROWS", "DEPTH"))
            slowly = ("source.input_partition", "ROWS", (1,)), ("client.consumer.partition_reader", "DEPTH", (1,))
            knobs = (*knobs, *slowly * 9)
            setting.config = replace(config, transfer_size=300)
            setting.unrest = replace(setting.unrest, slow_task=0.4, speculation=0.5)
            first = [(at, topic, number, 8 + count) for at, topic, number, count in first]
        # More than the brokers keep in memory, in two blocks.
        unflushed = ("source.store_check", "UNFLUSHED_AT_MOST", (UNIT * 2 * config.mem_cache_msg_count + 2 * UNIT,))
        setting.knobs = turn_knobs(r, (*knobs, unflushed, unflushed))
        names = r.choices(("subscribe", "subscribePattern", "assign"), (6, 2, 1))[0]
        if names == "subscribePattern":
            setting.kinds = (*setting.kinds, "new topic")
        setting.extra = {
            **setting.extra,
            "names": names,
            "topics": topics,
            "feed": sorted(feed),
            "first": first,
            "scans": r.choice((1, 1, 1, 2)),
            "available_now": r.random() < 0.2,
            "damaged": damaged,
            "behind_nat": r.random() < 0.15,
        }
        if slowly_read and r.random() < 0.5:  # tasks go on behind a loss
            options["failondataloss"] = "false"
            setting.kinds = (*setting.kinds, "burst", "burst")
        if r.random() < 0.12:
            let_messages_be_long(r, setting, (TOPIC_LIMIT, None))
        return setting

    # -- the actors -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        extra, world = self.setting.extra, self.world
        self.topics = self.fed_topics = self.subscribed = extra["topics"]
        self.options = dict(self.setting.options)
        self.logged_at: dict[float, Mapping[Partition, int]] = {}  # where the offset log ended when messages were lost
        self.removed: set[Partition] = set()
        self.left_out: set[str] = set()
        self.moved_tasks: dict[Partition, float] = {}  # when the group of the tasks was moved there last
        self._tolerates_in = -1  # the batch for which the operator has set failOnDataLoss to false
        self._strangers = 0
        self.batch_reports: dict[str, list[Report]] = defaultdict(list)  # that batch reads have logged, by application
        self._slow_fetch_at: dict[str, GroupOffsets] = {}  # servers whose next fetch ends late, without its connection
        self.raised_at = {}
        self.has_times = "startingtimestamp" in self.options
        for topic in self.topics:
            self.create_topic(topic)
        # Some of their partitions: others share a store with them, or come later.
        self.assigned = {
            one for topic in self.topics for one in self.partitions_of(topic)[:-1] or self.partitions_of(topic)
        }
        for _, *what in extra["first"]:
            self.send(*what)
        world.reported = self._reported
        world.skipped = self._skipped
        self.checkpoint = Checkpoint("/checkpoints/stream", "query-1")
        self.reading = Reading(self, self.checkpoint)
        self.group = Group(self.reading, GROUP)
        self.fencing = Fencing(self, stream_group(GROUP))
        self._tail_crash: Disturbance | None = None  # that comes when a reader has got messages
        world.delivered = self._delivered
        self.apps: list[Application] = []
        self.start_actors(extra["feed"])

    def message(self, topic: str, number: int) -> tuple[bytes, str | None]:
        body = b"m%d" % number
        if self.world.hash("damaged", number) % 100 < 100 * self.setting.extra["damaged"]:
            body = DAMAGED + body
        # Brokers filter by a hash that AaAa and BBBB have in common.
        types = ("AaAa", "BBBB", "other", "third") if "filters" in self.options else (None,)
        return body + self.filling(topic, number), types[self.world.hash("type", number) % len(types)]

    def new_query(self, app: Application) -> StreamQuery:
        self.apps.append(app)
        if self.is_calm:
            self.subscribed = self.topics
        if 0 <= self._tolerates_in < self.checkpoint.committed and self.world.hash("fails again", app.name) % 2:
            self.options.pop("failondataloss", None)  # what was lost is behind the query
            self._tolerates_in = -1
        self.group.begin()
        self._run_options = dict(self.options)
        source = TubeMQSource(self.raw(), self.setting.extra["scans"])
        interval = self.setting.interval if not self.is_calm else min(2.0, self.setting.interval)
        ends = self.setting.extra["available_now"] and not self.is_calm
        sink = FileSink(self._written)
        return StreamQuery(app, self.checkpoint, source, sink, interval=interval, available_now=ends)

    def pause(self) -> float:
        if self.is_removed:
            return 20.0  # it would only fail again
        return super().pause() + (1.0 if self.setting.extra["available_now"] else 0.0)

    def ended_itself(self, query: StreamQuery) -> None:
        self.check_quiet_group()
        if query.has_read_all:
            self.guarded(self.reading.available_read, query.began)
            if self._is_quiet and self.options.get("commitoffsets") != "false":
                self.guarded(self.group.group_follows)

    def raw(self, **more: str) -> dict[str, str]:
        own = {"tubemq.group": GROUP, **self._subscription(self.subscribed), **self.options, **more}
        return super().raw(**own)

    def _subscription(self, topics: Iterable[str]) -> dict[str, str]:
        names = self.setting.extra["names"]
        if names == "subscribePattern":
            return {"subscribepattern": "[t-z]", "tubemq.admin.address": self.tubemq.web_master}
        if names == "assign":
            assigned = [(one.topic, f"{one.broker_id}:{one.partition_id}") for one in sorted(self.assigned)]
            return {"assign": json.dumps({topic: [name for of, name in assigned if of == topic] for topic in topics})}
        return {"subscribe": ",".join(topics)}

    def _is_named(self, partition: Partition) -> bool:
        return self.setting.extra["names"] != "assign" or partition in self.assigned

    def _written(self, query: StreamQuery, batch: int, scans: list[list[Row]]) -> None:
        self.batches += 1
        self.guarded(self.reading.written, query, batch, scans)

    def _reported(self, process: Process, loss: DataLossError) -> None:
        app = process.name.partition(" ")[0]
        if not app.startswith(("app", "batch")):
            return
        self.world.tell(process, f"logs a loss: {str(loss)[:150]}")
        if app.startswith("app"):
            self.guarded(lambda: self.reading.reported(loss, ended=False))
        else:
            self.batch_reports[app].append(Report(loss, self.world.now))

    def _skipped(self, process: Process, store: StoreKey, first: int, end: int) -> None:
        if process.name.startswith("app"):
            self.world.tell(process, f"skips [{first}, {end}) of {store}, where new messages may be")
            self.reading.skipped.append((store, first, end))

    def _delivered(self, partition: Partition, client_id: str) -> None:
        """A reader has got messages. A crash may take away those behind them."""
        self.guarded(self.fencing.fenced_delivers_nothing, partition, client_id)
        planned, store = self._tail_crash, self.store_of(partition)
        if planned is not None and store is not None and store.committed_offset < store.max_offset:
            self._tail_crash = None
            self.world.at(0.0, self._fire, replace(planned, number=self.tubemq.broker_ids.index(partition.broker_id)))

    def judge(self, query: StreamQuery, error: BaseException) -> None:
        recent = self.recent_troubles()
        if isinstance(error, DataLossError):
            self.guarded(lambda: self.reading.reported(error, ended=True))
            if self._run_options.get("failondataloss") == "false" and self._only_retention:
                self.is_unexplained("the query, which tolerates losses,", error)
            self.options["failondataloss"] = "false"  # as the error advises
            self._tolerates_in = self.checkpoint.committed
        elif isinstance(error, TimestampMissingError):  # of messages of a Java producer
            self.options["startingoffsetsbytimestampstrategy"] = "latest"  # as the error advises
        elif self.is_removed and isinstance(error, (ConfigError, ServerError, TransportError)):
            pass  # until somebody creates the topic anew
        elif (
            isinstance(error, PartitionOccupiedError)
            and not (isinstance(error, FencedError) and self.has_other_attempts)
            and query.batches
            and self._strangers
            and self.claims_stay
            and "enlarge topic" not in self.came  # a rival may take the new partitions first
        ):
            self.breaks(BrokenError("rival_harmless", f"a rival has ended a query that ran: {str(error)[:150]}"))
        elif isinstance(error, PartitionOccupiedError) and len(self.apps) > 1 and self._may_have_another_id:
            pass  # an earlier run has another id, and its claims must expire
        elif (
            isinstance(error, FencedError)
            and self.has_other_attempts
            and ("any more (411" not in str(error) or self.fencing.has_fenced(error))
        ):
            pass  # the attempt that fenced this one may have failed or been killed
        elif "CLIENT_INCONSISTENT_TOPICSET" in str(error) and self.options.get(_TIMEOUT) == "5000":
            pass  # a consumer that was killed is a member for 30 s, with the topics that the query had then
        elif "CLIENT_INCONSISTENT_FILTERSET" in str(error) and "filters" in self.options and "stranger" in recent:
            pass  # a Java consumer of the group has no filters
        elif isinstance(error, FencedError) and "stranger" not in recent and self.options.get(_TIMEOUT) == "45000":
            self.is_unexplained("the query", error)  # the claims of an earlier run expire before that
        elif (
            isinstance(error, TransportError)
            and ELAPSED not in self.options
            and "no master" not in str(error)
            and "long hang" not in recent  # two in a row may last longer than requests are repeated
            and "subscribePattern" not in str(error)  # at the start it is not repeated for long
            and not ("while stores were checked" in str(error) and self.has_weather)  # a check needs all its replies
            and not ("deleted" in recent and "Wrong partition value" in str(error))  # it may have fewer partitions now
        ):
            self.is_unexplained("the query", error)  # nothing lasts as long as requests are repeated
        else:
            self.explain("the query", error)

    @property
    def is_removed(self) -> bool:
        """Return True if a topic does not exist now."""
        return any(topic not in self.tubemq.topics for topic in self.topics)

    @property
    def _may_have_another_id(self) -> bool:
        """Return True if a request of a run before the first batch may hold partitions."""
        return not self.checkpoint.offsets or self.has_weather

    @property
    @granted_by("limits.md", "after half a minute in which the driver cannot reach a broker or stands still")
    def claims_stay(self) -> bool:
        """Return True if no broker can have forgotten claims of its clients."""
        recent = {what for at, what in self.troubles if self.world.now - at < 60.0}
        breaking = {"crash", "stop", "hang", "network", "deleted", "rights", "clock"}
        return not self.has_weather and not recent & breaking

    # -- what the promises ask ------------------------------------------------------------------------------------

    def partitions_of_query(self) -> Iterable[Partition]:
        return [one for topic in self.subscribed for one in self.partitions_of(topic) if self._is_named(one)]

    def group_position(self, group: str, partition: Partition) -> int | None:
        service = self.tubemq.servers.brokers[partition.broker_id].service
        position: int | None = service.offsets.confirmed(Key(group, partition.topic, partition.partition_id))
        return position

    def note_losses(self, how: str) -> None:
        super().note_losses(how)
        self.logged_at[self.world.now] = self.reading.logged
        if how != RETENTION:
            self._excuse_all()

    def _executed(self, request: Any, reply: Any) -> None:
        if request.method == Method.PARTITION_REGISTER:
            self.fencing.watch()
        serving = self.world.serving
        if serving is not None and serving.process.name.startswith(("java", "rival")):
            self._excuse_all()
        slow = self._slow_fetch_at.get(serving.server) if serving is not None else None
        if slow is not None and not slow.delays_next_get:  # this was the fetch; refused ones are not slow
            del self._slow_fetch_at[serving.server]
            self.world.tell(serving.name, "is cut, and its fetch ends late")
            self.trouble("network")
            serving._transport.reset()
        super()._executed(request, reply)

    def _entered(self, process: Process, state: str) -> None:
        super()._entered(process, state)
        if state in _QUIET and self.app is not None and process is self.app.jvm:
            self.check_quiet_group()

    def check_quiet_group(self) -> None:
        """The query asks nothing of the brokers now."""
        if self._is_quiet:
            self.guarded(self.group.group_not_ahead)

    @property
    def _is_quiet(self) -> bool:
        """Return True if nobody else has moved the group, and no late request of an earlier task may still do so."""
        if self._strangers or self.has_weather or any(app.busy for app in self.apps):
            return False
        return all(what == "clock" or self.world.now - at > 60.0 for at, what in self.troubles)

    def always(self) -> None:
        self.group.group_never_ahead()
        query = self.query
        if query is not None and query.batches and query.is_running and query.error is None and self.claims_stay:
            self.group.group_never_free()

    def _create_anew(self, topic: str, messages: int) -> None:
        if topic in self.tubemq.topics:
            return
        self.world.tell("administrator", f"creates topic {topic}")
        self.trouble("deleted")  # tasks planned before read other messages
        self.create_topic(topic)
        for number in range(1 + messages):
            self.send(topic, number, 1)

    def _excuse_all(self) -> None:
        for topic in self.topics:  # a rival may read a topic that the query has left out
            for partition in self.partitions_of(topic):
                self.group.excuse(partition)

    # -- the end --------------------------------------------------------------------------------------------------

    def calm_down(self) -> None:
        super().calm_down()
        if self.is_removed:
            self.world.pass_time(200.0)  # retries end, and the query does without the topic
        for topic in self.topics:
            self._create_anew(topic, 0)

    def send_last(self) -> None:
        ends = self.reading.logged
        for topic in self.topics:
            for number, partition in enumerate(self.partitions_of(topic)):
                self.send(topic, number, 1)
                # A query that waits notices a topic that was created anew with as many messages when more come.
                store = self.store_of(partition)
                if store is not None and store.max_offset == ends.get(partition):
                    self.send(topic, number, 1)

    def must_restart(self) -> bool:
        limits = [name for name in LIMITS if self.options.pop(name, None) is not None]
        limited = bool(limits) and self.setting.interval > 0.0
        return self.subscribed != self.topics or limited or self.setting.interval > 15.0

    def at_end(self) -> None:
        self.guarded(self.reading.rows_exact)
        self.guarded(self.reading.removal_reported)
        if self.options.get("commitoffsets") == "false":
            self.guarded(self.group.group_left_alone)
        elif self.last_told == self.checkpoint.committed:  # else Spark has told the source of the commit before
            self.guarded(self.group.group_follows)
        self.guarded(self.nothing_left)

    def has_all(self) -> bool:
        ends = self.reading.ends
        if not self.is_waiting():
            return False
        for partition in self.partitions_of_query():
            stored = [m for m in self.truth.of(partition) if m.lost is None]
            if stored and stored[-1].position >= ends.get(partition, 0):
                return False
            store = self.store_of(partition)
            if ends.get(partition, 0) > (0 if store is None else store.max_offset):  # the topic was created anew
                return False
        return True

    def store_begin(self, partition: Partition) -> int:
        store = self.store_of(partition)
        return 0 if store is None else int(store.min_offset)

    def nothing_left(self) -> None:
        """A query that has ended cleanly holds no partition, and is no member of its group."""
        if self.has_weather or self.troubles or any(app.was_cut_off for app in self.apps):
            return
        left = {key: holder for key, holder in self.tubemq.claims().items() if key[0] == GROUP}
        if left:
            raise BrokenError("nothing_left", f"the query has ended, and {left} are held")
        group = self.tubemq.servers.masters[0].service._groups._groups.get(GROUP)
        if group is not None and group.members:
            raise BrokenError(
                "nothing_left", f"the query has ended, and {sorted(group.members)} are members of {GROUP}"
            )
