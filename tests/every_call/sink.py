# SPDX-License-Identifier: Apache-2.0
"""A streaming query that copies rows of one topic into another one with `effectivelyOnce`: two batches of two tasks,
each in a process of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from tests.every_call.hook import DRIVER, TASK
from tests.every_call.trials import BROKEN, MISSED, SINK, Result, Trial, faults_of, outcome_of
from tests.histories.script import TopicShape
from tests.sink_histories.run import Outcome, Stage
from tests.sink_histories.script import AS_READ, ONCE, Event, History, Setting

# The rows were read in topic b. Real servers have only topics of certain shapes.
SETTINGS = {
    server: Setting(
        brokers=2,
        topics={"a": TopicShape(partitions, 1), "b": TopicShape(1, 1)},
        tasks=[[4, 3], [3, 4]],
        mode=ONCE,
        frame=AS_READ,
        receipts=True,
        width=1,  # so that the number of requests does not depend on the time that tasks take
    )
    for server, partitions in (("embedded", 1), ("real", 3))
}
SOON = 0.2  # seconds after which a client of the embedded server gives up a missing reply
_RPC_TIMEOUT = 10.0  # seconds, more than a late reply takes on a real server
_RETRY = 40.0  # seconds
Process = tuple[int, str, int]  # batch, role and task
_ENDS = ("runs that failed",)
_REPEATS = ("tasks that died", "tasks that failed")


class SinkStage:
    """Plays trials, one at a time."""

    def __init__(self, server: str = "embedded") -> None:
        self.server = server
        self._stage = Stage(server, rpc=_RPC_TIMEOUT, retry=_RETRY)
        self._soon = SOON if server == "embedded" else None

    @property
    def release(self) -> str | None:
        return self._stage.release

    def prepare(self) -> None:
        """Start what all trials share. Raise `MissingTool` without Java or Maven."""
        self._stage.prepare()

    def close(self) -> None:
        self._stage.close()

    def calls(self) -> dict[Process, tuple[str, ...]]:
        """Return the methods of the requests of each process if nothing happens, by batch, role and task."""
        outcome = self._stage.play(History("no fault", SETTINGS[self.server]))
        assert outcome.problem is None, outcome
        return outcome.calls

    def trials(self) -> list[Trial]:
        """Return a trial for each request of each process and each fault. After a killed task, once the same driver
        attempts the task again, and once another run does."""
        setting, calls = SETTINGS[self.server], self.calls()
        expected = _counted(calls)
        made = []
        for (batch, process, task), methods in sorted(calls.items()):
            role = TASK if process == "task" else DRIVER
            for nth, method in enumerate(methods, 1):
                for column, how in faults_of(role):
                    args = {"role": process, "task": task, "attempt": 0, "how": how, "nth": nth, "soon": self._soon}
                    name = f"{how} at call {nth} of the {process} {task} of batch {batch}"
                    history = History(name, setting, (Event("hook", batch, 0, args),))
                    trial = Trial(SINK, role, method, column, how, expected, history)
                    made.append(trial)
                    if column == "worker killed":
                        alone = replace(history, name=f"{name}, no retry", setting=replace(setting, tries=1))
                        made.append(replace(trial, history=alone))
        return made

    def play(self, trial: Trial) -> Result:
        outcome = self._stage.play(trial.history)
        if outcome.problem is not None:
            return Result(trial, BROKEN, (), outcome.problem)
        if not _has_met(trial, outcome):
            return Result(trial, MISSED)
        stats = outcome.stats
        return Result(
            trial,
            outcome_of(
                _counted(outcome.calls),
                trial.expected,
                is_ended=any(stats.get(name) for name in _ENDS),
                is_repeated=any(stats.get(name) for name in _REPEATS),
            ),
            [name for name in stats if name.endswith("Error")],
        )


def _counted(calls: Mapping[Process, tuple[str, ...]]) -> Counter[tuple[Process, str]]:
    return Counter((process, method) for process, methods in calls.items() for method in methods)


def _has_met(trial: Trial, outcome: Outcome) -> bool:
    """Return True if the process sent the request with the fault. One that failed or died did."""
    (event,) = trial.history.events
    args = event.args
    methods = outcome.calls[event.batch, args["role"], args["task"]]
    return len(methods) >= args["nth"] or any(outcome.stats.get(name) for name in (*_ENDS, *_REPEATS))
