# SPDX-License-Identifier: Apache-2.0
"""Schedules of reading: a stream with its operator, rivals, batch reads, and an administrator."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from tests.simulation.connector import FileSink, Row, TubeMQSource, batch_read
from tests.simulation.java import JavaConsumer, JavaProducer
from tests.simulation.operated import ELAPSED, OperatedSchedule, Possible, some_options
from tests.simulation.promises import UNIT, BrokenError, Fencing, Group, Reading
from tests.simulation.schedule import Disturbance, Moment, Setting, turn_knobs
from tests.simulation.servers import CRASH, DAMAGED, DELETED, RETENTION, Message
from tests.simulation.spark import Application, Checkpoint, StreamQuery
from tests.simulation.world import Killed, Process
from tubemq_spark.client.consumer.working_group import stream_group
from tubemq_spark.errors import (
    ConfigError,
    DataLossError,
    FencedError,
    PartitionOccupiedError,
    ServerError,
    TransportError,
    TubeMQError,
)
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.testing.broker.group_offsets import GroupOffsets, Key

GROUP = "readers"
_TIMEOUT = "tubemq.claim.timeoutms"
_FETCHED, _THEN = "worker reads: get_message", Moment("state", None)
_LIMITS = ("maxoffsetspertrigger", "maxbytespertrigger")
_QUIET = ("waits for messages", "writes the files of a batch")

# Tunables of the product, and smaller values.
KNOBS: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    ("source.input_partition", "ROWS", (1, 3)),
    ("source.input_partition", "GATHERED", (20,)),
    ("client.consumer.partition_reader", "DEPTH", (1, 2)),
    ("client.consumer.probe", "_PARTITIONS_PER_WRITE", (1,)),
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
    (1.0, "headsintervalms", ("0", "100")),
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


class ReadingSchedule(OperatedSchedule):
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
    CATCH_UP = 400.0

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
        return setting

    # -- the actors -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        extra, world = self.setting.extra, self.world
        self.topics = self.fed_topics = self.subscribed = extra["topics"]
        self.options = dict(self.setting.options)
        self.logged_at: dict[float, Mapping[Partition, int]] = {}  # where the offset log ended when messages were lost
        self.removed: set[Partition] = set()
        self.left_out: set[str] = set()
        self._tolerates_in = -1  # the batch for which the operator has set failOnDataLoss to false
        self._strangers = 0
        self._slow_fetch_at: dict[str, GroupOffsets] = {}  # servers whose next fetch ends late, without its connection
        for topic in self.topics:
            self.tubemq.create_topic(topic, self.setting.partitions, self.setting.stores)
        # Some of their partitions: others share a store with them, or come later.
        self.assigned = {
            one for topic in self.topics for one in self.partitions_of(topic)[:-1] or self.partitions_of(topic)
        }
        for _, *what in extra["first"]:
            self.send(*what)
        world.reported = self._reported
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
        return body, types[self.world.hash("type", number) % len(types)]

    def new_query(self, app: Application) -> StreamQuery:
        self.apps.append(app)
        if self.is_calm:
            self.subscribed = self.topics
        if 0 <= self._tolerates_in < self.checkpoint.committed and self.world.hash("fails again", app.name) % 2:
            self.options.pop("failondataloss", None)  # what was lost is behind the query
            self._tolerates_in = -1
        self.group.begin()
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
        if process.name.startswith("app"):
            world = self.world
            world.tell(process, f"logs a loss: {str(loss)[:150]}")
            self.guarded(self.reading.reported, loss)

    def judge(self, query: StreamQuery, error: BaseException) -> None:
        recent = self.recent_troubles()
        if isinstance(error, DataLossError):
            self.guarded(self.reading.reported, error)
            self.options["failondataloss"] = "false"  # as the error advises
            self._tolerates_in = self.checkpoint.committed
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
        limits = [name for name in _LIMITS if self.options.pop(name, None) is not None]
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

    # -- disturbances ---------------------------------------------------------------------------------------------

    def topic_anew(self, planned: Disturbance) -> None:
        topic = self.topic_of(planned)
        if topic is None:
            return
        self.world.tell("administrator", f"deletes topic {topic} and creates it anew")
        self.trouble("deleted")
        self.removed.update(self.partitions_of(topic))
        self._excuse_all()  # brokers keep the positions of groups
        self.tubemq.delete_topic(topic)
        self.note_losses(DELETED)
        if planned.number % 3:  # else it stays away until the world is calm
            # Brokers need more than a second to remove a topic.
            self.world.at(1.0 + planned.strength**4 * 40, self._create_anew, topic, int(planned.strength * 30))

    def _create_anew(self, topic: str, messages: int) -> None:
        if topic in self.tubemq.topics:
            return
        self.world.tell("administrator", f"creates topic {topic}")
        self.trouble("deleted")  # tasks planned before read other messages
        self.tubemq.create_topic(topic, self.setting.partitions, self.setting.stores)
        for number in range(1 + messages):
            self.send(topic, number, 1)

    def new_topic(self, planned: Disturbance) -> bool:
        """Somebody creates a topic that `subscribePattern` matches."""
        names = [name for name in "vwx" if name not in self.topics]
        if not names or self.setting.extra["names"] != "subscribePattern":
            return False
        self.world.tell("administrator", f"creates topic {names[0]}")
        self.tubemq.create_topic(names[0], self.setting.partitions, self.setting.stores)
        self.topics = self.fed_topics = self.subscribed = (*self.topics, names[0])
        for number in range(int(planned.strength * 30)):
            self.send(names[0], number, 1)
        return True

    def start_elsewhere(self, planned: Disturbance) -> None:
        """The driver dies, and the next run starts on a computer whose clock is behind."""
        self.world.tell("operator", f"starts the query where the clock is {planned.strength * 30:.1f} s behind")
        self.trouble("clock")
        self.kill_driver(planned)
        self.world.wall_steps[self.host] = self.world.wall_steps.get(self.host, 0.0) - planned.strength * 30

    def late_fetch(self, planned: Disturbance) -> None:
        """The connection of a fetch breaks, and the fetch ends after later ones have begun."""
        self.when("worker reads", replace(planned, kind="delay fetch", moment=_THEN))

    def delay_fetch(self, planned: Disturbance) -> None:
        broker_id = self.broker_of(planned)
        offsets = self.tubemq.servers.brokers[broker_id].service.offsets
        offsets.delay_next_get(1 + planned.number % 2)
        self._slow_fetch_at[f"broker {broker_id}"] = offsets
        if planned.strength < 0.5:
            self.when(_FETCHED, replace(planned, kind="kill worker", moment=_THEN))

    def retention(self, planned: Disturbance) -> None:
        if planned.number % 3 == 0:  # while a task reads
            self.when(_FETCHED, replace(planned, number=planned.number + 1, moment=_THEN))
            return
        super().retention(planned)

    def crash_broker(self, planned: Disturbance) -> None:
        if planned.number % 5 == 2:  # while a task reads
            nth = 1 + planned.number // 5 % 3
            self.when(_FETCHED, replace(planned, number=planned.number + 1, moment=_THEN), nth)
            return
        super().crash_broker(planned)

    def burst(self, planned: Disturbance) -> None:
        super().burst(planned)
        if planned.number % 2:
            self._tail_crash = replace(planned, kind="lose tail", moment=_THEN)

    def _delivered(self, partition: Partition, client_id: str) -> None:
        """A reader has got messages. A crash may take away those behind them."""
        self.guarded(self.fencing.fenced_delivers_nothing, partition, client_id)
        planned, store = self._tail_crash, self.store_of(partition)
        if planned is not None and store is not None and store.committed_offset < store.max_offset:
            self._tail_crash = None
            self.world.at(0.0, self._fire, replace(planned, number=self.tubemq.broker_ids.index(partition.broker_id)))

    def lose_tail(self, planned: Disturbance) -> None:
        self._crash_broker(planned, CRASH)

    def enlarge_topic(self, planned: Disturbance) -> None:
        super().enlarge_topic(planned)
        then = replace(planned, number=planned.number // 3, moment=_THEN)
        if planned.number % 3 == 2:  # before the query knows the new partitions
            follows = "empty disk" if planned.number % 2 else "crash broker"
            self.world.at(planned.strength**2 * 3, self._fire, replace(then, kind=follows))
        elif planned.number % 3 == 1:  # a batch may end at entries of the new partitions
            self._send_to_all(3)
            self.when("driver writes the commit log", replace(then, kind="refill tail"))

    def refill_tail(self, planned: Disturbance) -> None:
        """A broker loses the tail of its stores, and gets other messages before the query comes back."""
        self.lose_tail(planned)
        self.world.at(planned.strength**2 * 20 + 0.2, self._send_to_all, 9)  # when it starts

    def _send_to_all(self, count: int) -> None:
        for topic in self.fed_topics:
            for number in range(len(self.partitions_of(topic))):
                self.send(topic, number, count)

    def move_group(self, planned: Disturbance) -> None:
        if planned.number % 2:  # while a task reads, in the group of the tasks
            self.when(_FETCHED, replace(planned, number=(planned.number | 3) + 1, moment=_THEN))
            return
        group = GROUP if planned.number % 4 else stream_group(GROUP)
        partitions = list(self.partitions_of_query())
        if not partitions:
            return
        first = planned.number // 4 % len(partitions)
        partition = max(partitions[first:] + partitions[:first], key=partial(self._in_flight, group))
        next_read = (self.group_position(group, partition) or 0) + self._in_flight(group, partition)
        position = max(0, next_read + UNIT * int(planned.strength * 8 - 2))
        self.world.tell("administrator", f"moves group {group} to {position} of {partition}")
        self.trouble("moved")
        self.tubemq.move_group(group, partition.topic, partition.broker_id, partition.partition_id, position)
        self.group.excuse(partition)

    def _in_flight(self, group: str, partition: Partition) -> int:
        service = self.tubemq.servers.brokers[partition.broker_id].service
        in_flight: int = service.offsets.in_flight(Key(group, partition.topic, partition.partition_id))
        return in_flight

    def leave_out_topic(self, planned: Disturbance) -> None:
        """The operator changes the query's topics with its next start, and tolerates what goes away."""
        if len(self.topics) < 2 or self.setting.extra["names"] == "subscribePattern":
            return
        self.options["failondataloss"], self._tolerates_in = "false", self.checkpoint.committed + 1
        both = self.subscribed == self.topics
        self.subscribed = self.topics[:1] if both else self.topics
        self.trouble("removed")
        self.removed.update(self.partitions_of(self.topics[1]))
        self.left_out.add(self.topics[1])
        self.world.tell("operator", f"restarts the query with subscribe={','.join(self.subscribed)}")
        if self.query is not None:
            self.query.stop()

    def rival(self, planned: Disturbance) -> None:
        """A second query of the same group."""
        self._strangers += 1
        self.trouble("stranger")
        self.invite("rival", self._run_rival, planned)

    def _run_rival(self, planned: Disturbance) -> None:
        world = self.world
        app = self.new_app("rival")
        checkpoint = Checkpoint(f"/checkpoints/{app.name}", f"query-{app.name}")
        reading = Reading(self, checkpoint)
        ran_before = self.query if self.query is not None and self.query.batches else None
        world.tell(app.name, "starts in the same group")

        def written(query: StreamQuery, batch: int, scans: list[list[Row]]) -> None:
            if ran_before is not None and self.query is ran_before and ran_before.is_running and self.claims_stay:
                self.breaks(BrokenError("rival_harmless", "two queries of one group read side by side"))
            self.guarded(reading.written, query, batch, scans)

        raw = self.raw(**{"tubemq.claim.timeoutms": "5000", "startingoffsets": "earliest"})
        query = StreamQuery(app, checkpoint, TubeMQSource(raw), FileSink(written), interval=planned.number % 2 * 1.0)
        end = world.now + 8.0 + planned.strength * 20
        while not query.ended.done and world.now < end and not self.is_calm:
            query.ended.wait(1.0)
        query.stop()
        query.ended.wait()
        app.end()
        self._strangers -= 1
        self._excuse_all()

    def java_consumer(self, planned: Disturbance) -> None:
        """A Java consumer of the same group comes, and goes or is killed."""
        self._strangers += 1
        self.trouble("stranger")
        self.invite("java", self._run_java_consumer, planned)

    def _run_java_consumer(self, planned: Disturbance) -> None:
        world = self.world
        consumer = JavaConsumer(world, self.tubemq.master, GROUP, self.subscribed, self._excuse_all)
        world.tell(consumer.process, f"joins group {GROUP}")
        end = world.now + 1.0 + planned.strength * 15
        while not consumer.ended.done and world.now < end and not self.is_calm:
            consumer.ended.wait(0.5)
        if planned.number % 3:
            consumer.shut_down()
            consumer.ended.wait(30.0)
        world.tell(consumer.process, f"ends after {consumer.messages} messages")
        consumer.process.kill()
        self._strangers -= 1
        self.trouble("stranger")
        self._excuse_all()

    def stop_broker(self, planned: Disturbance) -> None:
        super().stop_broker(planned)
        if self._strangers:  # the broker has stored what it gave them, and their replies may be under way
            self._excuse_all()

    def _excuse_all(self) -> None:
        for topic in self.topics:  # a rival may read a topic that the query has left out
            for partition in self.partitions_of(topic):
                self.group.excuse(partition)

    def java_producer(self, planned: Disturbance) -> None:
        if topic := self.topic_of(planned):
            bodies = [b"j%d" % self.world.count("java message") for _ in range(1 + int(planned.strength * 20))]
            self.guests.append(JavaProducer(self.world, self.tubemq.master, topic, bodies).ended)

    def batch_read(self, planned: Disturbance) -> None:
        """Somebody looks at the topics by a batch read, and may kill it."""
        self.invite("reader", self._read_batch, planned)

    def _read_batch(self, planned: Disturbance) -> None:
        world = self.world
        app = self.new_app("batch", max_failures=1 + planned.number % 2 * 3)
        partitions = [partition for topic in self.topics for partition in self.partitions_of(topic)]
        group = app.name
        for partition in partitions:
            ends = [m.position + UNIT for m in self.truth.of(partition) if m.lost is None]
            position = ends[int(planned.strength * len(ends))] if ends else 0
            try:
                self.tubemq.move_group(group, partition.topic, partition.broker_id, partition.partition_id, position)
            except ConfigError:
                return
        before = {partition: self.group_position(group, partition) for partition in partitions}
        crashes = len(self.troubles)
        stored = [
            m
            for topic in self.topics
            for m in self.truth.of_topic(topic)
            if m.lost is None and self.reading.is_wanted(m) and self._is_named(m.partition)
        ]
        of_batch = {**self._subscription(self.topics), "startingoffsets": "earliest", "failondataloss": "false"}
        raw = self.raw(**{**of_batch, "tubemq.group": group})
        for name in (*_LIMITS, "minoffsetspertrigger", "maxtriggerdelay", "headsintervalms", "commitoffsets"):
            raw.pop(name, None)
        raw.pop("startingtimestamp", None)
        world.tell(app.name, f"reads all topics in group {group}")
        call = app.jvm.start("batch", partial(batch_read, app, raw, 1 + planned.number % 2))
        if planned.number % 2 == 0:
            world.at(planned.strength**3 * 2, self._kill_reader, app, planned.number)
        call.wait()
        if call.error is None:
            for rows in call.result():
                self.guarded(self._check_batch_read, rows, stored)
        elif isinstance(call.error, Exception):
            error = self.error_of(call)
            if error is not None and not isinstance(error, (TubeMQError, Killed)):
                raise error
        if not self.is_calm:
            world.sleep(40.0)  # claims of dead tasks expire
        app.end()
        if len(self.troubles) == crashes or not {w for _, w in self.troubles[crashes:]} & {"crash", "deleted", "stop"}:
            for partition, position in before.items():
                after = self.group_position(group, partition)
                if after != position:
                    self.breaks(
                        BrokenError(
                            "batch_leaves_group",
                            f"a batch read has moved group {group} from {position} to {after} of {partition}",
                        )
                    )

    def _kill_reader(self, app: Application, number: int) -> None:
        if app.alive:
            app.kill_worker(number)

    def _check_batch_read(self, rows: list[Row], stored: list[Message]) -> None:
        given = [(row.partition, row.message_id) for row in rows]
        if len(set(given)) != len(given):
            raise BrokenError("rows_exact", "a batch read gives a message twice")
        missing = [m for m in stored if m.lost is None and (m.partition, m.message_id) not in set(given)]
        if missing:
            raise BrokenError("rows_exact", f"a batch read misses {missing[0]} and {len(missing) - 1} more")


__all__ = ["ReadingSchedule"]
