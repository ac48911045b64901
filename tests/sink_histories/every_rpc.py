# SPDX-License-Identifier: Apache-2.0
"""Histories of one small query that is killed or disconnected at each of its requests in turn."""

from __future__ import annotations

from dataclasses import replace

from tests.histories.script import TopicShape
from tests.sink_histories.hooks import HOWS
from tests.sink_histories.run import Stage
from tests.sink_histories.script import ONCE, Event, History, Setting

SETTING = Setting(brokers=2, topics={"a": TopicShape(1, 1)}, tasks=[[4, 3], [3, 4]], mode=ONCE, receipts=True)
REAL_SETTING = Setting(brokers=2, topics={"a": TopicShape(3, 1)}, tasks=[[4, 3], [3, 4]], mode=ONCE, receipts=True)


def histories(server: str = "embedded") -> list[History]:
    """Return a history for each request of each process of each batch, and each way to fail. A killed task is attempted
    again, once by the same driver and once by another one."""
    setting = SETTING if server == "embedded" else REAL_SETTING
    with Stage(server) as stage:
        outcome = stage.play(History("every-rpc", setting))
    assert outcome.problem is None, outcome
    made = []
    for (batch, role, task), calls in sorted(outcome.calls.items()):
        for nth in range(1, calls + 1):
            for how in HOWS:
                args = {"role": role, "task": task, "attempt": 0, "how": how, "nth": nth}
                name = f"every-rpc {batch} {role} {task} {how} {nth} of {calls}"
                hook = Event("hook", batch, 0, args)
                made.append(History(name, setting, (hook,)))
                if role == "task" and how.startswith("kill"):
                    made.append(History(f"{name}, driver too", replace(setting, tries=1), (hook,)))
    return made
