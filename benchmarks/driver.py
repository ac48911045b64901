# SPDX-License-Identifier: Apache-2.0
"""CPU time of the driver's thread with 1000 partitions in 1000 stores, on the embedded server."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.calls import check_of, idle_question, plan_of_batch
from benchmarks.parts import Part
from benchmarks.results import MILLISECONDS, Key
from benchmarks.rounds import Recorder
from benchmarks.sizes import Scale
from tests.counting import Cost

NOTHING_NEW, PLANNED, END = "nothing new", "batch planned", "stream end, all have news"
_PARTITIONS = 1000


def measure(scale: Scale, record: Recorder) -> None:
    work: dict[str, Callable[[], Cost]] = {
        NOTHING_NEW: lambda: idle_question(1, _PARTITIONS),
        PLANNED: lambda: plan_of_batch(1, _PARTITIONS),
        END: lambda: check_of(_PARTITIONS),
    }
    for name, one in work.items():
        record.add(name, MILLISECONDS, [one().processor * 1000 for _ in range(scale.rounds)])


PART = Part(
    "driver",
    "1000 partitions on the driver: nothing new, batch planned, end of a stream's batch",
    1,
    tuple(Key("driver", name, MILLISECONDS) for name in (NOTHING_NEW, PLANNED, END)),
    measure,
)
