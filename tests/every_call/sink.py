# SPDX-License-Identifier: Apache-2.0
"""A streaming query that copies rows of one topic into another one with `effectivelyOnce`, in two batches. The task of
the second batch is killed once, so its next attempt searches for stored rows. Each task is a process."""

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
        tasks=[[4, 3], [4]],
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
_SEARCHING: Process = (1, "task", 0)  # its first attempt is killed when its second row is stored
_ROW = 2


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
        """Return the methods of the requests of each process if no further fault happens, by batch, role and task."""
        return self._calls(self._history())

    def trials(self) -> list[Trial]:
        """Return a trial for each request of each process and each fault. After a killed task, once the same driver
        attempts the task again, and once another run does."""
        base = self._history()
        calls = self._calls(base)
        expected = _counted(calls)
        made = []
        for process, methods in sorted(calls.items()):
            batch, kind, task = process
            role = TASK if kind == "task" else DRIVER
            attempt = int(process == _SEARCHING)
            for nth, method in enumerate(methods, 1):
                for column, how in faults_of(role):
                    hook = self._hook(process, attempt, how, nth)
                    name = f"{how} at call {nth} of the {kind} {task} of batch {batch}"
                    history = History(name, base.setting, (*base.events, hook))
                    trial = Trial(SINK, role, method, column, how, expected, history)
                    made.append(trial)
                    if column == "worker killed":
                        last = replace(base.setting, tries=attempt + 1)
                        alone = replace(history, name=f"{name}, no retry", setting=last)
                        made.append(replace(trial, history=alone))
        return made

    def play(self, trial: Trial) -> Result:
        outcome = self._stage.play(trial.history)
        if outcome.problem is not None:
            return Result(trial, BROKEN, (), outcome.problem)
        is_ended, is_repeated = outcome.stats.get("runs that failed", 0) > 0, _failed_tasks(outcome) > 1
        hook = trial.history.events[-1]
        methods = outcome.calls[hook.batch, hook.args["role"], hook.args["task"]]
        if not (is_ended or is_repeated or len(methods) >= hook.args["nth"]):
            return Result(trial, MISSED)
        return Result(
            trial,
            outcome_of(_counted(outcome.calls), trial.expected, is_ended=is_ended, is_repeated=is_repeated),
            [name for name in outcome.stats if name.endswith("Error")],
        )

    def _history(self) -> History:
        """Return the history without the fault of a trial."""
        plain = History("no fault", SETTINGS[self.server])
        methods = self._calls(plain)[_SEARCHING]
        nth = [number for number, method in enumerate(methods, 1) if method == "send_message"][_ROW - 1]
        return plain.with_events([self._hook(_SEARCHING, 0, "kill_answered", nth)])

    def _hook(self, process: Process, attempt: int, how: str, nth: int) -> Event:
        batch, role, task = process
        args = {"role": role, "task": task, "attempt": attempt, "how": how, "nth": nth, "soon": self._soon}
        return Event("hook", batch, 0, args)

    def _calls(self, history: History) -> dict[Process, tuple[str, ...]]:
        outcome = self._stage.play(history)
        assert outcome.problem is None, outcome
        assert _failed_tasks(outcome) == len(history.events), outcome
        return outcome.calls


def _failed_tasks(outcome: Outcome) -> int:
    return outcome.stats.get("tasks that died", 0) + outcome.stats.get("tasks that failed", 0)


def _counted(calls: Mapping[Process, tuple[str, ...]]) -> Counter[tuple[Process, str]]:
    return Counter((process, method) for process, methods in calls.items() for method in methods)
