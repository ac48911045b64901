# SPDX-License-Identifier: Apache-2.0
"""Record commands of `tubemq-spark` and draw them as docs/images/cli-*.svg: `make cli-svg`.

The commands talk to an embedded TubeMQ. Paths below this folder are drawn as `~/project`.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyte

from scripts.terminal_svg import Picture, Recording, Screen, draw
from tubemq_spark.client.consumer.broker_requests import GroupRequests
from tubemq_spark.client.net.rpc import send_requests
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.protocol.claim_id import ClaimId, label_of
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.metadata import Address, Broker, Partition
from tubemq_spark.testing import EmbeddedTubeMQ

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
PROGRAM = [sys.executable, "-m", "tubemq_spark.cli"]
COLUMNS, ROWS = 104, 48
INTERRUPT = "\x03"

Step = Callable[[str], bool]
"""Called with the screen's text after each change. It may change the servers; True ends the command."""


def record(
    screen: Screen, arguments: Sequence[str], variables: Mapping[str, str], step: Step | None = None, status: int = 0
) -> Picture:
    """Run a command, and return the screen at its end or when `step` says so. The command must end with `status`."""
    stream = pyte.ByteStream(screen)
    stream.feed(f"\x1b[32m$\x1b[0m tubemq-spark {' '.join(arguments)}\r\n".encode())
    recording = Recording([*PROGRAM, *arguments], COLUMNS, ROWS, variables)
    picture: Picture | None = None
    for pause in recording:
        stream.feed(pause.output.replace(str(ROOT).encode(), b"~/project"))
        is_drawn = pause.seconds > 0
        if picture is None and step is not None and is_drawn and step("\n".join(screen.display)):
            picture = screen.picture()
            recording.type_keys(INTERRUPT)
    recording.finish(status)
    return picture or screen.picture()


def save(name: str, picture: Picture) -> None:
    filled = [any(cell.text.strip() for cell in row) for row in picture]
    cropped = picture[: len(filled) - filled[::-1].index(True)]
    target = IMAGES / f"cli-{name}.svg"
    target.write_text(draw([(1.0, cropped)], f"tubemq-spark {name}"), encoding="utf-8")
    print(f"{target}: {target.stat().st_size // 1000} kB")


@contextmanager
def shop() -> Iterator[tuple[EmbeddedTubeMQ, dict[str, str]]]:
    """Yield a cluster of two brokers with topics, and the variables that name it to commands."""
    with EmbeddedTubeMQ(brokers=2) as tubemq:
        tubemq.create_topic("orders", partitions=1, stores=3)
        tubemq.create_topic("payments", partitions=2)
        for number in range(60):
            tubemq.send("orders", b"order %d" % number)
        yield (
            tubemq,
            {
                "TUBEMQ_MASTER": tubemq.master,
                "TUBEMQ_ADMIN": tubemq.web_master,
                "TUBEMQ_ADMIN_TOKEN": tubemq.admin_token,
                "XDG_CONFIG_HOME": os.devnull,
                "PYSPARK_PYTHON": sys.executable,
            },
        )


def draw_topics() -> None:
    with shop() as (_, variables):
        screen = Screen(COLUMNS, ROWS)
        for arguments in (["create", "refunds", "--retention", "delete,72h"], ["list"], ["describe", "refunds"]):
            picture = record(screen, ["topics", *arguments], variables)
        save("topics", picture)


def draw_doctor() -> None:
    with shop() as (tubemq, variables):
        tubemq.crash_broker(2)
        arguments = ["doctor", "--topic", "orders", "--group", "billing"]
        save("doctor", record(Screen(COLUMNS, ROWS), arguments, variables, status=1))


def draw_lag() -> None:
    looks, most, seen = 30, 600, 0
    with shop() as (tubemq, variables):
        stores = [(broker_id, store * 10_000) for broker_id in tubemq.broker_ids for store in range(3)]
        for broker_id, number in stores:
            hold(tubemq, "billing", Partition(broker_id, "orders", number))
            for _ in range(most):
                tubemq.send("orders", b"order", partition=f"{broker_id}:{number}")

        ends = Counter((message.broker_id, message.partition) for message in tubemq.messages("orders"))
        for (broker_id, number), end in ends.items():
            tubemq.move_group("billing", "orders", broker_id, number, end * UNIT)

        def step(text: str) -> bool:
            """Let a burst of orders arrive, which the group reads up to its end."""
            nonlocal seen
            seen += 1
            for place, (broker_id, number) in enumerate(stores):
                lag = round(most * math.exp(-(((seen - 18 - 2 * place) / 7) ** 2)))
                for _ in range(25):
                    tubemq.send("orders", b"order", partition=f"{broker_id}:{number}")
                ends[broker_id, number] += 25
                tubemq.move_group("billing", "orders", broker_id, number, (ends[broker_id, number] - lag) * UNIT)
            return seen > looks and "2:orders:20000" in text

        arguments = ["lag", "billing", "--watch", "--interval", "0.2"]
        save("lag", record(Screen(COLUMNS, ROWS), arguments, variables, step))


def hold(tubemq: EmbeddedTubeMQ, group: str, partition: Partition) -> None:
    """Claim a partition as a Spark query does."""
    host, _, port = tubemq.broker_address(partition.broker_id).partition(":")
    requests = GroupRequests(ClientSettings.from_options({"tubemq.master": tubemq.master}), group)
    claim = str(ClaimId("5d1f7a", run=1, batch=0, label=label_of("spark-1", "billing")))
    broker = Broker(partition.broker_id, Address(host, int(port)))
    send_requests(requests.settings, [requests.register(broker, partition, claim, position=0)])


def draw_broker() -> None:
    variables = {"XDG_CONFIG_HOME": os.devnull}
    with ExitStack() as clients:

        def begin(master: str, *arguments: str) -> subprocess.Popen[bytes]:
            client = subprocess.Popen(
                [*PROGRAM, *arguments, "--master", master],
                env={**os.environ, **variables},
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            clients.callback(client.wait)
            clients.callback(client.kill)
            return client

        started: list[subprocess.Popen[bytes]] = []

        def step(text: str) -> bool:
            """Start a client that reads and one that writes, and let that one send while both run."""
            if "hold partitions" in text and not started:
                (master,) = re.findall(r"master +(\S+)", text)
                started.extend((begin(master, "consume", "orders", "--follow"), begin(master, "produce", "orders")))
            if re.search("hold partitions: [1-9]", text):
                writer = started[1].stdin
                assert writer is not None
                writer.write(b"an order\n" * 1200)
                writer.flush()
            sent = re.search(r"orders +(\d+) +(\d+)", text)
            return sent is not None and int(sent[1]) > 5000 and int(sent[2]) > 0 and "get_message" in text

        save("broker", record(Screen(COLUMNS, ROWS), ["broker", "--topic", "orders"], variables, step))


if __name__ == "__main__":
    IMAGES.mkdir(parents=True, exist_ok=True)
    for draw_one in (draw_topics, draw_doctor, draw_lag, draw_broker):
        draw_one()
