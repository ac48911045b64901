# SPDX-License-Identifier: Apache-2.0
"""The benchmark without measuring: its results can be stored, and each goal has a row that a part measures."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import faults, goals, page, parts, results, scaling
from benchmarks.__main__ import main
from benchmarks.results import CPU, MEMORY, MILLISECONDS, RATE, Key, PartResult, Results, Row
from benchmarks.rounds import Recorder, Runner, Sample, alternate
from tubemq_spark.client import forget_servers
from tubemq_spark.client.settings import ClientSettings

KEY = Key("read", "PartitionReader, one process", RATE, "own stores", 100)


def result(*rows: Row, scale: float = 1.0) -> PartResult:
    settings = {"rounds": 3, "scale": scale, "full": False}
    versions = {"python": "3.11.0", "pyspark": "4.3.0"}
    return PartResult(
        "read", "2026-01-02T03:04:05+00:00", 1.5, {"cores": "2", "system": "Linux"}, versions, settings, rows
    )


def test_stored_results_are_read_again(tmp_path: Path) -> None:
    assert list(results.read(tmp_path / "results")) == []
    written = result(Row(KEY, (1.0, 30.0, 2.0)), Row(KEY._replace(quantity=CPU), (0.5,)))
    file = results.write(written, tmp_path / "results")
    found = results.read(tmp_path / "results")
    assert file.name == "read.json"
    assert found.parts == {"read": written}
    assert (found.median(KEY), found.median(KEY._replace(size=7))) == (2.0, None)


@pytest.mark.parametrize("name", parts.NAMES)
def test_a_part_names_itself_in_its_rows(name: str) -> None:
    part = parts.part(name)
    assert part.name == name
    assert {key.part for key in part.keys} == {name}
    assert len(set(part.keys)) == len(part.keys)


@pytest.mark.parametrize("name", parts.NAMES)
def test_a_part_needs_only_what_the_readme_installs(name: str) -> None:
    tools = ("PIL", "chispa", "hypothesis", "matplotlib", "pandas", "pytest", "prometheus_client", "xdist")
    code = f"import sys; sys.modules |= dict.fromkeys({tools}); import benchmarks.run_part as r; r.parts.part({name!r})"
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, timeout=300, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("status", [0, 3])
def test_the_parts_run_with_the_given_interpreter(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], status: int
) -> None:
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\necho "ran: $@"\nexit {status}\n')
    program.chmod(0o755)
    given = ["idle", "small", "--python", str(program), "--scale", "0.5", "--output", str(tmp_path)]
    assert main(given) == (1 if status else 0)
    printed, errors = capfd.readouterr()
    scale = '{"rounds": 3, "scale": 0.5, "full": false}'
    ran = [line for line in printed.splitlines() if line.startswith("ran: ")]
    assert ran == [f"ran: -m benchmarks.run_part {name} {scale} {tmp_path}" for name in ("idle", "small")]
    assert errors == ("failed: idle, small\n" if status else "")


def test_each_goal_compares_rows_that_a_part_measures() -> None:
    measured = {key for name in parts.NAMES for key in parts.part(name).keys}
    for goal in goals.GOALS:
        assert {goal.measured, goal.against} - {None} <= measured, goal.what
    assert len({goal.what for goal in goals.GOALS}) == len(goals.GOALS)


@pytest.mark.parametrize(("ours", "verdict"), [(90.0, "met"), (80.0, "NOT MET")])
def test_the_table_says_whether_a_goal_is_met(ours: float, verdict: str) -> None:
    goal = goals.GOALS[0]
    assert goal.against is not None
    table = goals.table(Results([result(Row(goal.measured, (ours,)), Row(goal.against, (100.0,)))]))
    (line,) = [line for line in table.splitlines() if line.startswith(goal.what)]
    assert line.endswith(f"{ours / 100:.3g}  {verdict}")
    assert table.count("not measured") == len(goals.GOALS) - 1


def test_runners_alternate_and_the_warm_up_does_not_count() -> None:
    order: list[str] = []

    def runner(name: str) -> Runner:
        def run() -> Sample:
            order.append(name)
            return Sample(len(order), 2.0, 1.0)

        return Runner(name, run)

    samples = alternate([runner("a"), runner("b")], rounds=2, warm_up=1)
    assert order == ["a", "b"] * 3
    assert [one.count for one in samples["b"]] == [4, 6]
    record = Recorder("read")
    record.add_samples("b", samples["b"], "own stores", 100)
    assert [(row.key.quantity, row.values) for row in record.rows] == [(RATE, (2.0, 3.0)), (CPU, (250_000.0, 1e6 / 6))]


def test_the_figures_of_the_page_are_those_of_the_results() -> None:
    rows = [Row(KEY._replace(size=size), (rate,)) for size, rate in ((100, 812_000.0), (1024, 383_000.0))]
    rows += [Row(Key("growth", "2 tasks", RATE), values) for values in ((1.0, 3.0),)]
    rows += [Row(Key("memory", "packs", quantity), (5.0,)) for quantity in (MEMORY, RATE)]
    shown = page.figures(Results([result(*rows)]))
    assert "| PartitionReader, one process | 812 / 383 |  |" in shown
    assert "| measured | median (values: 2) |  |\n| --- | --- | --- |\n| 2 tasks | 2 | messages/s |\n" in shown
    assert "(values: 1) |  |\n| --- | --- | --- |\n| packs | 5 | MB of memory |\n\n" in shown


def test_small_runs_do_not_replace_the_stored_results(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["read", "--scale", "0.01"])
    assert "--output" in capsys.readouterr().err


def test_lists_its_parts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(parts.NAMES)


@pytest.mark.parametrize("fault", faults.FAULTS)
def test_a_faulty_broker_stores_nothing_until_its_fault_ends(fault: str) -> None:
    cluster = faults.Cluster()
    options = {"tubemq.master": cluster.master(), "tubemq.rpc.timeoutMs": "1000"}
    writer = faults.Writer(ClientSettings.from_options(options))
    assert writer.write() > 0
    cluster.begin(fault)
    assert (writer.write(), writer.write()) == (0, 0)
    cluster.end()
    writer.settings = replace(writer.settings, rpc_timeout=60.0)  # a new session, which knows no failures
    assert writer.write() > 0
    cluster.check(writer.count, fault)
    with pytest.raises(RuntimeError, match=f"{fault}: 1200 of 1201 rows are stored, in 1200 messages"):
        cluster.check(writer.count + 1, fault)
    forget_servers()
    cluster.close()


def test_the_rates_of_a_fault_count_the_batches_that_end_in_each_phase() -> None:
    ended = {1.0: 100, 3.9: 100, 14.0: 0, 21.0: 0, 24.5: 79, 25.5: 80, 26.0: 100}
    batches = [faults.Batch(*one) for one in ended.items()]
    assert faults.figures(batches, (4.0, 16.0, 6.0)) == [
        ("before", RATE, 150.0),
        ("during", RATE, 300 / 16),
        ("after", RATE, 150.0),
        (faults.USED_AGAIN, MILLISECONDS, 5500.0),
    ]
    assert faults.figures(batches[:5], (4.0, 16.0, 6.0))[-1] == (faults.USED_AGAIN, MILLISECONDS, 6000.0)


def linear(factor: float = 1.0, power: float = 1.0) -> dict[int, dict[str, float]]:
    return {count: {one.name: factor * count**power for one in scaling.LISTED} for count in (10, 100, 1000, 10_000)}


@pytest.mark.parametrize(("power", "count"), [(0.0, 0), (0.9, 0), (1.0, 0), (1.3, len(scaling.FIGURES))])
def test_figures_that_grow_faster_than_the_partitions_are_named(power: float, count: int) -> None:
    assert len(scaling.too_fast(linear(power=power))) == count
    assert f"n^{power:.2f}" in scaling.figures(linear(power=power))
