# SPDX-License-Identifier: Apache-2.0
"""What an embedded TubeMQ does, shown live on a terminal."""

from __future__ import annotations

from queue import Empty, SimpleQueue

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from tubemq_spark.cli.output import table
from tubemq_spark.testing import EmbeddedTubeMQ
from tubemq_spark.testing.activity import Activity

_PERIOD = 0.5  # seconds between two updates


def show_activity(tubemq: EmbeddedTubeMQ, stopped: SimpleQueue[None], console: Console) -> None:
    """Show clients, calls and messages below what was printed, until `stopped` has an item."""
    before = tubemq.activity()
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            now = tubemq.activity()
            live.update(_view(before, now), refresh=True)
            before = now
            try:
                stopped.get(timeout=_PERIOD)
                return
            except Empty:
                continue


def _view(before: Activity, now: Activity) -> Group:
    def rate(name: str) -> int:
        return round((now.calls[name] - before.calls.get(name, 0)) / _PERIOD)

    head = Text(f"\nconnections: {now.clients}  clients that hold partitions: {now.readers}\n")
    calls = [(name, count, rate(name)) for name, count in sorted(now.calls.items())]
    topics = [
        (topic, count, round((count - before.messages.get(topic, 0)) / _PERIOD))
        for topic, count in now.messages.items()
    ]
    return Group(
        head,
        table(("topic", "messages", "per second"), topics),
        Text(),
        table(("call", "count", "per second"), calls),
    )
