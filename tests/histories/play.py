"""Plays a history on a cluster with a query run call by call, and judges what came of it."""

from __future__ import annotations

import json
import logging
import re
import time
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from tests.histories.calls import KilledError, Query, StoppedError, WorkerKilledError
from tests.histories.ledger import BrokenError, Extent, Filters, Positions, store_of
from tests.histories.script import GIVEN, Event, History
from tests.histories.world import RIVAL, EmbeddedWorld, pick
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
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.constants import Framing
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.testing import Calls

TYPES = ["red", "green", "blue"]
HURRY, PATIENCE = 0.3, 30.0  # seconds that an operation is tried for: while anything may be down, and at the end
QUICK, SLOW = 0.3, 10.0  # seconds that an answer is waited for: where some are lost, and where none are
LIMIT = 40.0  # seconds for the end of a history
_SILENT = ("drop_reply", "drop_request", "silence")

# Which troubles explain that a run of the query ends with an error, besides losses, which are judged one by one.
_EXPLAINS: dict[type[TubeMQError], set[str]] = {
    FencedError: {"advance", "fault"},
    PartitionOccupiedError: {"rival", "other query"},
    PositionMovedError: {"move", "advance", "fault", "down", "kill"},
    TransportError: {"down", "fault", "master"},
    ServerError: {"down", "fault", "master"},
    ConfigError: {"empty master"},
}
_RANGE = re.compile(r"\[(\d+), (\d+)\)")
_PARTITION = re.compile(r"\b(\d+):(\w+):(\d+)\b")


class Reports(logging.Handler):
    """Losses that the connector warns of."""

    def __init__(self, player: Player) -> None:
        super().__init__(logging.WARNING)
        self._player = player

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        partition = _PARTITION.search(text)
        if partition is not None and ("lost" in text or "gone" in text):
            broker_id, topic, number = partition.groups()
            for first, end in _RANGE.findall(text)[-1:]:  # the range that was asked for may stand before it
                self._player.reported(Partition(int(broker_id), topic, int(number)), int(first), int(end), text)


class Player:
    """`stats` counts what came about, for who wants to know whether the histories reach far."""

    def __init__(self, history: History, *, goes_on: bool) -> None:
        """`goes_on` says whether the query can go on after a loss."""
        self.history = history
        self.stats: dict[str, int] = {}
        setting = history.setting
        self._world = EmbeddedWorld(setting)
        self._goes_on = goes_on
        self._ended = False  # by a loss that cannot be gone on from
        self._silent = any(event.args.get("how") in _SILENT for event in history.events)
        self._query = Query(self._options(HURRY), retries=setting.retries, width=setting.width)
        self._query.point = self._at
        self._query.begins = self._world.ledger.begins
        self._world.seen = lambda: self._query.logged
        self._times = 0  # that the query came to the point that the next event waits for
        self._queue: deque[Event] = deque(history.events)
        self._troubles: set[str] = set()
        self._accepted: dict[str, str] = {}
        self._foreign_claims = False
        self._types: list[str] = TYPES
        for number, (partition, at) in enumerate(zip(self._world.partitions(), setting.group_at, strict=False)):
            self._world.send([partition], at if number % 2 else 40, 8, self._types)
            self._world.move_group(partition, at * UNIT)

    def play(self) -> None:
        """Raises `BrokenError`, or what should not have come up, with the history's name."""
        try:
            with self._listening():
                while self._queue and not self._ended:
                    self._act(self._queue.popleft())
                self._finish()
        finally:
            self._query.kill()
            self._world.close()

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
        self.stats[event.kind] = self.stats.get(event.kind, 0) + 1
        args = event.args
        if event.kind == "run":
            self._run(args["batches"], args["available_now"])
        elif event.kind == "stop":
            if within:
                raise StoppedError
            self._query.stop()
        elif event.kind == "kill":
            self._troubles.add("kill")
            self._foreign_claims = self._foreign_claims or not self._query.logged
            if within:
                raise KilledError
            self._query.kill()
        elif event.kind == "kill_worker":
            self._troubles.add("kill")
            if within == GIVEN:
                raise WorkerKilledError
        elif event.kind == "forget_commit":
            self._query.forget_commit()
        elif event.kind == "forget_offset":
            if self._query.forget_offset() and not self._query.logged:
                self._foreign_claims = True
        else:
            self._change(event.kind, args)

    def _change(self, kind: str, args: dict[str, Any]) -> None:
        """What happens to the cluster, and may happen in the midst of a call."""
        world = self._world
        partitions, topics, brokers = world.partitions(), world.topics, world.tubemq.broker_ids
        if kind == "send":
            spread = [pick(partitions, args["to"] + n) for n in range(args["spread"])]
            world.send(list(dict.fromkeys(spread)), args["count"], args["size"], self._types)
        elif kind == "produce":
            world.produce(pick(topics, args["topic"]), args["count"], args["size"], self._types, HURRY)
        elif kind == "crash":
            self._troubles.add("down")
            before = len(world.ledger.losses)
            world.crash(pick(brokers, args["broker"]))
            self._note_losses(before)
        elif kind == "start":
            self._troubles.add("down")
            world.start(pick(brokers, args["broker"]))
        elif kind == "restart":
            self._troubles.add("down")
            world.restart(pick(brokers, args["broker"]))
        elif kind == "switch_master":
            self._troubles |= {"master"} | ({"empty master"} if args["empty_for"] else set())
            world.switch_master(args["empty_for"])
        elif kind == "fault":
            self._troubles.add("fault")
            self._put_fault(world.tubemq.on(args["method"], nth=args["nth"], times=args["times"]), args["how"])
        elif kind == "during":
            self._troubles |= {"down"} if args["what"] in ("crash", "restart") else {"move"}
            calls = world.tubemq.on(args["method"], nth=args["nth"], times=1)
            calls.run(lambda: self._change(args["what"], args["args"]), after=args["after"])
        elif kind == "expire":
            before = len(world.ledger.losses)
            world.expire(pick(topics, args["topic"]), args["keep"])
            self._note_losses(before)
        elif kind == "flush":
            world.flush(pick(topics, args["topic"]))
        elif kind == "advance":
            self._troubles.add("advance")
            world.advance(args["seconds"])
        elif kind == "grow":
            world.grow(pick(topics, args["topic"]), args["partitions"], args["stores"])
        elif kind == "add_broker":
            world.add_broker(pick(topics, args["topic"]), 1, 1)
        elif kind == "rival_comes":
            if world.rival_comes(pick(partitions, args["partition"])):
                self._troubles.add("rival")
        elif kind == "rivals_leave":
            world.rivals_leave()
        elif kind == "move_group":
            self._troubles.add("move")
            world.move_group(pick(partitions, args["partition"]), args["to"] * UNIT)
        else:
            raise AssertionError(f"nobody knows what {kind} is")

    def _put_fault(self, calls: Calls, how: str) -> None:
        if how == "delay":
            calls.delay(0.05)
        elif how == "fail":
            calls.fail(503, "by the history")
        elif how == "fail_limit":
            calls.fail(452, "by the history")
        else:
            getattr(calls, how)()

    def _note_losses(self, before: int) -> None:
        if len(self._world.ledger.losses) > before:
            self._query.losses += 1
            self.stats["losses"] = self.stats.get("losses", 0) + 1

    # -- the query ----------------------------------------------------------------------------------------------------

    def _run(self, batches: int, available_now: bool) -> bool:
        """So many micro-batches at most; False when the query failed."""
        self._times = 0
        if available_now:
            self._query.stop()
        try:
            if not self._query.running:
                self._query.start(available_now)
            for _ in range(batches):
                if not self._query.step():
                    break
            if available_now:
                self._query.stop()
        except (KilledError, StoppedError):
            self.stats["killed or stopped in a batch"] = self.stats.get("killed or stopped in a batch", 0) + 1
        except WorkerKilledError:
            pass
        except TubeMQError as error:
            self._query.stop()
            self._judge(error)
            # A query without an offset in its log begins as another one, which must wait for the claims of this one.
            self._foreign_claims = self._foreign_claims or not self._query.logged
            return False
        return True

    def _judge(self, error: TubeMQError) -> None:
        """Whether the query may fail so."""
        name = type(error).__name__
        self.stats[name] = self.stats.get(name, 0) + 1
        if isinstance(error, DataLossError):
            partition = Partition(error.broker_id, error.topic, error.partition)
            self.reported(partition, error.asked, error.offered, str(error))
            if self._query.options.get("failOnDataLoss", "true") == "false":
                raise BrokenError("the query fails for a loss, with failOnDataLoss=false") from error
            if self._goes_on:
                self._accepted = {"failOnDataLoss": "false"}
                self._query.options |= self._accepted
            else:
                self._ended = True
            return
        troubles = self._troubles | ({"other query"} if self._foreign_claims else set())
        allowed = next((causes for kind, causes in _EXPLAINS.items() if isinstance(error, kind)), set[str]())
        if not allowed & troubles:
            raise BrokenError(f"the query failed and nothing explains it: {name}: {error}") from error

    def reported(self, partition: Partition, asked: int, offered: int, text: str) -> None:
        self._world.ledger.report(partition, asked, offered, text)

    # -- the end ------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Everything is in service again: the query reads what is left, and the ledger is compared."""
        world = self._world
        self._query.stop()
        world.tubemq.clear_faults()
        world.start_all()
        world.rivals_leave()
        world.sync("itself")
        time_is_up = time.monotonic() + LIMIT
        self._ever, self._troubles = self._troubles, self._troubles & {"empty master"}
        self._query.options = {**self._options(PATIENCE), **self._accepted}
        if self._foreign_claims:
            world.let_claims_expire()
            self._foreign_claims = False
        fine = False
        while not self._ended and not fine:
            if time.monotonic() > time_is_up:
                raise BrokenError(f"the query does not catch up: {self._behind()}")
            # A run ends with a question for more that finds nothing: then the last micro-batch is known to be committed.
            fine = self._run(100, False) and self._caught_up()
            if not fine:
                time.sleep(0.02)
        if not self._ended:
            self._check_group(self._query.ends)
        self._query.stop()
        if not self._ended:
            self._check_claims()
        world.check_acknowledged()
        self._check_ledger()

    def _caught_up(self) -> bool:
        return not self._query.pending and not self._behind()

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
        """A query that begins at the latest names no partitions before its first micro-batch, which must find something
        new."""
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

    def _check_group(self, ends: Positions) -> None:
        follows = self._query.options.get("commitOffsets") != "false"
        for partition, end in ends.items():
            stands = self._world.group_offset(partition)
            if not follows:
                self._check_group_stayed(partition, stands)
                continue
            if stands != end:
                raise BrokenError(f"{partition}: the group stands at {stands}, the last micro-batch ended at {end}")

    def _check_group_stayed(self, partition: Partition, stands: int | None) -> None:
        """Where it began: what the group was put to, else where a new group does."""
        if self._ever & {"down", "move", "fault", "rival", "kill"} or self._world.ledger.losses:
            return  # all of these may move or forget a position
        began = self._query.starts[partition]
        if stands != began:
            raise BrokenError(f"{partition}: the group was to stay at {began}, and stands at {stands}")

    def _check_claims(self) -> None:
        if left := {p: name for p, name in self._world.claims().items() if name != RIVAL}:
            raise BrokenError(f"claims are left behind: {left}")

    def _check_ledger(self) -> None:
        ledger, starts = self._world.ledger, self._query.starts
        if self._ended:  # what it did not read is not missing
            starts = dict.fromkeys(starts, 1 << 60)
            for entries in ledger.entries.values():
                for entry in entries:
                    entry.lost = entry.lost or "not reached"
        ledger.check(self._query.rows, starts, self._filters())

    def _filters(self) -> Filters:
        text = self.history.setting.options.get("filters")
        if text is None:
            return {}
        if text.startswith("{"):
            return {topic: frozenset(types) for topic, types in json.loads(text).items()}
        return dict.fromkeys(self._world.topics, frozenset(text.split(",")))

    # -- around -------------------------------------------------------------------------------------------------------

    def _options(self, retry_for: float) -> dict[str, str]:
        chosen = self.history.setting.options
        rpc_timeout = QUICK if self._silent and retry_for < PATIENCE else SLOW
        return {
            "tubemq.master": self._world.master,
            "tubemq.group": self._world.group,
            "tubemq.rpc.framing": "standard" if self._world.framing is Framing.STANDARD else "prefixed",
            "tubemq.rpc.timeoutMs": str(int(rpc_timeout * 1000)),
            "tubemq.retry.maxElapsedMs": str(int(retry_for * 1000)),
            "tubemq.claim.timeoutMs": "200",
            "headsIntervalMs": "0",
            "metadataIntervalMs": "100",
            **({} if "assign" in chosen else {"subscribe": ",".join(self.history.setting.topics)}),
            **chosen,
        }

    @contextmanager
    def _listening(self) -> Iterator[None]:
        logger, handler = logging.getLogger("tubemq_spark"), Reports(self)
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)
