"""Plays a history on a cluster with a query, and judges what came of it."""

from __future__ import annotations

import json
import logging
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol, TypeVar
from unittest import mock

from tests.histories.calls import KilledError, StoppedError, WorkerKilledError
from tests.histories.frame import Frame
from tests.histories.ledger import BrokenError, Extent, Filters, Output, Positions, store_of
from tests.histories.script import TYPES, Event, History
from tests.histories.world import RIVAL, World
from tests.without_spark.source import GIVEN
from tubemq_spark.client.clock import SystemClock
from tubemq_spark.client.consumer.claim_conflict import ClaimConflict
from tubemq_spark.client.consumer.driver_claims import DriverClaims
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
from tubemq_spark.protocol.constants import Framing
from tubemq_spark.protocol.metadata import Partition

PATIENCE = 120.0  # seconds that an operation is tried for at the end, when everything is in service
FULL_CHECK = "_is_full_check_due"  # of `DriverClaims`
SLOW = 10.0  # seconds that an answer is waited for, where none are lost
HASTE = 1000.0  # of the servers' clock while a query waits for its own earlier run
SILENT = ("drop_reply", "drop_request", "silence")

# Which troubles explain that a run of the query ends with an error, besides losses, which are judged one by one.
_EXPLAINS: dict[type[TubeMQError], set[str]] = {
    FencedError: {"advance", "fault"},
    PartitionOccupiedError: {"rival", "other query", "fault"},  # a claim may not be given back
    PositionMovedError: {"move", "advance", "fault", "down", "kill", "late"},
    TransportError: {"down", "fault", "master"},
    ServerError: {"down", "fault", "master", "grow"},  # entries of a partition that is new are waited for, in memory
    ConfigError: {"empty master"},
}
_TROUBLES: dict[str, set[str]] = {
    "crash": {"down"},
    "start": {"down"},
    "restart": {"down"},
    "switch_master": {"master"},
    "fault": {"fault"},
    "advance": {"advance"},
    "rival_comes": {"rival"},
    "move_group": {"move"},
    "kill": {"kill"},
    "kill_worker": {"kill"},
    "grow": {"grow"},
}
_RANGE = re.compile(r"\[(\d+), (\d+)\)")
_PARTITION = re.compile(r"\b(\d+):([a-z]\w*):(\d+)\b")


Killed = TypeVar("Killed", KilledError, WorkerKilledError)


class Query(Protocol):
    """As `calls.Query` and `spark.SparkQuery` are."""

    options: dict[str, str]
    point: Callable[[str], None]
    begins: Callable[[Partition], None]
    lost_at: Sequence[float]
    is_prompt: bool
    """Whether all that a call brings about is done when the call returns."""
    clock: float
    leave_fetch: Callable[[int, int, int], None]

    def let_others_go_on(self) -> bool: ...

    @property
    def running(self) -> bool: ...

    @property
    def pending(self) -> bool: ...

    @property
    def logged(self) -> dict[Partition, int]: ...

    @property
    def ends(self) -> dict[Partition, int]: ...

    @property
    def starts(self) -> dict[Partition, int]: ...

    @property
    def rows(self) -> Output: ...

    def forget_commit(self) -> bool: ...

    def forget_offset(self) -> bool: ...

    def start(self, available_now: bool = False) -> None: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...

    def step(self) -> bool: ...


class Pace:
    """How long things may take: `hurry` is how many seconds an operation is tried for while anything may be down,
    `quick` how many an answer is waited for where some are lost, `claim_timeout` for how many a partition, and `limit`
    is for the end of a history."""

    def __init__(self, *, hurry: float, quick: float, claim_timeout: float, limit: float) -> None:
        self.hurry, self.quick, self.claim_timeout, self.limit = hurry, quick, claim_timeout, limit


class Player:
    """`stats` counts what came about, for who wants to know whether the histories reach far."""

    def __init__(
        self,
        history: History,
        world: World,
        new_query: Callable[[dict[str, str], Callable[[], bool]], Query],
        pace: Pace,
        warnings: Callable[[], Iterable[str]],
    ) -> None:
        """`new_query` makes a query with these options; it is told how to ask whether there is more to read.
        `warnings` gives what the query's processes said since the last time, besides those of this one."""
        self.history = history
        self.stats: Counter[str] = Counter()
        self._world = world
        self._pace = pace
        self._warnings = warnings
        self._silent = any(event.args.get("how") in SILENT for event in history.events)
        self._query = new_query(self._options(pace.hurry), lambda: bool(self._behind()))
        self._query.point = self._at
        self._query.begins = world.ledger.begins
        self._query.lost_at = world.ledger.lost_at
        self._query.leave_fetch = world.leave_fetch
        world.seen = lambda: self._query.logged
        self._times = 0  # that the query came to the point that the next event waits for
        self._queue: deque[Event] = deque(history.events)
        # Where answers are waited for so shortly, a slow machine loses some as well.
        self._troubles: set[str] = {"fault"} if self._silent else set()
        self._accepted: dict[str, str] = {}
        self._foreign_claims = False
        self._frame = Frame()

    def play(self) -> None:
        """Raises `BrokenError`, or what should not have come up."""
        try:
            with (
                self._listening(),
                self._waiting(),
                mock.patch.object(DriverClaims, FULL_CHECK, getattr(DriverClaims, FULL_CHECK)),
            ):
                while self._queue:
                    self._act(self._queue.popleft())
                self._finish()
        except BaseException:
            self._query.kill()
            raise

    # -- events -------------------------------------------------------------------------------------------------------

    def _at(self, point: str) -> None:
        """The query has come to a point: what waits for it comes about."""
        while self._queue and self._queue[0].at == point:
            self._times += 1
            if self._times < self._queue[0].nth:
                return
            self._times = 0
            self._act(self._queue.popleft(), within=point)

    def _act(self, event: Event, within: str | None = None) -> None:
        self.stats[event.kind if within is None else f"{event.kind} within"] += 1
        args, query = event.args, self._query
        what = args["what"] if event.kind == "during" else event.kind
        self._troubles |= _TROUBLES.get(what, set())
        if what == "move_group":
            setattr(DriverClaims, FULL_CHECK, lambda *_: True)  # else a query may notice that a minute later
        if args.get("empty_for"):
            self._troubles.add("empty master")
        if event.kind == "run":
            self._run(args["batches"], args["available_now"])
        elif event.kind == "stop":
            if within:
                raise StoppedError
            query.stop()
        elif event.kind == "kill":
            self._foreign_claims = self._foreign_claims or not query.logged
            if within:
                raise self._late(KilledError(), args)
            query.kill()
        elif event.kind == "kill_worker":
            if within == GIVEN:
                raise self._late(WorkerKilledError(), args)
        elif event.kind == "plan_batch":
            if not query.running and not self._frame.plan(self._options(self._pace.hurry)):
                self._foreign_claims = True  # it may not have given them back
        elif event.kind == "use_batch":
            self._use_batch()
        elif event.kind == "clock_step":
            self._troubles.add("clock")
            query.clock += args["seconds"]
        elif event.kind == "forget_commit":
            query.forget_commit()
        elif event.kind == "forget_offset":
            if query.forget_offset():
                self._world.ledger.forgets(query.logged)
                self._foreign_claims = self._foreign_claims or not query.logged
        else:
            self._world.change(event.kind, args, TYPES)

    def _late(self, error: Killed, args: dict[str, Any]) -> Killed:
        error.late = args.get("late", 0)
        if error.late:
            self._troubles.add("late")
        return error

    # -- the query ----------------------------------------------------------------------------------------------------

    def _run(self, batches: int, available_now: bool) -> bool:
        """So many micro-batches at most; False when the query failed."""
        self._times = 0
        try:
            if available_now:
                self._query.stop()
            if not self._query.running:
                self._query.start(available_now)
            for _ in range(batches):
                # The partitions of a store take turns to be asked, and each shows where its own group stands.
                if not any(self._query.step() for _ in range(1 + len(self._query.ends))):
                    self._check_idle()
                    break
                self.stats["micro-batches"] += 1
            if available_now:
                self._query.stop()
        except (KilledError, StoppedError, WorkerKilledError):
            self._query.stop()
        except TubeMQError as error:
            self._query.stop()
            self._judge(error)
            # A query without an offset in its log begins as another one, which must wait for the claims of this one.
            self._foreign_claims = self._foreign_claims or not self._query.logged
            return False
        return True

    def _use_batch(self) -> None:
        """A batch read of the same group, planned maybe long before, leaves the group where it stands by now."""
        if self._query.running:
            return
        stood = {partition: self._world.group_offset(partition) for partition in self._frame.partitions}
        if not self._frame.read():
            self._foreign_claims = True
        elif not self._troubles & {"fault", "down"}:
            stands = {partition: self._world.group_offset(partition) for partition in stood}
            moved = {p: (at, stands[p]) for p, at in stood.items() if at not in (None, stands[p])}
            if moved:
                raise BrokenError(f"a batch read moved the group from (first) to (second): {moved}")

    def _check_idle(self) -> None:
        """A query that has just found nothing new has put the group where it must stand."""
        late = any(event.kind == "during" for event in self.history.events)  # which may befall the very last call
        follows = self._query.options.get("commitOffsets") != "false"
        if self._query.is_prompt and follows and not late and (wrong := self._elsewhere(self._query.ends)):
            raise BrokenError(f"an idle query's group stands elsewhere (first) than it must (second): {wrong}")

    def _judge(self, error: TubeMQError) -> None:
        """Whether the query may fail so."""
        name = type(error).__name__
        self.stats[name] += 1
        if isinstance(error, DataLossError):
            if self._query.options.get("failOnDataLoss", "true") == "false":
                raise BrokenError("the query fails for a loss, with failOnDataLoss=false") from error
            partition = Partition(error.broker_id, error.topic, error.partition)
            self._world.ledger.report(partition, error.asked, error.offered, str(error))
            self._accepted = {"failOnDataLoss": "false"}
            self._query.options |= self._accepted
            return
        troubles = self._troubles | ({"other query"} if self._foreign_claims else set())
        if "visit token" in str(error) and "master" not in troubles:
            raise BrokenError(f"no new visit token was got from a master that is there: {error}") from error
        allowed = next((causes for kind, causes in _EXPLAINS.items() if isinstance(error, kind)), set[str]())
        if isinstance(error, FencedError) and "holds the partition for more than" in str(error):
            allowed = allowed | {"clock"}  # a dead run by a clock that was ahead was waited for, though not long enough
        if not allowed & troubles:
            raise BrokenError(f"the query failed and nothing explains it: {name}: {error}") from error

    # -- the end ------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Everything is in service again: the query reads what is left, and the ledger is compared."""
        world, query = self._world, self._query
        world.calm()
        deadline = time.monotonic() + self._pace.limit
        ever = set(self._troubles)
        if not query.running or not self._run(100, False):  # else it goes on through all that happened
            query.stop()
            self._troubles &= {"empty master", "clock", "late"}
            query.options = {**self._options(PATIENCE), **self._accepted}
            if self._foreign_claims:
                world.let_claims_expire()
                self._foreign_claims = False
        # A run ends with a question for more that finds nothing: then the last micro-batch is known to be committed.
        while not (self._run(100, False) and not query.pending and not self._behind()):
            if time.monotonic() > deadline:
                raise BrokenError(f"the query does not catch up: {self._behind()}")
            time.sleep(0.02)
        self._check_group(ever, deadline)
        query.stop()
        # Spark ends the source's process while it says good-bye: what is left then expires, or the next run takes it.
        left = {p: name for p, name in world.claims().items() if name != RIVAL}
        if left and query.is_prompt:
            raise BrokenError(f"claims are left behind: {left}")
        self._hear(self._warnings())
        world.check_acknowledged()
        world.ledger.check(query.rows, query.starts, self._filters())
        self.stats["losses"] += len(world.ledger.losses)
        self.stats["rows"] += sum(map(len, query.rows.values()))

    def _behind(self) -> dict[Partition, tuple[int, int]]:
        """Where the query is not at the end of the store: where it is, and the end."""
        ends = self._query.ends
        wanted = {
            p: self._world.ledger.extents.get(store_of(p), Extent(0, 0)).end
            for p in self._world.partitions()
            if (p in ends or self._is_to_be_read(p)) and p in self._assigned(p)
        }
        return {p: (ends.get(p, -1), end) for p, end in wanted.items() if ends.get(p, -1) != end}

    def _is_to_be_read(self, partition: Partition) -> bool:
        """A query that begins at the latest names no partitions before its first micro-batch."""
        extent = self._world.ledger.extents.get(store_of(partition))
        begins_early = self._query.options.get("startingOffsets") in ("earliest", "group")
        return extent is not None and extent.end > 0 and (begins_early or bool(self._query.logged))

    def _assigned(self, partition: Partition) -> Collection[Partition]:
        """The chosen partitions; this one when all are."""
        text = self.history.setting.options.get("assign")
        if text is None:
            return [partition]
        keys = ((topic, *map(int, key.split(":"))) for topic, keys in json.loads(text).items() for key in keys)
        return [Partition(broker_id, topic, number) for topic, broker_id, number in keys]

    def _check_group(self, ever: set[str], deadline: float) -> None:
        follows = self._query.options.get("commitOffsets") != "false"
        if not follows and (ever & {"down", "move", "fault", "rival", "kill"} or self._world.ledger.losses):
            return  # all of these may move or forget a position that nobody says again
        wanted = self._query.ends if follows else self._query.starts
        while wrong := self._elsewhere(wanted):
            if self._query.is_prompt or time.monotonic() > deadline:
                raise BrokenError(f"the group stands elsewhere (first) than it must (second): {wrong}")
            time.sleep(0.05)

    def _elsewhere(self, wanted: Positions) -> dict[Partition, tuple[int | None, int]]:
        found = {partition: (self._world.group_offset(partition), position) for partition, position in wanted.items()}
        extents = self._world.ledger.extents
        first = {partition: extents.get(store_of(partition), Extent(0, 0)).first for partition in wanted}
        return {
            partition: (stands, position)
            for partition, (stands, position) in found.items()
            # A broker moves a group forwards to where retention has come, which is a loss for the next micro-batch.
            if stands not in (position, max(position, first[partition]))
        }

    # -- around -------------------------------------------------------------------------------------------------------

    def _filters(self) -> Filters:
        text = self.history.setting.options.get("filters")
        if text is None:
            return {}
        if text.startswith("{"):
            return {topic: frozenset(types) for topic, types in json.loads(text).items()}
        return dict.fromkeys(self._world.topics, frozenset(text.split(",")))

    def _options(self, retry_for: float) -> dict[str, str]:
        chosen, pace = self.history.setting.options, self._pace
        rpc_timeout = pace.quick if self._silent and retry_for < PATIENCE else SLOW
        return {
            "tubemq.master": self._world.master,
            "tubemq.group": self._world.group,
            "tubemq.rpc.framing": "standard" if self._world.framing is Framing.STANDARD else "prefixed",
            "tubemq.rpc.timeoutMs": str(int(rpc_timeout * 1000)),
            "tubemq.retry.maxElapsedMs": str(int(retry_for * 1000)),
            "tubemq.claim.timeoutMs": str(int(pace.claim_timeout * 1000)),
            "headsIntervalMs": "0",
            "metadataIntervalMs": "100",
            **({} if "assign" in chosen else {"subscribe": ",".join(self._world.topics)}),
            **chosen,
        }

    def _hear(self, lines: Iterable[str]) -> None:
        """Notes the losses that the connector warns of."""
        for text in lines:
            partition = _PARTITION.search(text)
            ranges = _RANGE.findall(text)
            if partition is not None and ranges and ("lost" in text or "gone" in text):
                broker_id, topic, number = partition.groups()
                first, end = map(int, ranges[-1])  # the range that was asked for may stand before it
                self._world.ledger.report(Partition(int(broker_id), topic, int(number)), first, end, text)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """While a task waits for a partition another one goes on, which may have it. After a step of the clock a claim
        of the query's own may have to expire, and so may one of a scan that was killed: where nobody else can go on the
        servers' time goes by quickly."""

        def sleep(seconds: float) -> None:
            if self._query.let_others_go_on():
                return
            time.sleep(seconds)
            if "clock" in self._troubles or self.history.setting.scans > 1:
                self._world.pass_time(seconds * HASTE)

        class Turns(SystemClock):
            def sleep(self, seconds: float) -> None:
                sleep(seconds)

        original = ClaimConflict.pause

        def pause(conflict: ClaimConflict) -> None:
            conflict._settings = replace(conflict._settings, clock=Turns())
            original(conflict)

        with mock.patch.object(ClaimConflict, "pause", pause):
            yield

    @contextmanager
    def _listening(self) -> Iterator[None]:
        logger, handler = logging.getLogger("tubemq_spark"), _Handler(self._hear)
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)


class _Handler(logging.Handler):
    def __init__(self, hear: Callable[[list[str]], None]) -> None:
        super().__init__(logging.WARNING)
        self._hear = hear

    def emit(self, record: logging.LogRecord) -> None:
        self._hear([record.getMessage()])
