# SPDX-License-Identifier: Apache-2.0
"""Schedules of reading with what disturbs them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tests.simulation.connector import FileSink, Row, TubeMQSource, batch_read
from tests.simulation.java import JavaConsumer, JavaProducer
from tests.simulation.promises import UNIT, BrokenError
from tests.simulation.reading import GROUP, LIMITS, OperatedReading
from tests.simulation.reading_promises import Reading, Report
from tests.simulation.schedule import Disturbance, Moment
from tests.simulation.servers import CRASH, DELETED, RETENTION, Message
from tests.simulation.spark import Checkpoint, StreamQuery
from tests.simulation.world import Killed
from tubemq_spark.client.consumer.working_group import stream_group
from tubemq_spark.errors import ConfigError, TubeMQError
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.testing.broker.group_offsets import Key

_GAVE_ROWS = "worker has rows that it gave to Spark"
_FETCHED, _THEN = "worker reads: get_message", Moment("state", None)


class ReadingSchedule(OperatedReading):
    """Each method plans or begins one kind of disturbance of `KINDS`."""

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

    def new_topic(self, planned: Disturbance) -> bool:
        """Somebody creates a topic that `subscribePattern` matches."""
        names = [name for name in "vwx" if name not in self.topics]
        if not names or self.setting.extra["names"] != "subscribePattern":
            return False
        self.world.tell("administrator", f"creates topic {names[0]}")
        self.create_topic(names[0])
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

    def data_retention(self, planned: Disturbance) -> None:
        state, nth = ("", "worker begins to read", _FETCHED, _GAVE_ROWS)[planned.number % 4], planned.number // 4 % 3
        if state:  # before the first fetch of a task, while it fetches, and while Spark takes its rows
            self.when(state, replace(planned, number=0, moment=_THEN), 1 + nth)
            return
        super().data_retention(planned)

    def swap_brokers(self, planned: Disturbance) -> bool:
        if not super().swap_brokers(planned):
            return False
        self._excuse_all()  # as after `stop_broker`
        return True

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
        if group != GROUP:
            self.moved_tasks[partition] = self.world.now
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
        self._excuse_all()  # the broker has stored what it gave to strangers, also if they were killed since

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
        for name in (*LIMITS, "minoffsetspertrigger", "maxtriggerdelay", "headsintervalms", "commitoffsets"):
            raw.pop(name, None)
        for name in ("startingtimestamp", "startingoffsetsbytimestampstrategy"):
            raw.pop(name, None)
        world.tell(app.name, f"reads all topics in group {group}")
        planned_at: list[float] = []
        call = app.jvm.start(
            "batch", partial(batch_read, app, raw, 1 + planned.number % 2, lambda: planned_at.append(world.now))
        )
        if planned.number % 2 == 0:
            world.at(planned.strength**3 * 2, app.kill_worker, planned.number)
        call.wait()
        if call.error is None:
            for rows in call.result():
                self.guarded(self._check_batch_read, rows, stored, planned_at[0], self.batch_reports[app.name])
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

    def _is_of_deleted_topic(self, message: Message) -> bool:
        """Whether the topic went after the message: a batch read has nothing that shows that it reads another topic."""
        return any(
            loss.store == message.partition.store and loss.how == DELETED and loss.at >= message.lost_at
            for loss in self.truth.losses
        )

    def _check_batch_read(
        self, rows: list[Row], stored: list[Message], planned_at: float, reports: list[Report]
    ) -> None:
        given = [(row.partition, row.message_id) for row in rows]
        if len(set(given)) != len(given):
            raise BrokenError("rows_exact", "a batch read gives a message twice")
        missing = [m for m in stored if m.lost is None and (m.partition, m.message_id) not in set(given)]
        if missing:
            raise BrokenError("rows_exact", f"a batch read misses {missing[0]} and {len(missing) - 1} more")
        unreported = [
            m
            for m in stored
            if m.lost == RETENTION
            and m.lost_at > planned_at
            and (m.partition, m.message_id) not in set(given)
            and not any(report.covers(m) for report in reports)
            and not self._is_of_deleted_topic(m)
        ]
        if unreported:
            raise BrokenError(
                "loss_reported", f"a batch read misses {unreported[0]} and {len(unreported) - 1} more, without a word"
            )
