# SPDX-License-Identifier: Apache-2.0
"""Each planted fault is found, with a remedy, and nothing else is reported (tests.checks.planted).

`doctor` stands for the checks that the command runs. tests/cli/test_doctor.py runs the command itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

import pytest

from tests.checks.planted import FAULTS, Ground, Options, hold, reading
from tubemq_spark import check
from tubemq_spark.checks import OK, CheckResult, driver_checks

Look = Callable[[Options], Sequence[CheckResult]]


def looked_for_by_check(request: pytest.FixtureRequest) -> Look:
    """Return `tubemq_spark.check` on the tests' session, with the workers' Python of the environment."""
    spark = request.getfixturevalue("spark")
    monkeypatch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")

    def look(options: Options) -> Sequence[CheckResult]:
        # Spark reads the variable when the session starts, and this attribute for each function.
        monkeypatch.setattr(spark.sparkContext, "pythonExec", os.environ["PYSPARK_PYTHON"])
        return check(spark, options)

    return look


def looked_for_without_spark(request: pytest.FixtureRequest) -> Look:
    """Return the checks of the driver, with the workers' interpreter if a fault changes it."""
    return lambda options: list(driver_checks(options, workers=os.environ["PYSPARK_PYTHON"] != sys.executable))


SEEKERS = {"doctor": looked_for_without_spark, "check": looked_for_by_check}


@pytest.fixture
def look(request: pytest.FixtureRequest) -> Look:
    return SEEKERS[request.param](request)


CASES = [
    pytest.param(seeker, name, id=f"{seeker}-{name}")
    for name, fault in FAULTS.items()
    for seeker in sorted(fault.seen_by)
]


@pytest.mark.parametrize(("look", "name"), CASES, indirect=["look"])
def test_a_planted_fault_is_found(ground: Ground, look: Look, name: str) -> None:
    fault = FAULTS[name]
    results = look(fault.plant(ground))
    problems = [result for result in results if result.state != OK]
    assert {result.check for result in problems} == fault.finds, problems
    assert any(fault.words in f"{result.detail} {result.remedy}" for result in problems), problems
    assert all(result.remedy for result in problems)


@pytest.mark.parametrize("look", SEEKERS, indirect=True)
def test_nothing_is_reported_of_a_healthy_installation(ground: Ground, look: Look) -> None:
    authority = ground.authority()
    _, options = ground.over_tls(authority.certify("healthy"), authority)
    results = look(options)
    assert [result for result in results if result.state != OK] == []
    assert {result.check for result in results} >= {
        "options", "python", "protobuf", "connection", "tls", "framing", "master", "topic", "group", "holders", "clock"
    }  # fmt: skip


@pytest.mark.parametrize("look", SEEKERS, indirect=True)
def test_checks_change_nothing_at_the_servers(ground: Ground, look: Look) -> None:
    tubemq = ground.cluster()
    hold(tubemq, "readers", "another-client")
    tubemq.move_group("readers", "orders", 1, 0, 28)
    changing = ("partition_register", "partition_unregister", "commit_offset", "send_message", "partition_heartbeat")
    counts = [tubemq.on(method).count() for method in changing]
    before = tubemq.claims(), [tubemq.group_offset("readers", "orders", 1, number) for number in range(3)]
    look(reading(tubemq, topic="orders"))
    assert (tubemq.claims(), [tubemq.group_offset("readers", "orders", 1, number) for number in range(3)]) == before
    assert [count.fired for count in counts] == [0] * len(changing)
