# SPDX-License-Identifier: Apache-2.0
"""Schedules of reading: a stream with its operator, rivals, batch reads, and an administrator."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from tests.simulation.connector import FileSink, Row, TubeMQSource, batch_read
from tests.simulation.java import JavaConsumer, JavaProducer
from tests.simulation.network import Weather
from tests.simulation.promises import BrokenError, Fencing, Group, Reading
from tests.simulation.schedule import (
    SERVER_KINDS,
    Disturbance,
    Schedule,
    Setting,
    make_unrest,
    make_weather,
    small_servers,
    turn_knobs,
)
from tests.simulation.servers import DAMAGED, DELETED, RETENTION, Loss
from tests.simulation.spark import Application, Checkpoint, StageError, StreamQuery
from tests.simulation.world import Call, Killed, Process
from tubemq_spark.errors import (
    ConfigError,
    DataLossError,
    FencedError,
    PartitionOccupiedError,
    PositionMovedError,
    TransportError,
    TubeMQError,
)
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.metadata import Partition

GROUP, LOOKING = "readers", "looking"
UNIT = 28
_QUIET = ("waits for messages", "writes the files of a batch")
_CATCH_UP = 400.0  # seconds that a query may need after the last disturbance

# Tunables of the product, and smaller values.
KNOBS: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    ("source.input_partition", "ROWS", (1, 3)),
    ("source.input_partition", "GATHERED", (20,)),
    ("client.consumer.partition_reader", "DEPTH", (1, 2)),
    ("client.consumer.probe", "_PARTITIONS_PER_WRITE", (1,)),
    ("source.truncation_check", "_STORES_AT_ONCE", (1,)),
    ("source.range_planner", "_SMALL_RANGE", (2,)),
    ("source.range_planner", "_MAX_SHARED_TASKS", (1,)),
    ("protocol.range_state", "_FULL_REPLY", (3,)),
)

TOKENS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {},
    {"start_visit_token_check": True, "visit_token_check_in_valid_time": 0.0},
)

# What may explain each error of a query, by the words that `trouble` records; the last word covers all.
_EXPLANATIONS: dict[type[BaseException], frozenset[str]] = {
    PartitionOccupiedError: frozenset({"stranger", "clock"}),
    PositionMovedError: frozenset({"moved", "crash", "deleted", "stranger", "retention", "hang", "zombie"}),
    ConfigError: frozenset({"deleted", "rights", "removed", "master", "crash", "stop"}),
}


class ReadingSchedule(Schedule):
    """One stream in group `readers`, from one or two topics to files."""

    SLOTS = 10

    def make_setting(self, r: random.Random) -> Setting:
        interval = r.choice((0.0, 0.0, 1.0, 2.0, 15.0, 60.0))
        horizon = {0.0: 6.0, 1.0: 10.0, 2.0: 16.0, 15.0: 75.0, 60.0: 250.0}[interval]
        options = {
            "startingoffsets": r.choice(("earliest", "earliest", "latest", "group")),
            "tubemq.claim.timeoutms": r.choice(("5000", "45000")),
            "headsintervalms": r.choice(("0", "100")),
        }
        if r.random() < 0.4:
            options["maxoffsetspertrigger"] = r.choice(("2", "3", "7"))
        if r.random() < 0.3:
            options["failondataloss"] = "false"
        if r.random() < 0.2:
            options["maxpartitionspertask"] = "3"
        if r.random() < 0.3:
            options["tubemq.connections.shared"] = "false"
        if r.random() < 0.3:
            options["tubemq.rpc.timeoutms"] = r.choice(("500", "2000"))
        if r.random() < 0.1:
            options["commitoffsets"] = "false"
        if r.random() < 0.15:
            options["filters"] = r.choice(("AaAa", "AaAa,other"))
        if r.random() < 0.3:
            options["metadataintervalms"] = "1000"
        if r.random() < 0.2:
            options["tubemq.retry.maxelapsedms"] = "5000"
        damaged = r.choice((0.0, 0.0, 0.0, 0.1))
        if damaged:
            options["corruptmessages"] = "skip"
        kinds = [kind for kind in self.KINDS if r.random() < 0.3]
        topics = r.choice((("t",), ("t",), ("t", "u")))
        feed = []
        for _ in range(r.randrange(3, 12)):
            at = r.random() * horizon
            feed.append((at, r.choice(topics), r.randrange(8), r.choice((1, 1, 2, 5))))
        first = [(-1.0, topic, number, r.choice((0, 1, 3, 8))) for topic in topics for number in range(2)]
        config = small_servers(r, **r.choice(TOKENS))
        knobs, unrest = KNOBS, make_unrest(r)
        if r.random() < 0.08:  # rows reach Spark one by one, and other attempts come meanwhile
            knobs = tuple((module, name, values * 4) for module, name, values in KNOBS if name != "ROWS")
            knobs = (*knobs, *[("source.input_partition", "ROWS", (1,))] * 9)
            config = replace(config, transfer_size=300)
            unrest = replace(unrest, slow_task=0.4, speculation=0.5)
            first = [(at, topic, number, 8 + count) for at, topic, number, count in first]
        # More than the brokers keep in memory, in two blocks.
        unflushed = ("source.store_check", "UNFLUSHED_AT_MOST", (UNIT * 2 * config.mem_cache_msg_count + 2 * UNIT,))
        return Setting(
            knobs=turn_knobs(r, (*knobs, unflushed, unflushed)),
            brokers=r.choice((1, 1, 1, 2)),
            masters=r.choice((1, 1, 2)),
            partitions=r.choice((1, 1, 1, 2)),
            stores=r.choice((1, 1, 1, 2)),
            horizon=horizon,
            interval=interval,
            weather=make_weather(r),
            unrest=unrest,
            options=options,
            config=config,
            kinds=tuple(kinds),
            rate=r.choice((0.2, 0.4, 0.7)),
            extra={
                "topics": topics,
                "feed": sorted(feed),
                "first": first,
                "scans": r.choice((1, 1, 1, 2)),
                "pause": r.choice((0.1, 1.0, 20.0)),
                "max_failures": r.choice((1, 2, 4)),
                "damaged": damaged,
            },
        )

    # -- the actors -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        extra, world = self.setting.extra, self.world
        self.topics: tuple[str, ...] = extra["topics"]
        self.subscribed: tuple[str, ...] = self.topics
        self.options = dict(self.setting.options)
        self.losses_before_stage = 0
        self._bodies = 0
        self._snapshots: dict[int, Mapping[Partition, int]] = {}
        self._finished = False
        self.app: Application | None = None
        self.query: StreamQuery | None = None
        self._strangers = 0
        self._removed: set[Partition] = set()
        self._left_out: set[str] = set()
        self.is_lenient_about_ranges = False
        for topic in self.topics:
            self.tubemq.create_topic(topic, self.setting.partitions, self.setting.stores)
        for _, topic, number, count in extra["first"]:
            self._send(topic, number, count)
        world.reported = self._reported
        self.checkpoint = Checkpoint("/checkpoints/stream", "query-1")
        self.reading = Reading(self, self.checkpoint)
        self.group = Group(self.reading, GROUP)
        self.fencing = Fencing(self, GROUP)
        world.delivered = partial(self.guarded, self.fencing.fenced_delivers_nothing)
        self.apps: list[Application] = []
        self.producers: list[JavaProducer] = []
        self.guests: list[Call[None]] = []  # that have come, and may have gone
        self.fed = world.start("feeder", self._feed)
        self.operator = world.start("operator", self._operate)

    def _feed(self) -> None:
        for at, topic, number, count in self.setting.extra["feed"]:
            self.world.sleep(max(0.0, at - self.world.now))
            self._send(topic, number, count)

    def _send(self, topic: str, number: int, count: int) -> None:
        for _ in range(count):
            targets = self.partitions_of(topic)
            if not targets:
                return
            partition = targets[number % len(targets)]
            self._bodies += 1
            body = b"m%d" % self._bodies
            if self.world.hash("damaged", self._bodies) % 100 < 100 * self.setting.extra["damaged"]:
                body = DAMAGED + body
            # Brokers filter by a hash that AaAa and BBBB have in common.
            types = ("AaAa", "BBBB", "other", "third") if "filters" in self.options else (None,)
            msg_type = types[self.world.hash("type", self._bodies) % len(types)]
            try:
                where = f"{partition.broker_id}:{partition.partition_id}"
                self.tubemq.send(topic, body, where, msg_type=msg_type)
            except ConfigError:
                return  # its broker is down, or the topic is closed

    def _operate(self) -> None:
        """Run the query, and start it again when it ends, as an operator or a supervisor does."""
        world = self.world
        while not self._finished:
            self._run_query()
            if not self._finished:
                world.sleep(self.setting.extra["pause"] if not self.is_calm else 0.5)

    def _run_query(self) -> None:
        world = self.world
        world.numbers["app"] += 1
        app = Application(
            world,
            f"app{world.numbers['app']}",
            self.setting.unrest,
            max_failures=self.setting.extra["max_failures"],
            host="driver host",  # the same for all runs, so that its clock can be behind that of an earlier run
        )
        self.app = app
        self.apps.append(app)
        self.group.begin()
        query = StreamQuery(
            app,
            self.checkpoint,
            TubeMQSource(self.raw(), self.setting.extra["scans"]),
            FileSink(self._written),
            interval=self.setting.interval if not self.is_calm else min(2.0, self.setting.interval),
        )
        self.query = query
        query.ended.wait()
        killed = isinstance(query.ended.error, Killed)
        if query.error is not None:
            self._judge(query, query.error)
        elif not killed and query.ended.error is not None:
            raise query.ended.error
        self.query = None
        if not killed:
            self.check_quiet_group()
            app.end()
        else:
            self.trouble("zombie")

    def raw(self, **more: str) -> dict[str, str]:
        return {
            "tubemq.master": self.tubemq.master,
            "tubemq.rpc.framing": "standard",
            "tubemq.group": GROUP,
            "subscribe": ",".join(self.subscribed),
            **self.options,
            **more,
        }

    def _written(self, query: StreamQuery, batch: int, scans: list[list[Row]]) -> None:
        self.batches += 1
        self.guarded(self.reading.written, query, batch, scans)

    def _reported(self, process: Process, loss: DataLossError) -> None:
        if process.name.startswith("app"):
            world = self.world
            world.tell(process, f"logs a loss: {str(loss)[:150]}")
            self.guarded(self.reading.reported, loss)

    def _judge(self, query: StreamQuery, error: BaseException) -> None:
        """A query has ended by an error. Something must explain it."""
        now = self.world.now
        if isinstance(error, DataLossError):
            self.guarded(self.reading.reported, error)
            self.options["failondataloss"] = "false"  # as the error advises
            return
        if isinstance(error, PartitionOccupiedError) and query.batches and self._strangers and not self.claims_may_end:
            self.breaks(BrokenError("rival_harmless", f"a rival has ended a query that ran: {str(error)[:150]}"))
            return
        recent = {what for at, what in self.troubles if now - at < 200.0}
        # Nothing lasts as long as requests are repeated without the option.
        is_early = "tubemq.retry.maxelapsedms" not in self.options and "no master answered" not in str(error)
        if isinstance(error, TransportError) and (self.has_weather or recent) and not is_early:
            return
        if isinstance(error, PositionMovedError) and (self.has_weather or recent):
            return
        if isinstance(error, Killed) and "kill worker" in self.came:
            return
        if isinstance(error, PartitionOccupiedError) and not self.checkpoint.offsets and len(self.apps) > 1:
            return  # this run has another id than the last one, and waits until its claims expire
        if isinstance(error, FencedError) and self.options["tubemq.claim.timeoutms"] == "45000":
            recent -= {"clock"}  # the claims of an earlier run expire before that
        for kind, words in _EXPLANATIONS.items():
            if isinstance(error, kind) and (recent & words):
                return
        self.breaks(BrokenError("errors_explained", f"the query ended by {type(error).__name__}: {str(error)[:300]}"))

    @property
    def claims_may_end(self) -> bool:
        """Return True if a broker may have forgotten claims of its clients."""
        recent = {what for at, what in self.troubles if self.world.now - at < 60.0}
        return self.has_weather or bool(recent & {"crash", "stop", "hang", "network", "deleted", "rights", "clock"})

    @property
    def has_weather(self) -> bool:
        weather = self.setting.weather
        return weather != Weather(longest=weather.longest)

    # -- what the promises ask ------------------------------------------------------------------------------------

    def partitions_of(self, topic: str) -> list[Partition]:
        layouts = self.tubemq.servers.catalog.topics.get(topic, {})
        return [
            Partition(broker_id, topic, number)
            for broker_id, layout in sorted(layouts.items())
            for number in layout.partition_ids
        ]

    def partitions_of_query(self) -> Iterable[Partition]:
        return [partition for topic in self.subscribed for partition in self.partitions_of(topic)]

    def group_position(self, group: str, partition: Partition) -> int | None:
        from tubemq_spark.testing.broker.group_offsets import Key

        service = self.tubemq.servers.brokers[partition.broker_id].service
        position: int | None = service.offsets.confirmed(Key(group, partition.topic, partition.partition_id))
        return position

    def logged_at(self, reading: Reading, at: float) -> Mapping[Partition, int]:
        """Where the offset log ended when messages were lost at that time."""
        for number, loss in enumerate(self.truth.losses):
            if loss.at == at:
                return self._snapshots.get(number, {})
        return {}

    def note_losses(self, how: str) -> None:
        before = len(self.truth.losses)
        self.truth.note_losses(how)
        for number in range(before, len(self.truth.losses)):
            self._snapshots[number] = self.reading.logged

    def was_left_out(self, partition: Partition) -> bool:
        return partition.topic in self._left_out

    def removed(self, partition: Partition) -> bool:
        return partition in self._removed

    def _executed(self, request: Any, reply: Any) -> None:
        if request.method == Method.PARTITION_REGISTER:
            self.fencing.watch()
        serving = self.world.serving
        if serving is not None and serving.process.name.startswith(("java", "rival")):
            self._excuse_all()
        super()._executed(request, reply)

    def _entered(self, process: Process, state: str) -> None:
        super()._entered(process, state)
        if state in _QUIET and self.app is not None and process is self.app.jvm:
            self.check_quiet_group()

    def check_quiet_group(self) -> None:
        """The query asks nothing of the brokers now. Late requests of earlier tasks may still move the group."""
        if self._strangers or self.has_weather or any(app.busy for app in self.apps):
            return
        if all(what == "clock" or self.world.now - at > 60.0 for at, what in self.troubles):
            self.guarded(self.group.group_not_ahead)

    def always(self) -> None:
        self.group.group_never_ahead()

    # -- the end --------------------------------------------------------------------------------------------------

    def calm_down(self) -> None:
        super().calm_down()
        for topic in self.topics:
            if topic in self.tubemq.topics:
                self.tubemq.open_topic(topic)
            else:
                self._create_anew(topic, 0)

    def rest(self) -> None:
        world = self.world
        world.run(lambda: self.fed.done and all(one.done for one in [*self.guests, *(p.ended for p in self.producers)]))
        for guest in self.guests:
            guest.result()
        wanted = tuple(topic for topic in self.topics if topic in self.tubemq.topics)
        limited = self.options.pop("maxoffsetspertrigger", None) is not None and self.setting.interval > 0.0
        if self.subscribed != wanted or limited or self.setting.interval > 15.0:  # it would need hours
            self.subscribed = wanted
            if self.query is not None:
                self.query.stop()
        end = world.now + _CATCH_UP
        while not self._has_all():
            if world.now > end:
                raise BrokenError("comes_to_rest", f"the query is at {self.reading.ends}, and more is stored")
            world.pass_time(0.4)
        # Let one more trigger pass, in which the query learns of its last commit.
        world.pass_time(1.0 + (self.query.interval if self.query else 0.0))
        self._finished = True
        self._last_told = -1 if self.query is None else self.query.told
        if self.query is not None:
            self.query.stop()
        world.run(lambda: self.operator.done)
        if self.operator.error is not None:
            raise self.operator.error
        self.guarded(self.reading.rows_exact)
        if self.options.get("commitoffsets") != "false":
            if self._last_told == self.checkpoint.committed:  # else Spark has told the source of the commit before
                self.guarded(self.group.group_follows)
        else:
            self.guarded(self.group.group_left_alone)
        self.guarded(self.nothing_left)

    def _has_all(self) -> bool:
        ends = self.reading.ends
        if self.checkpoint.is_pending or self.query is None or self.query.app.jvm.state != "waits for messages":
            return False
        for partition in self.partitions_of_query():
            stored = [m for m in self.truth.of(partition) if m.lost is None]
            if stored and partition in ends and stored[-1].position >= ends[partition]:
                return False
            if stored and partition not in ends:
                return False
            if partition in ends and ends[partition] > self._store_end(partition):  # the topic was created anew
                return False
        return True

    def _store_end(self, partition: Partition) -> int:
        store = self._store(partition)
        return 0 if store is None else int(store.max_offset)

    def store_begin(self, partition: Partition) -> int:
        store = self._store(partition)
        return 0 if store is None else int(store.min_offset)

    def _store(self, partition: Partition) -> Any:
        service = self.tubemq.servers.brokers[partition.broker_id].service
        return service.stores.get(partition.topic, partition.store_id)

    def nothing_left(self) -> None:
        """A query that has ended cleanly holds no partition, and is no member of its group."""
        if self.has_weather or self.troubles:
            return
        left = {key: holder for key, holder in self.tubemq.claims().items() if key[0] == GROUP}
        if left:
            raise BrokenError("nothing_left", f"the query has ended, and {left} are held")
        group = self.tubemq.servers.masters[0].service._groups.get(GROUP)
        if group is not None and group.members:
            raise BrokenError(
                "nothing_left", f"the query has ended, and {sorted(group.members)} are members of {GROUP}"
            )

    # -- disturbances ---------------------------------------------------------------------------------------------

    def kill_driver(self, planned: Disturbance) -> None:
        if self.app is not None and self.app.alive:
            self.app.kill()

    def kill_worker(self, planned: Disturbance) -> None:
        if self.app is not None and self.app.alive:
            self.app.kill_worker(planned.number)

    def stop_query(self, planned: Disturbance) -> None:
        if self.query is not None:
            self.query.stop()

    def flush(self, planned: Disturbance) -> None:
        topic = self.topics[planned.number % len(self.topics)]
        if topic in self.tubemq.topics:
            self.tubemq.flush(topic)

    def expire(self, planned: Disturbance) -> None:
        topic = self.topics[planned.number % len(self.topics)]
        if topic in self.tubemq.topics:
            self.world.tell("retention", f"removes messages of {topic}")
            self.trouble("retention")
            self.tubemq.expire(topic, planned.number % 4)
            self.note_losses(RETENTION)

    def recreate_topic(self, planned: Disturbance) -> None:
        topic = self.topics[planned.number % len(self.topics)]
        if topic not in self.tubemq.topics:
            return
        self.world.tell("administrator", f"deletes topic {topic} and creates it anew")
        self.trouble("deleted")
        self._removed.update(self.partitions_of(topic))
        self.tubemq.delete_topic(topic)
        self.note_losses(DELETED)
        # Brokers need more than a second to remove a topic.
        pause = 1.0 + planned.strength**2 * 40 * (planned.number % 3 == 0)
        self.world.at(pause, self._create_anew, topic, int(planned.strength * 30))

    def _create_anew(self, topic: str, messages: int) -> None:
        if topic in self.tubemq.topics:
            return
        self.world.tell("administrator", f"creates topic {topic}")
        self.tubemq.create_topic(topic, self.setting.partitions, self.setting.stores)
        for number in range(1 + messages):
            self._send(topic, number, 1)

    def enlarge_topic(self, planned: Disturbance) -> None:
        topic = self.topics[planned.number % len(self.topics)]
        if topic not in self.tubemq.topics:
            return
        self.world.tell("administrator", f"adds partitions to {topic}")
        self.tubemq.create_topic(topic, self.setting.partitions + planned.number % 2, self.setting.stores + 1)
        self._send(topic, planned.number, 2)

    def move_group(self, planned: Disturbance) -> None:
        partitions = list(self.partitions_of_query())
        if not partitions:
            return
        partition = partitions[planned.number % len(partitions)]
        position = UNIT * int(planned.strength * 12)
        self.world.tell("administrator", f"moves group {GROUP} to {position} of {partition}")
        self.trouble("moved")
        self.tubemq.move_group(GROUP, partition.topic, partition.broker_id, partition.partition_id, position)
        self.group.excuse(partition)

    def change_rights(self, planned: Disturbance) -> None:
        topic = self.topics[planned.number % len(self.topics)]
        if topic not in self.tubemq.topics:
            return
        self.world.tell("administrator", f"closes topic {topic} for consumers for a while")
        self.trouble("rights")
        self.tubemq.close_topic(topic, publish=False)
        self.world.at(0.5 + planned.strength**2 * 20, self._open, topic)

    def _open(self, topic: str) -> None:
        if topic in self.tubemq.topics:
            self.tubemq.open_topic(topic)

    def burst(self, planned: Disturbance) -> None:
        topic = self.topics[planned.number % len(self.topics)]
        self._send(topic, planned.number, 10 + int(planned.strength * 30))

    def leave_out_topic(self, planned: Disturbance) -> None:
        """The operator changes the query's topics with its next start, and tolerates what goes away."""
        if len(self.topics) < 2:
            return
        self.options["failondataloss"] = "false"
        both = self.subscribed == self.topics
        self.subscribed = self.topics[:1] if both else self.topics
        self.trouble("removed")
        self._removed.update(self.partitions_of(self.topics[1]))
        self._left_out.add(self.topics[1])
        self.world.tell("operator", f"restarts the query with subscribe={','.join(self.subscribed)}")
        if self.query is not None:
            self.query.stop()

    def empty_disk(self, planned: Disturbance) -> None:
        broker_id = self.broker_of(planned)
        self.world.tell(f"broker {broker_id}", "loses its disk")
        self.trouble("crash")
        self.trouble("deleted")
        self.tubemq.crash_broker(broker_id)
        self.tubemq.lose_disk(broker_id)
        self.note_losses(DELETED)
        for partition in self.partitions_of_query():
            self.group.excuse(partition)
        self.world.at(0.2 + planned.strength**2 * 20, self._start_broker, broker_id)

    def crash_broker(self, planned: Disturbance) -> None:
        super().crash_broker(planned)
        for partition in self.partitions_of_query():
            self.group.excuse(partition)

    def start_rival(self, planned: Disturbance) -> None:
        """A second query of the same group."""
        self._strangers += 1
        self.trouble("stranger")
        self.guests.append(self.world.start("rival", self._run_rival, planned))

    def _run_rival(self, planned: Disturbance) -> None:
        world = self.world
        world.numbers["rival"] += 1
        number = world.numbers["rival"]
        app = Application(world, f"rival{number}", self.setting.unrest)
        checkpoint = Checkpoint(f"/checkpoints/rival{number}", f"query-rival{number}")
        reading = Reading(self, checkpoint)
        ran_before = self.query if self.query is not None and self.query.batches else None
        world.tell(f"rival{number}", "starts in the same group")

        def written(query: StreamQuery, batch: int, scans: list[list[Row]]) -> None:
            if (
                ran_before is not None
                and self.query is ran_before
                and not ran_before._stopping
                and not ran_before.ended.done
                and not self.claims_may_end
            ):
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

    def start_java_consumer(self, planned: Disturbance) -> None:
        """A Java consumer of the same group comes, and goes or is killed."""
        self._strangers += 1
        self.trouble("stranger")
        self.guests.append(self.world.start("java", self._run_java_consumer, planned))

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

    def _excuse_all(self) -> None:
        for partition in self.partitions_of_query():
            self.group.excuse(partition)

    def start_java_producer(self, planned: Disturbance) -> None:
        topic = self.topics[planned.number % len(self.topics)]
        if topic in self.tubemq.topics:
            bodies = []
            for _ in range(1 + int(planned.strength * 20)):
                self._bodies += 1
                bodies.append(b"j%d" % self._bodies)
            self.producers.append(JavaProducer(self.world, self.tubemq.master, topic, bodies))

    def rotate_token(self, planned: Disturbance) -> None:
        times = 1 + planned.number % 8
        self.world.tell("master", f"makes {times} new visit tokens")
        self.tubemq.rotate_visit_token(times)

    def read_batch(self, planned: Disturbance) -> None:
        """Somebody looks at the topics by a batch read, and may kill it."""
        self.guests.append(self.world.start("reader", self._read_batch, planned))

    def _read_batch(self, planned: Disturbance) -> None:
        world = self.world
        world.numbers["batch read"] += 1
        number = world.numbers["batch read"]
        partitions = [partition for topic in self.topics for partition in self.partitions_of(topic)]
        group = f"{LOOKING}{number}"
        for partition in partitions:
            ends = [m.position + UNIT for m in self.truth.of(partition) if m.lost is None]
            position = ends[int(planned.strength * len(ends))] if ends else 0
            try:
                self.tubemq.move_group(group, partition.topic, partition.broker_id, partition.partition_id, position)
            except ConfigError:
                return
        before = {partition: self.group_position(group, partition) for partition in partitions}
        losses, crashes = len(self.truth.losses), len(self.troubles)
        stored = [
            m
            for topic in self.topics
            for m in self.truth.of_topic(topic)
            if m.lost is None and self.reading.is_wanted(m)
        ]
        app = Application(world, f"batch{number}", self.setting.unrest, max_failures=1 + planned.number % 2 * 3)
        raw = self.raw(
            **{
                "tubemq.group": group,
                "subscribe": ",".join(self.topics),
                "startingoffsets": "earliest",
                "failondataloss": "false",
            }
        )
        for name in ("maxoffsetspertrigger", "headsintervalms", "commitoffsets"):
            raw.pop(name, None)
        world.tell(f"batch{number}", f"reads all topics in group {group}")
        call = app.jvm.start("batch", partial(batch_read, app, raw, 1 + planned.number % 2))
        if planned.number % 2 == 0:
            world.at(planned.strength**3 * 2, self._kill_reader, app, planned.number)
        call.wait()
        if call.error is None and len(self.truth.losses) == losses:
            for rows in call.result():
                self.guarded(self._check_batch_read, rows, stored)
        elif isinstance(call.error, Exception):
            error = call.error.cause if isinstance(call.error, StageError) else call.error
            if not isinstance(error, (TubeMQError, Killed)):
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

    def _check_batch_read(self, rows: list[Row], stored: list[object]) -> None:
        given = [(row.partition, row.message_id) for row in rows]
        if len(set(given)) != len(given):
            raise BrokenError("rows_exact", "a batch read gives a message twice")
        missing = [m for m in stored if (m.partition, m.message_id) not in set(given)]  # type: ignore[attr-defined]
        if missing:
            raise BrokenError("rows_exact", f"a batch read misses {missing[0]} and {len(missing) - 1} more")

    KINDS: ClassVar[dict[str, Callable[[ReadingSchedule, Disturbance], None]]] = {
        **SERVER_KINDS,
        "crash broker": crash_broker,
        "empty disk": empty_disk,
        "kill driver": kill_driver,
        "kill worker": kill_worker,
        "stop query": stop_query,
        "flush": flush,
        "retention": expire,
        "topic anew": recreate_topic,
        "enlarge topic": enlarge_topic,
        "move group": move_group,
        "close topic": change_rights,
        "burst": burst,
        "leave out topic": leave_out_topic,
        "rival": start_rival,
        "batch read": read_batch,
        "java consumer": start_java_consumer,
        "java producer": start_java_producer,
        "rotate token": rotate_token,
    }


__all__ = ["Loss", "ReadingSchedule"]
