# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.real``: run a real TubeMQ until Ctrl-C or SIGTERM.

The release is 1.2.0, or the one whose server jars are in the folder TUBEMQ_SERVER_JARS.
"""

from __future__ import annotations

import argparse
import signal
import sys
from types import FrameType

from tests.real.cluster import RealTubeMQ, TopicSpec
from tests.real.jars import MissingTool

_READY = """\
TubeMQ {release} is ready.
  master   {master}
  brokers  {brokers}
  topics   {topics}
In PySpark:
  df = spark.readStream.format("tubemq").option("tubemq.master", "{master}")\
.option("subscribe", "{topic}").option("tubemq.group", "my_group").load()
Ctrl-C stops it.
"""


def main() -> int:
    given = _arguments()
    topics = dict(given.topic or [_topic("demo")])
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        print("Starting TubeMQ; the first start fetches its jars ...", flush=True)
        with RealTubeMQ(topics=topics, brokers=given.brokers, framing=given.framing) as tubemq:
            text = _READY.format(
                release=tubemq.release,
                master=tubemq.master,
                brokers=", ".join(map(tubemq.broker_address, tubemq.broker_ids)),
                topics=", ".join(f"{name} ({spec.partitions} x {spec.stores})" for name, spec in topics.items()),
                topic=next(iter(topics)),
            )
            print(text, end="", flush=True)
            signal.pause()
    except KeyboardInterrupt:
        return 0
    except MissingTool as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.real", description=__doc__)
    parser.add_argument("--brokers", type=int, default=1, help="number of brokers (default: 1)")
    parser.add_argument(
        "--topic",
        type=_topic,
        action="append",
        metavar="NAME:PARTITIONS:STORES",
        help="partitions in each store, and stores, on each broker; may be repeated (default: demo:3:1)",
    )
    parser.add_argument(
        "--framing",
        choices=["standard", "prefixed"],
        default="standard",
        help="prefixed is the framing of 1.2.0 as published",
    )
    return parser.parse_args()


def _topic(text: str) -> tuple[str, TopicSpec]:
    name, *numbers = text.split(":")
    try:
        partitions, stores = map(int, [*numbers, *("3", "1")[len(numbers) :]])
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME:PARTITIONS:STORES") from None
    return name, TopicSpec(partitions, stores)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
