# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.golden.capture_checkpoints <release>`` writes the checkpoints of this release.

They go to ``tests/golden/checkpoints/v<version of the offset>-<release>/<name>/``, which must not exist: checkpoints of
a release never change.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from tests.golden.stories import FOLDER, Story, send
from tubemq_spark.source.offset import VERSION
from tubemq_spark.testing import EmbeddedTubeMQ

SOLE, SHARED, STORES, BOTH = (1, 1), (3, 1), (2, 2), (3, 2)  # partitions of a store, and stores


def story(
    about: str,
    topics: dict[str, tuple[int, int]],
    *runs: int,
    brokers: int = 1,
    before: int = 0,
    starting: str = "earliest",
) -> Story:
    """Return a story with so many messages before each run, in partitions drawn from a seed."""
    options = {"tubemq.group": "golden", "subscribe": ",".join(topics), "startingOffsets": starting}
    bare = Story(about, pyspark.__version__, brokers, topics, options, (), ())
    draw = random.Random(about)
    first, *others = [draw.choices(bare.targets(), k=count) for count in (before, *runs)]
    return replace(bare, before=first, runs=others)


# The last micro-batch of a story whose name ends so is in the offset log alone, as after a crash.
NOT_COMMITTED = "-not-committed"

STORIES = {
    "first-batch-not-committed": story("a sole and shared stores", {"sole": SOLE, "shared": SHARED}, 20),
    "several-batches": story("partitions that share a store", {"shared": SHARED}, 20, 7, 1),
    "last-batch-not-committed": story("several shared stores of a topic", {"stores": STORES}, 20, 12, 9),
    "sole-store": story("one partition in its store", {"sole": SOLE}, 5, 3),
    "two-topics": story("two topics on two brokers", {"one": SOLE, "many": BOTH}, 30, 25, brokers=2),
    "two-topics-not-committed": story("two topics on two brokers", {"one": SOLE, "many": BOTH}, 30, 25, brokers=2),
    "begun-at-latest-not-committed": story(
        "an empty first micro-batch", {"sole": SOLE, "shared": SHARED}, 0, before=10, starting="latest"
    ),
    "begun-at-positions-not-committed": story(
        "a number, the earliest and the latest",
        {"shared": SHARED},
        10,
        before=12,
        starting='{"shared":{"1:0":140,"1:1":-2,"1:2":-1}}',
    ),
}


def capture(spark: SparkSession, name: str, folder: Path) -> None:
    history = STORIES[name]
    with tempfile.TemporaryDirectory() as temporary, EmbeddedTubeMQ(brokers=history.brokers) as tubemq:
        checkpoint = Path(temporary)
        history.create_topics(tubemq)
        send(tubemq, history.before, "before")
        for number, targets in enumerate(history.runs):
            send(tubemq, targets, f"run {number}")
            frame = spark.readStream.format("tubemq").options(**history.options).option("tubemq.master", tubemq.master)
            writer = frame.load().writeStream.format("noop").option("checkpointLocation", temporary)
            writer.trigger(availableNow=True).start().awaitTermination()
        logs = {log: sorted(file.name for file in (checkpoint / log).glob("[0-9]*")) for log in ("offsets", "commits")}
        assert logs["offsets"] == logs["commits"] == [str(number) for number in range(len(history.runs))], logs
        if name.endswith(NOT_COMMITTED):
            logs["commits"].pop()
        for log, files in logs.items():
            for file in files:
                (folder / log).mkdir(parents=True, exist_ok=True)
                shutil.copyfile(checkpoint / log / file, folder / log / file)
        shutil.copyfile(checkpoint / "metadata", folder / "metadata")
    history.write(folder)


def main(release: str) -> None:
    target = FOLDER / f"v{VERSION}-{release}"
    target.mkdir()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    for name in STORIES:
        capture(spark, name, target / name)
        print(target / name)
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.golden.capture_checkpoints <release>")
    main(sys.argv[1])
