# SPDX-License-Identifier: Apache-2.0
"""Record `tubemq-spark` in a terminal of termtosvg as pictures in docs/images: `make pictures`.

The demo is an animation. Of the other commands the last screen stays; they talk to an embedded TubeMQ.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tubemq_spark.client.consumer.broker_requests import GroupRequests
from tubemq_spark.client.net.rpc import send_requests
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.protocol.claim_id import ClaimId, label_of
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.metadata import Address, Broker, Partition
from tubemq_spark.testing import EmbeddedTubeMQ

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
PROGRAMS = Path(sys.executable).parent
RECORD = [str(PROGRAMS / "termtosvg"), "--template", "window_frame", "--theme", "gjm8", "--loop-delay", "6000"]


def record(
    name: str, script: str, rows: int, variables: dict[str, str], word: str = "", step: Callable[[], object] = bool
) -> None:
    """Draw the last screen of a shell's script that has `word` as docs/images/cli-NAME.svg. Call `step` meanwhile."""
    environment = {**os.environ, **variables, "PATH": f"{PROGRAMS}:{os.environ['PATH']}", "XDG_CONFIG_HOME": os.devnull}
    with tempfile.TemporaryDirectory() as frames:
        options = ["--still-frames", "--screen-geometry", f"104x{rows}", "--command", f"sh -c {shlex.quote(script)}"]
        recording = subprocess.Popen([*RECORD, frames, *options], env=environment, stdin=subprocess.PIPE)
        while recording.poll() is None:
            step()
            time.sleep(0.2)
        screens = [frame for frame in sorted(Path(frames).glob("*.svg")) if word in frame.read_text(encoding="utf-8")]
        shown = re.sub(
            rf'textLength="\d+" ([^>]*>[^<]*){ROOT}', r"\1~/project", screens[-1].read_text(encoding="utf-8")
        )
        (IMAGES / f"cli-{name}.svg").write_text(shown, encoding="utf-8")


def typed(*commands: str) -> str:
    """Return a shell's script that shows each command and runs it."""
    return "\n".join(f"printf '\\033[32m$\\033[0m %s\\n' '{command}'; {command}" for command in commands)


def draw_demo() -> None:
    options = ["--screen-geometry", "100x44", "--min-frame-duration", "500", "--max-frame-duration", "1200"]
    command = ["--command", f"{PROGRAMS}/tubemq-spark demo"]
    with subprocess.Popen([*RECORD, str(IMAGES / "demo.svg"), *options, *command], stdin=subprocess.PIPE) as recording:
        recording.wait()  # with an open standard input, because its end would end the recording
    begin_with_the_last_screen(IMAGES / "demo.svg")


def begin_with_the_last_screen(picture: Path) -> None:
    """Let an animation begin with its last screen, which programs without animations then show, too."""
    text = picture.read_text(encoding="utf-8")
    duration = re.search(r"animation-duration: (\d+)ms;", text)
    *_, (share, move) = re.findall(r"([\d.]+)%\{transform:(translateY\(-\d+px\))\}\n?100", text)
    if duration is None:
        raise ValueError(f"{picture} has no animation")
    began = math.ceil(int(duration[1]) * float(share) / 100)  # rounded down, it would show the screen before
    rule = "animation-name:roll;"
    text = text.replace(
        rule, f"{rule}\n                animation-delay: -{began}ms;\n                transform: {move};"
    )
    picture.write_text(text, encoding="utf-8")


def draw_commands() -> None:
    """Draw commands on a cluster of two brokers."""
    with EmbeddedTubeMQ(brokers=2) as tubemq:
        variables = {"TUBEMQ_MASTER": tubemq.master, "TUBEMQ_ADMIN": tubemq.web_master}
        variables |= {"TUBEMQ_ADMIN_TOKEN": tubemq.admin_token, "PYSPARK_PYTHON": sys.executable}
        tubemq.create_topic("orders", partitions=1, stores=3)
        tubemq.create_topic("payments", partitions=2)
        draw_lag(tubemq, variables)
        topics = ("create refunds --retention delete,72h", "list", "describe refunds")
        record("topics", typed(*(f"tubemq-spark topics {arguments}" for arguments in topics)), 16, variables)
        tubemq.crash_broker(2)
        record("doctor", typed("tubemq-spark doctor --topic orders --group billing"), 32, variables)


def draw_lag(tubemq: EmbeddedTubeMQ, variables: dict[str, str]) -> None:
    """Let a burst of orders arrive, which the group reads up to its end."""
    most, seen = 600, 0
    stores = [(broker_id, store * 10_000) for broker_id in tubemq.broker_ids for store in range(3)]
    requests = GroupRequests(ClientSettings.from_options({"tubemq.master": tubemq.master}), "billing")
    for broker_id, number in stores:
        host, _, port = tubemq.broker_address(broker_id).partition(":")
        broker, partition = Broker(broker_id, Address(host, int(port))), Partition(broker_id, "orders", number)
        claim = str(ClaimId("5d1f7a", run=1, batch=0, label=label_of("spark-1", "billing")))  # as a Spark query does
        send_requests(requests.settings, [requests.register(broker, partition, claim, position=0)])

    def step() -> None:
        nonlocal seen
        seen += 1
        for place, (broker_id, number) in enumerate(stores):
            for _ in range(25 if seen > 1 else most):
                tubemq.send("orders", b"order", partition=f"{broker_id}:{number}")
            end = most + 25 * (seen - 1)
            lag = round(most * math.exp(-(((seen - 18 - 2 * place) / 7) ** 2)))
            tubemq.move_group("billing", "orders", broker_id, number, (end - lag) * UNIT)

    command = "tubemq-spark lag billing --watch --interval 0.2"
    record("lag", typed(command).replace("; ", "; timeout --signal INT 14 "), 12, variables, "20000", step)


def draw_broker() -> None:
    """Draw an embedded broker while one client reads and another one writes."""
    with tempfile.TemporaryDirectory() as folder:
        clients = "\n".join(
            (
                "tubemq-spark broker --topic orders --port 8715 &",
                "broker=$!; sleep 3",
                f"tubemq-spark consume orders --follow --master 127.0.0.1:8715 > {folder}/read 2>&1 &",
                "reader=$!; sleep 2",
                "yes 'an order' | head -6000 | tubemq-spark produce orders --master 127.0.0.1:8715 > /dev/null 2>&1",
                "sleep 3; kill -INT $broker; wait $broker; kill $reader; wait $reader",
            )
        )
        record("broker", clients, 48, {}, "send_message")


if __name__ == "__main__":
    draw_demo()
    draw_commands()
    draw_broker()
