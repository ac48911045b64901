# SPDX-License-Identifier: Apache-2.0
"""Schedules of writing with what disturbs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.simulation.connector import batch_write
from tests.simulation.schedule import Disturbance
from tests.simulation.world import Killed
from tests.simulation.writing import CHANGES, OperatedWriting
from tests.without_spark.sink import Cells
from tubemq_spark.errors import TubeMQError
from tubemq_spark.protocol.errcode import ErrCode


class WritingSchedule(OperatedWriting):
    """Each method plans or begins one kind of disturbance of `KINDS`."""

    def slow_broker(self, planned: Disturbance) -> None:
        """A broker handles what has come at most a few times a second, for a while."""
        broker_id = self.broker_of(planned)
        pause = 0.05 + planned.strength**2 * 0.8
        seconds = 5.0 + planned.number % 30
        self.world.tell(f"broker {broker_id}", f"needs {pause:.2f} s for each message for {seconds:.0f} s")
        self.trouble("slow", seconds)
        self._hang_again(f"broker {broker_id}", pause, self.world.now + seconds)

    def lose_reply(self, planned: Disturbance) -> None:
        """A broker stores a message, and its connection ends before the answer, or it never answers."""
        nth = 1 + planned.number % 3
        self.world.tell("brokers", f"do not reply to send {nth} from now on")
        self.trouble("hang")
        call = self.tubemq.on("send_message", nth=nth, times=1)
        call.drop_reply() if planned.strength < 0.3 else call.close_mid_frame()

    def full_broker(self, planned: Disturbance) -> None:
        """A broker refuses some sends, as one whose memory is full, and takes those behind them."""
        broker_id, times = self.broker_of(planned), 1 + planned.number % 3
        self.world.tell(f"broker {broker_id}", f"is full for {times} sends")
        self.trouble("full")
        self.tubemq.on("send_message", broker=broker_id, times=times).fail(ErrCode.SERVER_RECEIVE_OVERFLOW)

    def hold_requests(self, planned: Disturbance) -> bool:
        """The servers do not handle what comes over the present connections of a worker, but answer others."""
        workers = [process for process in self.world.processes if process.role == "worker" and process.sockets]
        if not workers:
            return False
        worker = workers[planned.number % len(workers)]
        seconds = 0.5 + 2.3 * planned.strength  # a new run waits 3 s for what an earlier one has sent
        self.world.tell(worker, f"has sent what the servers handle only in {seconds:.1f} s")
        self.trouble("hang")
        for socket in worker.sockets:
            socket.hold(seconds)
        return True

    def crowd(self, planned: Disturbance) -> bool:
        """The driver is killed in a batch, and others write more messages than a search reads before its begin.

        While it commits, they write before it notes that, and Spark does not log the commit. The operator may
        limit what the next run reads.
        """
        app, topic = self.app, self.topic_of(planned)
        if app is None or topic is None or not app.alive:
            return False
        if app.jvm.state == "commits the writes":
            kill = replace(planned, kind="kill driver")
            self._at_state.setdefault("driver writes the commit log", []).append((1, kill))
        else:
            app.kill()
        if "effectivelyonce" in self.options and planned.number % 2:
            self.options["effectivelyoncemaxoffsets"] = "10"
        self.send(topic, planned.number, 90)
        return True

    def change_options(self, planned: Disturbance) -> None:
        """The operator restarts the query with other options, or loses it and does so."""
        _, name, values = CHANGES[planned.number % 3]
        self.options[name] = values[planned.number // 3 % 3]
        if "effectivelyonce" not in self.options and not self.packed and planned.number % 2:
            self.options["stamprows"] = "true"
        self._restart(planned, f"changes {name} to {self.options[name]}")

    def switch_on(self, planned: Disturbance) -> None:
        """The operator restarts the query with effectivelyOnce, which it did not have before."""
        if "effectivelyonce" in self.options or self.packed or self.setting.extra["what"] == "many topics":
            return
        self.trouble("switched on")  # "a checkpoint that has committed batches without it is refused"
        self.options["effectivelyonce"] = "true"
        if "topic" not in self.options:
            self.options["effectivelyoncetopics"] = ",".join(self.topics)
        self._restart(planned, "switches effectivelyOnce on")

    def _restart(self, planned: Disturbance, what: str) -> None:
        self.world.tell("operator", what)
        if planned.strength < 0.5:
            self.kill_driver(planned)
        else:
            self.stop_query(planned)

    def second_driver(self, planned: Disturbance) -> None:
        """Somebody starts the query again while it runs, and kills the second run after a while."""
        if not self.is_copy:
            self.invite("second operator", self._run_beside, planned)

    def _run_beside(self, planned: Disturbance) -> None:
        seconds = 1.0 + 9.0 * planned.strength
        self.trouble("two runs", seconds + 5.0)
        app = self.new_app("beside", max_failures=1)
        query = self.new_query(app)
        if not query.ended.wait(seconds):
            app.kill() if planned.number % 2 else query.stop()
            query.ended.wait()
        if query.error is not None:
            self.judge(query, query.error)
        elif query.ended.error is not None and not isinstance(query.ended.error, Killed):
            raise query.ended.error
        app.end()

    def change_tasks(self, planned: Disturbance) -> None:
        """The query is restarted with another number of tasks, which an unfinished batch then has as well."""
        if self.is_copy or self.app is None or not self.app.alive or "two runs" in self.recent_troubles():
            return
        batch = self.checkpoint.committed
        self.trouble("tasks")
        self.app.kill()
        for number in range(batch, self.setting.extra["batches"]):
            self.tasks_of[number] = 1 + planned.number % 4
        self.writing.unwant(("batch", batch))
        self.world.tell("operator", f"restarts the query with {1 + planned.number % 4} tasks")

    def batch_write(self, planned: Disturbance) -> None:
        """Somebody writes a batch to the same topics."""
        self.invite("writer", self._write_batch, planned)

    def _write_batch(self, planned: Disturbance) -> None:
        app, extra = self.new_app("batch", max_failures=1 + planned.number % 2 * 3), self.setting.extra
        origin = "write", int(app.name.removeprefix("batch"))
        raw = self.raw(**self.options)
        for name in (
            "effectivelyonce",
            "effectivelyonceuncertain",
            "effectivelyoncemaxoffsets",
            "effectivelyoncetopics",
            "checkpointlocation",
        ):
            raw.pop(name, None)
        tasks = self._rows_of("w", origin[1], extra["tasks"])
        if extra["what"] == "many topics":
            tasks = [[{**row, "topic": self.topics[0]} for row in rows] for rows in tasks]
        for task, rows in enumerate(tasks):
            self.writing.want(origin, task, rows, raw.get("topic"))
        self.world.tell(app.name, f"writes {sum(map(len, tasks))} rows")

        def started(task: int, rows: Sequence[Cells]) -> None:
            self._begin_attempt(app.name, origin, task, rows, raw)

        call = app.jvm.start("batch", batch_write, app, raw, extra["columns"], tasks, started, self.asks_for_more)
        call.wait()
        error = self.error_of(call)
        if error is None:
            self.writing.committed(app.name, origin, tasks, call.result())
        elif isinstance(error, (TubeMQError, Killed)):
            self.guarded(self.writing.error_true, origin, str(error))
            self.explain(f"batch write {origin[1]}", error)
        else:
            raise error
        app.end()
