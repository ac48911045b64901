# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.golden.capture_checkpoints <release>`` writes a checkpoint of this release.

It goes to ``tests/golden/checkpoints/v<version of the offset>-<release>``, which must not exist: checkpoints of a
release never change. Its last micro-batch is in the offset log alone, as after a crash.
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

# By topic, partitions of a store, and stores
TOPICS = {"one": (1, 1), "many": (3, 2)}


def make_story() -> Story:
    """Return a story of two brokers and three runs, with messages in partitions drawn from a seed."""
    options = {"tubemq.group": "golden", "subscribe": ",".join(TOPICS), "startingOffsets": "earliest"}
    targets = Story(pyspark.__version__, 2, TOPICS, options, ()).targets()
    draw = random.Random("golden")
    runs = [draw.choices(targets, k=count) for count in (30, 2, 25)]
    return Story(pyspark.__version__, 2, TOPICS, options, runs)


def capture(spark: SparkSession, folder: Path) -> None:
    story, ids = make_story(), list[int]()
    with tempfile.TemporaryDirectory() as checkpoint, EmbeddedTubeMQ(brokers=story.brokers) as tubemq:
        story.create_topics(tubemq)
        for number, targets in enumerate(story.runs):
            ids += [message.message_id for _, message in send(tubemq, targets, f"run {number}")]
            frame = spark.readStream.format("tubemq").options(**story.options).option("tubemq.master", tubemq.master)
            writer = frame.load().writeStream.format("noop").option("checkpointLocation", checkpoint)
            writer.trigger(availableNow=True).start().awaitTermination()
        last = len(story.runs) - 1
        for log, end in (("offsets", last), ("commits", last - 1)):
            (folder / log).mkdir(parents=True)
            for number in range(end + 1):
                shutil.copyfile(Path(checkpoint, log, str(number)), folder / log / str(number))
        shutil.copyfile(Path(checkpoint, "metadata"), folder / "metadata")
    replace(story, message_ids=ids).write(folder)


def main(release: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    capture(spark, FOLDER / f"v{VERSION}-{release}")
    spark.stop()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.golden.capture_checkpoints <release>")
    main(sys.argv[1])
