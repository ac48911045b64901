# SPDX-License-Identifier: Apache-2.0
"""`nox -s cluster`: the wheel on Spark clusters, with a real TubeMQ.

    nox -s cluster                        all scenarios on a standalone cluster, as `make cluster`
    nox -s cluster -- --only batch        one scenario; may be given more than once
    nox -s cluster -- --manager yarn      on YARN; may be given more than once, too

The wheel is installed into an environment of its own, which is kept. The output folder has the logs of Spark, its
executors and the programs. The status is 1 if a scenario is wrong.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.real.cluster import RealTubeMQ
from tests.spark_cluster.cluster import SparkCluster
from tests.spark_cluster.scenarios import SCENARIOS, Scenario
from tests.spark_cluster.standalone import StandaloneSpark
from tests.spark_cluster.trial import Trial
from tests.spark_cluster.yarn import Yarn
from tubemq_spark.client import forget_servers

_MANAGERS: dict[str, type[SparkCluster]] = {"standalone": StandaloneSpark, "yarn": Yarn}


def main() -> int:
    given = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # with all that it started
    chosen = [one for one in SCENARIOS if not given.only or one.name in given.only]
    folder: Path = given.output.resolve()
    names = list(_MANAGERS)
    if folder.exists() and any(one.name not in names for one in folder.iterdir()):
        sys.exit(f"{folder} has files that are not of such a run: name another folder with --output")
    shutil.rmtree(folder, ignore_errors=True)
    managers = given.manager or names[:1]
    exact = planned = 0
    for name in managers:
        manager = _MANAGERS[name]
        possible = [one for one in chosen if manager.can_ship or not one.ships]
        exact += run(manager, possible, given.python, folder / name)
        planned += len(possible)
    print(f"{exact} of {planned} scenarios are exact", flush=True)
    return 0 if exact == planned else 1


def run(manager: type[SparkCluster], chosen: Sequence[Scenario], python: Path, folder: Path) -> int:
    """Return the number of scenarios that are exact on a cluster."""
    (folder / "spark").mkdir(parents=True)
    topics = {name: spec for one in chosen for name, spec in one.topics.items()}
    exact = 0
    with RealTubeMQ(topics=topics, brokers=2) as tubemq, manager(python, folder / "spark") as spark:
        print(f"TubeMQ {tubemq.release} at {tubemq.master}, {spark.title}", flush=True)
        trial = Trial(tubemq, spark, folder)
        for scenario in chosen:
            begun = time.monotonic()
            problems = trial.run(scenario)
            verdict = f"WRONG: {'; '.join(problems)}" if problems else "exact"
            print(f"{scenario.what:<60} {time.monotonic() - begun:>4.0f} s  {verdict}", flush=True)
            exact += not problems
        forget_servers()
    return exact


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="nox -s cluster --", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", type=Path, required=True, help="of the environment with the wheel; nox adds it")
    parser.add_argument("--only", action="append", choices=[one.name for one in SCENARIOS], help="this scenario")
    parser.add_argument("--manager", action="append", choices=list(_MANAGERS), help="of the cluster")
    parser.add_argument("--output", type=Path, default=Path("build/cluster"), help="folder, emptied first")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
