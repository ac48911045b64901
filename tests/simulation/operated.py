# SPDX-License-Identifier: Apache-2.0
"""What the schedules of all families have: a query whose operator starts it again, foreign producers, guests, and an
administrator."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from math import inf
from typing import Any, ClassVar

from tests.simulation.network import NAT, Weather
from tests.simulation.promises import BrokenError
from tests.simulation.schedule import Disturbance, Schedule, Setting, make_unrest, make_weather, small_servers
from tests.simulation.servers import CRASH, DELETED, RETENTION
from tests.simulation.spark import Application, Checkpoint, StageError, StreamQuery
from tests.simulation.world import Call, Killed
from tubemq_spark.client.settings import RETRY_MAX_ELAPSED_MS
from tubemq_spark.client.timings import Timings
from tubemq_spark.errors import ConfigError, PositionMovedError, TransportError
from tubemq_spark.protocol.message import EPOCH, format_msg_time
from tubemq_spark.protocol.metadata import Partition

ELAPSED = RETRY_MAX_ELAPSED_MS.name.lower()
RETRY_FOR = RETRY_MAX_ELAPSED_MS.preset / 1000  # seconds, without the option

_CLUSTER_LIMIT, TOPIC_LIMIT = 2_000, 16_000  # bytes of a message
LONG = 13_000
"""Bytes. A broker adds 10 KB to the cluster's limit, and leaves a longer message out when it reads its memory."""

Possible = Sequence[tuple[float, str, tuple[str, ...]]]
"""How likely a setting has an option, its name, and its values."""


class OperatedSchedule(Schedule):
    """One streaming query. Subclasses make it (`new_query`), and say when it has done all (`has_all`)."""

    SLOTS = 10
    KINDS = (
        *Schedule.KINDS,
        *("crash broker", "empty disk", "kill driver", "kill worker", "stop query"),
        *("flush", "retention", "enlarge topic", "close topic", "burst"),
        *("data retention", "swap brokers"),
    )
    EXPLANATIONS: ClassVar[Mapping[type[BaseException], frozenset[str]]] = {}  # of errors, by words of `trouble`
    CLIENTS: ClassVar[str]  # that a topic is closed for: "consumers" or "producers"
    CATCH_UP: ClassVar[float]  # seconds that a query may need after the last disturbance
    host = "driver host"  # the same for all runs, so that its clock can be behind that of an earlier run
    topics: tuple[str, ...]
    fed_topics: tuple[str, ...]  # that foreign producers send to
    checkpoint: Checkpoint
    options: dict[str, str]
    has_times = False  # of messages, in their attributes
    raised_at: dict[str, float]  # when topics got a higher limit of messages than the cluster's

    def make_setting(self, r: random.Random) -> Setting:
        """Return a setting that a subclass completes."""
        return Setting(
            brokers=r.choice((1, 1, 1, 1, 2)),
            masters=r.choice((1, 1, 2)),
            partitions=r.choice((1, 1, 1, 1, 2)),
            stores=r.choice((1, 1, 1, 1, 2)),
            weather=make_weather(r),
            unrest=make_unrest(r),
            config=small_servers(r),
            kinds=tuple(kind for kind in self.KINDS if r.random() < 0.3),
            rate=r.choice((0.3, 0.5, 0.7)),
            extra={"pause": r.choice((0.1, 0.1, 1.0, 20.0)), "max_failures": r.choice((1, 2, 4))},
        )

    # -- for subclasses -------------------------------------------------------------------------------------------

    def new_query(self, app: Application) -> StreamQuery:
        raise NotImplementedError

    def judge(self, query: StreamQuery, error: BaseException) -> None:
        """A query has ended by an error. Something must explain it."""
        raise NotImplementedError

    def message(self, topic: str, number: int) -> tuple[bytes, str | None]:
        """Return body and type of a message of a foreign producer."""
        raise NotImplementedError

    def has_all(self) -> bool:
        """Return True if nothing is left to do for the query."""
        raise NotImplementedError

    def at_end(self) -> None:
        """Check what must hold when the query has ended."""
        raise NotImplementedError

    # -- the actors -----------------------------------------------------------------------------------------------

    def create_topic(self, topic: str, *, limit: int | None = None) -> None:
        """Create a topic, or raise its limit of messages to `limit`."""
        limit = limit or self.setting.extra.get("topic_limit")
        if topic not in self.tubemq.topics:
            self.raised_at.pop(topic, None)
        if limit is not None:
            self.raised_at.setdefault(topic, self.world.now)
        self.tubemq.create_topic(topic, self.setting.partitions, self.setting.stores, max_msg_size=limit)

    def filling(self, topic: str, number: int) -> bytes:
        """Return what makes a message long, if it shall be so and the topic allows it."""
        # A broker takes over a raised limit later than the masters tell it, and they may be slow to answer.
        raised_at = self.raised_at.get(topic, inf)
        takes = 0.0 if raised_at == 0.0 else 15.0 if self.has_weather or self.troubles else 1.5
        is_long = self.world.hash("long", number) % 100 < 100 * self.setting.extra.get("long", 0.0)
        return b"-" * LONG if is_long and self.world.now - raised_at >= takes else b""

    def start_actors(self, feed: Iterable[tuple[float, str, int, int]]) -> None:
        """`feed` has what foreign producers send: time, topic, number of the partition, number of messages."""
        self.network.behind_nat = self.setting.extra.get("behind_nat", False)
        self.app: Application | None = None
        self.query: StreamQuery | None = None
        self.is_finished = False
        self.guests: list[Call[Any]] = []  # that have come, and may have gone
        self.fed = self.world.start("feeder", self._feed, feed)
        self.operator = self.world.start("operator", self._operate)

    def _feed(self, feed: Iterable[tuple[float, str, int, int]]) -> None:
        for at, topic, number, count in feed:
            self.world.sleep(max(0.0, at - self.world.now))
            self.send(topic, number, count)

    def send(self, topic: str, number: int, count: int) -> None:
        """Send messages that no query has written."""
        for _ in range(count):
            targets = self.partitions_of(topic)
            if not targets:
                return
            partition = targets[number % len(targets)]
            body, msg_type = self.message(topic, self.world.count("foreign message"))
            moment = EPOCH + timedelta(seconds=self.world.wall_time())
            at, time = f"{partition.broker_id}:{partition.partition_id}", format_msg_time(moment)
            try:
                self.tubemq.send(topic, body, at, msg_type=msg_type, msg_time=time if self.has_times else None)
            except ConfigError:
                return  # its broker is down, or the topic is closed

    def _operate(self) -> None:
        """Run the query, and start it again when it ends, as an operator or a supervisor does."""
        while not self.is_finished:
            self._run_query()
            if not self.is_finished:
                self.world.sleep(self.pause())

    def pause(self) -> float:
        """Return the seconds until the query starts again."""
        pause: float = self.setting.extra["pause"]
        return pause if not self.is_calm else 0.5

    def _run_query(self) -> None:
        app = self.new_app("app", self.host, self.setting.extra["max_failures"])
        self.app = app
        self.query = query = self.new_query(app)
        query.ended.wait()
        killed = isinstance(query.ended.error, Killed)
        if query.error is not None:
            self.judge(query, query.error)
        elif not killed and query.ended.error is not None:
            raise query.ended.error
        self.query = None
        if killed:
            self.trouble("zombie")
        else:
            self.ended_itself(query)
            app.end()

    def ended_itself(self, query: StreamQuery) -> None:
        """The query has ended, and nobody has killed it."""

    def new_app(self, name: str, host: str = "", max_failures: int = 4) -> Application:
        name += str(self.world.count(name))
        return Application(self.world, name, self.setting.unrest, max_failures=max_failures, host=host)

    def raw(self, **more: str) -> dict[str, str]:
        if self.network.behind_nat:
            ports = {one: self.tubemq.broker_address(one).partition(":")[2] for one in self.tubemq.broker_ids}
            more["tubemq.brokers.addresses"] = ",".join(f"{one}={NAT}:{port}" for one, port in ports.items())
        return {"tubemq.master": self.tubemq.master, "tubemq.rpc.framing": "standard", **more}

    def explain(self, who: str, error: BaseException) -> None:
        """Break a promise if nothing explains the error."""
        recent = self.recent_troubles()
        if isinstance(error, Killed) and "kill worker" in self.came:
            return
        if ("not every entry" in str(error) and f"in {RETRY_FOR:g} s it" not in str(error)) or (
            "too long for its broker" in str(error)
            and (f"in {RETRY_FOR:g} s the" not in str(error) or "deleted" in recent)
        ):
            # A store got a second partition after the plan, a fetch ended late, or the run waits for the flush, perhaps
            # of a topic that is created again meanwhile. As the error advises:
            self.options.pop(ELAPSED, None)
            return
        # Retention that moves a cursor fails an attempt in a shared store; the next one begins behind what is gone.
        # Two may run at once.
        has_few = self.setting.extra.get("max_failures", 4) <= 2 and "nothing can prove" in str(error)
        is_moved = isinstance(error, PositionMovedError) and (has_few or not self._only_retention)
        if (isinstance(error, TransportError) or is_moved) and (self.has_weather or recent):
            return
        if any(isinstance(error, kind) and recent & words for kind, words in self.EXPLANATIONS.items()):
            return
        self.is_unexplained(who, error)

    def is_unexplained(self, who: str, error: BaseException) -> None:
        self.breaks(BrokenError("errors_explained", f"{who} ended by {type(error).__name__}: {str(error)[:300]}"))

    def recent_troubles(self) -> set[str]:
        # Four attempts of a task, each of which tries so long, may pass until a query ends.
        return {what for at, what in self.troubles if self.world.now - at < 5 * RETRY_FOR}

    @property
    def _only_retention(self) -> bool:
        """Return True if a store can have lost nothing but what retention removed, and nobody has moved the group."""
        return not self.has_weather and self.recent_troubles() == {"retention"}

    @property
    def has_other_attempts(self) -> bool:
        """Return True if a task may have had several attempts."""
        return "kill worker" in self.came or self.world.numbers["speculation"] > 0

    @property
    def has_weather(self) -> bool:
        weather = self.setting.weather
        return weather != Weather(longest=weather.longest)

    def invite(self, name: str, function: Callable[[Disturbance], None], planned: Disturbance) -> None:
        self.guests.append(self.world.start(name, function, planned))

    @staticmethod
    def error_of(call: Call[Any]) -> BaseException | None:
        """Return the error of a stage or of a call."""
        return call.error.cause if isinstance(call.error, StageError) else call.error

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

    # -- the end --------------------------------------------------------------------------------------------------

    def calm_down(self) -> None:
        super().calm_down()
        for topic in self.topics:
            self._open(topic)

    def send_last(self) -> None:
        """Send what a query needs to notice the last disturbances. Nobody else sends any more."""

    def rest(self) -> None:
        world = self.world
        world.run(lambda: self.fed.done and all(guest.done for guest in self.guests))
        for guest in self.guests:
            guest.result()
        self.send_last()
        if self.must_restart() and self.query is not None:
            self.query.stop()
        end = world.now + self.CATCH_UP
        while not self.has_all():
            if world.now > end:
                raise BrokenError(
                    "comes_to_rest",
                    f"{self.checkpoint.committed} batches are committed {self.CATCH_UP:.0f} s after the last "
                    "disturbance, and more is to do",
                )
            world.pass_time(0.5)
        weather = self.setting.weather
        if self.held_until > world.now:
            world.pass_time(self.held_until - world.now + Timings().max_poll_interval)
        world.pass_time(1.0 + 2 * weather.longest)  # whatever is late arrives
        world.pass_time(0.0 if self.query is None else self.query.interval)  # one more trigger passes
        self.is_finished = True
        self.last_told = -1 if self.query is None else self.query.told
        if self.query is not None:
            self.query.stop()
        world.run(lambda: self.operator.done)
        self.operator.result()
        self.at_end()

    def is_waiting(self) -> bool:
        """Return True if the query has nothing to do."""
        query = self.query
        is_idle = query is not None and query.is_running and query.state == "waits for messages"
        return is_idle and not self.checkpoint.is_pending

    def must_restart(self) -> bool:
        """Return True if the query as it is would need hours."""
        return self.setting.interval > 1.0

    # -- disturbances ---------------------------------------------------------------------------------------------

    def topic_of(self, planned: Disturbance) -> str | None:
        """Return the topic that a disturbance concerns, if there is one."""
        topic = self.topics[planned.number % len(self.topics)]
        return topic if topic in self.tubemq.topics else None

    def kill_driver(self, planned: Disturbance) -> None:
        if self.app is not None:
            self.app.kill()

    def kill_worker(self, planned: Disturbance) -> None:
        if self.app is not None and self.app.alive:
            self.app.kill_worker(planned.number)

    def stop_query(self, planned: Disturbance) -> None:
        if self.query is not None:
            self.query.stop()

    def flush(self, planned: Disturbance) -> None:
        if topic := self.topic_of(planned):
            self.tubemq.flush(topic)

    def retention(self, planned: Disturbance) -> None:
        if topic := self.topic_of(planned):
            self.world.tell("retention", f"removes messages of {topic}")
            self.trouble("retention")
            self.tubemq.expire(topic, planned.number % 4)
            self.note_losses(RETENTION)

    def data_retention(self, planned: Disturbance) -> None:
        """Data files go, and the index files that name their messages stay."""
        if topic := self.topic_of(planned):
            self.world.tell("retention", f"removes data of {topic}, whose index stays")
            self.trouble("retention")
            self.tubemq.expire(topic, int(planned.strength**2 * 20), data_only=True)
            self.note_losses(RETENTION)

    def swap_brokers(self, planned: Disturbance) -> bool:
        """Two brokers stop or crash, and each starts at the other's address, the second one maybe later."""
        ids = self.tubemq.broker_ids
        if len(ids) < 2 or self.network.behind_nat:  # whoever translates addresses follows the brokers
            return False
        one, other = ids[planned.number % len(ids)], ids[(planned.number + 1) % len(ids)]
        seconds = 0.2 + planned.strength**2 * 20
        later = planned.number // 2 % 3 * 2.0 * planned.strength
        how = "crash" if planned.number // 6 % 3 == 0 else "stop"
        self.world.tell(f"brokers {one} and {other}", f"{how}, and will start at each other's address")
        self.trouble(how, seconds + later)
        for broker_id in (one, other):
            self._end_broker(broker_id, how)
        self.tubemq.swap_addresses(one, other)
        self.world.at(seconds, self.start_broker, one)
        self.world.at(seconds + later, self.start_broker, other)
        return True

    def _end_broker(self, broker_id: int, how: str) -> None:
        if how == "stop":
            self.tubemq.stop_broker(broker_id)
            return
        self.crashes[broker_id].append(self.world.now)
        self.tubemq.crash_broker(broker_id)
        self.note_losses(CRASH)

    def enlarge_topic(self, planned: Disturbance) -> None:
        if topic := self.topic_of(planned):
            self.world.tell("administrator", f"adds partitions to {topic}")
            self.tubemq.create_topic(topic, self.setting.partitions + planned.number % 2, self.setting.stores + 1)
            self.send(topic, planned.number, 2)

    def raise_limit(self, planned: Disturbance) -> bool:
        """A topic may have longer messages than before, and gets some later."""
        topic = self.topic_of(planned)
        if topic is None or "topic_limit" not in self.setting.extra:
            return False
        self.world.tell("administrator", f"lets topic {topic} have messages of {TOPIC_LIMIT} bytes")
        self.create_topic(topic, limit=TOPIC_LIMIT)
        self.world.at(2.0 + planned.strength * 20, self.send, topic, planned.number, 1 + planned.number % 10)
        return True

    def close_topic(self, planned: Disturbance) -> None:
        if topic := self.topic_of(planned):
            seconds = 0.5 + planned.strength**2 * 20
            self.world.tell("administrator", f"closes topic {topic} for {self.CLIENTS} for {seconds:.1f} s")
            self.trouble("closed", seconds)
            is_reading = self.CLIENTS == "consumers"
            self.tubemq.close_topic(topic, publish=not is_reading, subscribe=is_reading)
            self.world.at(seconds, self._open, topic)

    def _open(self, topic: str) -> None:
        if topic in self.tubemq.topics:
            self.tubemq.open_topic(topic)

    def rotate_token(self, planned: Disturbance) -> None:
        times = 1 + planned.number % 8  # brokers accept the last six
        self.world.tell("master", f"makes {times} new visit tokens")
        self.tubemq.rotate_visit_token(times)

    def burst(self, planned: Disturbance) -> None:
        topic = self.fed_topics[planned.number % len(self.fed_topics)]
        half = 5 + int(planned.strength * 15)
        self.send(topic, planned.number, half)
        if planned.number % 3 and topic in self.tubemq.topics:
            self.tubemq.flush(topic)  # a crash then loses the second half
        self.send(topic, planned.number, half)

    def crash_broker(self, planned: Disturbance) -> None:
        self._crash_broker(planned, CRASH)

    def empty_disk(self, planned: Disturbance) -> None:
        self.trouble("deleted")
        self._crash_broker(planned, DELETED)

    def _crash_broker(self, planned: Disturbance, how: str) -> None:
        broker_id = self.broker_of(planned)
        self.world.tell(f"broker {broker_id}", "crashes" if how == CRASH else "loses its disk")
        seconds = 0.2 + planned.strength**2 * 20
        self.trouble("crash", seconds)
        self.crashes[broker_id].append(self.world.now)
        self.tubemq.crash_broker(broker_id)
        if how == DELETED:
            self.tubemq.lose_disk(broker_id)
        self.note_losses(how)
        self.world.at(seconds, self.start_broker, broker_id)


def let_messages_be_long(r: random.Random, setting: Setting, limits: Sequence[int | None]) -> None:
    """Let topics have one of `limits`, and some messages be longer than the cluster allows. None: until the limit is
    raised, they have the cluster's."""
    setting.partitions = r.choice((1, 2, 3))
    setting.config = replace(
        setting.config, max_msg_size=_CLUSTER_LIMIT, mem_cache_flush_interval=r.choice((0.5, 5.0, 20.0))
    )
    setting.kinds += ("flush", *("raise limit",) * 4)
    setting.extra = {**setting.extra, "topic_limit": r.choice(limits), "long": r.choice((0.1, 0.4))}


def some_options(r: random.Random, possible: Possible) -> dict[str, str]:
    return {name: r.choice(values) for chance, name, values in possible if r.random() < chance}
