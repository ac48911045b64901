# SPDX-License-Identifier: Apache-2.0
"""Play a history on a cluster with a query, and check the result."""

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
from tubemq_spark.client.consumer.claim_acquirer import ClaimConflict
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

PATIENCE = 120.0  # seconds for which an operation is retried at the end, when all servers run
FULL_CHECK = "_is_full_check_due"  # of `DriverClaims`
RPC_TIMEOUT = 10.0  # seconds; the RPC timeout if no replies are dropped
CLOCK_SPEED = 1000.0  # speed of the servers' clock while a query waits for its own earlier run
SILENT = ("drop_reply", "drop_request", "silence")
WITHIN_CALLS = ("during", "at_call")  # kinds of events: something happens within a request to the servers

# The troubles that excuse an error of the query. Losses are checked one by one instead.
_EXPLAINS: dict[type[TubeMQError], set[str]] = {
    FencedError: {"advance", "fault"},
    PartitionOccupiedError: {"rival", "other query", "fault"},  # a claim may not have been released
    PositionMovedError: {"move", "advance", "fault", "down", "kill", "late"},
    TransportError: {"down", "fault", "master"},
    ServerError: {"down", "fault", "master", "grow"},  # the query waits for the first entries of a new partition
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
    # The faults of one request, see `tests.request_faults`.
    **{fault: {"fault"} for fault in ("lost", "unanswered", "late", "cut")},
    "crash_peer": {"down", "master"},
}
_RANGE = re.compile(r"\[(\d+), (\d+)\)")
_PARTITION = re.compile(r"\b(\d+):([a-z]\w*):(\d+)\b")


Killed = TypeVar("Killed", KilledError, WorkerKilledError)


class Query(Protocol):
    """The interface of `calls.Query` and `spark.SparkQuery`."""

    options: dict[str, str]
    point: Callable[[str], None]
    begins: Callable[[Partition], None]
    lost_at: Sequence[float]
    is_prompt: bool
    """Whether a call has done all its work when it returns."""
    clock: float
    end_fetch_later: Callable[[int, int, int], None]

    def run_another_task(self) -> bool: ...

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
    """Times in seconds: `retry_for` while servers may be down, `rpc_timeout` if replies are dropped, `claim_timeout`
    while another client holds a partition, and `limit` for catching up at the end of a history."""

    def __init__(self, *, retry_for: float, rpc_timeout: float, claim_timeout: float, limit: float) -> None:
        self.retry_for, self.rpc_timeout, self.claim_timeout, self.limit = retry_for, rpc_timeout, claim_timeout, limit


class Player:
    """Plays one history. `stats` counts the events and their effects, to show how much the histories cover."""

    def __init__(
        self,
        history: History,
        world: World,
        new_query: Callable[[dict[str, str], Callable[[], bool]], Query],
        pace: Pace,
        warnings: Callable[[], Iterable[str]],
    ) -> None:
        """`new_query` returns a query with the given options; its second argument returns True if there are messages to
        read. `warnings` returns new log lines of the query's other processes."""
        self.history = history
        self.stats: Counter[str] = Counter()
        self._world = world
        self._pace = pace
        self._warnings = warnings
        self._silent = any(event.args.get("how") in SILENT for event in history.events)
        self._query = new_query(self._options(pace.retry_for), lambda: bool(self._behind()))
        self._query.point = self._at
        self._query.begins = world.ledger.begins
        self._query.lost_at = world.ledger.lost_at
        self._query.end_fetch_later = world.end_fetch_later
        world.seen = lambda: self._query.logged
        self._times = 0  # how often the query has reached the point that the next event waits for
        self._queue: deque[Event] = deque(history.events)
        # With such a short RPC timeout, replies are late on a slow machine, too.
        self._troubles: set[str] = {"fault"} if self._silent else set()
        self._accepted: dict[str, str] = {}
        self._foreign_claims = False
        self._frame = Frame()

    def play(self) -> None:
        """Play the history. Raise `BrokenError` if a promise is broken."""
        try:
            with (
                self._recording_warnings(),
                self._running_tasks_in_pauses(),
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
        """Run the events that wait for `point`, which the query has reached."""
        while self._queue and self._queue[0].at == point:
            self._times += 1
            if self._times < self._queue[0].nth:
                return
            self._times = 0
            self._act(self._queue.popleft(), within=point)

    def _act(self, event: Event, within: str | None = None) -> None:
        self.stats[event.kind if within is None else f"{event.kind} within"] += 1
        args, query = event.args, self._query
        what = args["what"] if event.kind in WITHIN_CALLS else event.kind
        self._troubles |= _TROUBLES.get(what, set())
        if what == "move_group":
            setattr(DriverClaims, FULL_CHECK, lambda *_: True)  # otherwise a query may notice this a minute later
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
            if not query.running and not self._frame.plan(self._options(self._pace.retry_for)):
                self._foreign_claims = True  # the failed plan may have left claims
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
        """Run at most `batches` micro-batches. Return False if the query failed."""
        self._times = 0
        try:
            if available_now:
                self._query.stop()
            if not self._query.running:
                self._query.start(available_now)
            for _ in range(batches):
                # The driver asks the partitions of a store in turn, and each answer has only its own position.
                if not any(self._query.step() for _ in range(1 + len(self._query.ends))):
                    self._check_idle()
                    break
                self.stats["micro-batches"] += 1
            if available_now:
                self._query.stop()
        except KilledError:
            self._query.stop()
            self._foreign_claims = self._foreign_claims or not self._query.logged
        except (StoppedError, WorkerKilledError):
            self._query.stop()
        except TubeMQError as error:
            self._query.stop()
            self._judge(error)
            # Without a logged offset, the next run is a new query, which must wait until these claims expire.
            self._foreign_claims = self._foreign_claims or not self._query.logged
            return False
        return True

    def _use_batch(self) -> None:
        """Read the frame, which was planned earlier. A batch read must not move the group."""
        if self._query.running:
            return
        before = {partition: self._world.group_offset(partition) for partition in self._frame.partitions}
        if not self._frame.read():
            self._foreign_claims = True
        elif self._troubles & {"fault", "down"}:
            return
        elif moved := self._misplaced({partition: at for partition, at in before.items() if at is not None}):
            raise BrokenError(f"a batch read moved the group to the first position from the second: {moved}")

    def _check_idle(self) -> None:
        """Check that the query, which found no new messages, has moved the group to its committed position."""
        late = any(event.kind in WITHIN_CALLS for event in self.history.events)  # the event may hit the last request
        follows = self._query.options.get("commitOffsets") != "false"
        if self._query.is_prompt and follows and not late and (wrong := self._misplaced(self._query.ends)):
            raise BrokenError(f"an idle query's group is at the first position, and must be at the second: {wrong}")

    def _judge(self, error: TubeMQError) -> None:
        """Raise `BrokenError` if the query must not fail with `error`."""
        name = type(error).__name__
        self.stats[name] += 1
        if isinstance(error, DataLossError):
            if self._query.options.get("failOnDataLoss", "true") == "false":
                raise BrokenError("the query failed because of a loss, although failOnDataLoss is false") from error
            partition = Partition(error.broker_id, error.topic, error.partition)
            self._world.ledger.report(partition, error.asked, error.offered, str(error))
            self._accepted = {"failOnDataLoss": "false"}
            self._query.options |= self._accepted
            return
        troubles = self._troubles | ({"other query"} if self._foreign_claims else set())
        if "visit token" in str(error) and "master" not in troubles:
            raise BrokenError(f"the master runs, but the client got no new visit token: {error}") from error
        allowed = next((causes for kind, causes in _EXPLAINS.items() if isinstance(error, kind)), set[str]())
        if isinstance(error, FencedError) and "holds the partition for more than" in str(error):
            allowed = allowed | {"clock"}  # the dead run's claim is newer by a clock that was ahead
        if not allowed & troubles:
            raise BrokenError(f"the query failed without a reason: {name}: {error}") from error

    # -- the end ------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Start all servers again, let the query read the rest, and check the ledger."""
        world, query = self._world, self._query
        world.end_troubles()
        deadline = time.monotonic() + self._pace.limit
        ever = set(self._troubles)
        if not query.running or not self._run(100, False):  # a query that still runs continues
            query.stop()
            self._troubles &= {"empty master", "clock", "late"}
            query.options = {**self._options(PATIENCE), **self._accepted}
            if self._foreign_claims:
                world.let_claims_expire()
                self._foreign_claims = False
        # A run ends with an empty `latestOffset`, so the last micro-batch is known to be committed.
        while not (self._run(100, False) and not query.pending and not self._behind()):
            if time.monotonic() > deadline:
                raise BrokenError(f"the query does not catch up: {self._behind()}")
            time.sleep(0.02)
        self._check_group(ever, deadline)
        query.stop()
        # Spark may kill the source's process while it closes. Its claims then expire, or the next run takes them.
        left = {p: name for p, name in world.claims().items() if name != RIVAL}
        if left and query.is_prompt:
            raise BrokenError(f"the query left claims: {left}")
        self._record_losses(self._warnings())
        world.check_acknowledged()
        world.ledger.check(query.rows, query.starts, self._filters())
        self.stats["losses"] += len(world.ledger.losses)
        self.stats["rows"] += sum(map(len, query.rows.values()))

    def _behind(self) -> dict[Partition, tuple[int, int]]:
        """Return the query's position and the store's end of each partition where they differ."""
        ends = self._query.ends
        wanted = {
            p: self._world.ledger.extents.get(store_of(p), Extent(0, 0)).end
            for p in self._world.partitions()
            if (p in ends or self._is_to_be_read(p)) and p in self._assigned(p)
        }
        return {p: (ends.get(p, -1), end) for p, end in wanted.items() if ends.get(p, -1) != end}

    def _is_to_be_read(self, partition: Partition) -> bool:
        """Return True if the query must read `partition`. If it starts at `latest`, its first micro-batch decides."""
        extent = self._world.ledger.extents.get(store_of(partition))
        begins_early = self._query.options.get("startingOffsets") in ("earliest", "group")
        return extent is not None and extent.end > 0 and (begins_early or bool(self._query.logged))

    def _assigned(self, partition: Partition) -> Collection[Partition]:
        """Return the partitions of option `assign`, or `partition` if the option is not set."""
        text = self.history.setting.options.get("assign")
        if text is None:
            return [partition]
        keys = ((topic, *map(int, key.split(":"))) for topic, keys in json.loads(text).items() for key in keys)
        return [Partition(broker_id, topic, number) for topic, broker_id, number in keys]

    def _check_group(self, ever: set[str], deadline: float) -> None:
        follows = self._query.options.get("commitOffsets") != "false"
        if not follows and (ever & {"down", "move", "fault", "rival", "kill"} or self._world.ledger.losses):
            return  # each of these may move the group, and nothing moves it back
        wanted = self._query.ends if follows else self._query.starts
        while wrong := self._misplaced(wanted):
            if self._query.is_prompt or time.monotonic() > deadline:
                raise BrokenError(f"the group is at the first position, and must be at the second: {wrong}")
            time.sleep(0.05)

    def _misplaced(self, wanted: Positions) -> dict[Partition, tuple[int | None, int]]:
        found = {partition: (self._world.group_offset(partition), position) for partition, position in wanted.items()}
        extents = self._world.ledger.extents
        first = {partition: extents.get(store_of(partition), Extent(0, 0)).first for partition in wanted}
        return {
            partition: (actual, position)
            for partition, (actual, position) in found.items()
            # Retention moves a group forwards; the next micro-batch reports that as a loss.
            if actual not in (position, max(position, first[partition]))
        }

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _filters(self) -> Filters:
        text = self.history.setting.options.get("filters")
        if text is None:
            return {}
        if text.startswith("{"):
            return {topic: frozenset(types) for topic, types in json.loads(text).items()}
        return dict.fromkeys(self._world.topics, frozenset(text.split(",")))

    def _options(self, retry_for: float) -> dict[str, str]:
        chosen, pace = self.history.setting.options, self._pace
        rpc_timeout = pace.rpc_timeout if self._silent and retry_for < PATIENCE else RPC_TIMEOUT
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

    def _record_losses(self, lines: Iterable[str]) -> None:
        """Record the losses that the connector's warnings report."""
        for text in lines:
            partition = _PARTITION.search(text)
            ranges = _RANGE.findall(text)
            if partition is not None and ranges and ("lost" in text or "gone" in text):
                broker_id, topic, number = partition.groups()
                first, end = map(int, ranges[-1])  # the requested range may be named before it
                self._world.ledger.report(Partition(int(broker_id), topic, int(number)), first, end, text)

    @contextmanager
    def _running_tasks_in_pauses(self) -> Iterator[None]:
        """Run another task while a task waits for a partition, because the other may hold it. If no task can run,
        advance the servers' clock quickly: a claim of an earlier run or of a killed scan must expire."""

        def sleep(seconds: float) -> None:
            if self._query.run_another_task():
                return
            time.sleep(seconds)
            if "clock" in self._troubles or self.history.setting.scans > 1:
                self._world.pass_time(seconds * CLOCK_SPEED)

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
    def _recording_warnings(self) -> Iterator[None]:
        logger, handler = logging.getLogger("tubemq_spark"), _Handler(self._record_losses)
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)


class _Handler(logging.Handler):
    def __init__(self, handle: Callable[[list[str]], None]) -> None:
        super().__init__(logging.WARNING)
        self._record_losses = handle

    def emit(self, record: logging.LogRecord) -> None:
        self._record_losses([record.getMessage()])
