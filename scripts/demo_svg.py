# SPDX-License-Identifier: Apache-2.0
"""Record `tubemq-spark demo` and draw it as docs/images/demo.svg: `make demo-svg`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import pyte

from scripts.terminal_svg import Pause, Picture, Recording, Screen, draw

TARGET = Path(__file__).resolve().parents[1] / "docs/images/demo.svg"
COMMAND = [sys.executable, "-m", "tubemq_spark.cli", "demo"]
ENDS_AT = b"To try it yourself"  # the code to paste that follows has no place in the picture
TITLE = "tubemq-spark demo"

COLUMNS, ROWS = 100, 28
SHORTEST, LONGEST, LAST = 0.5, 1.2, 6.0  # seconds that a screen and the last one are shown


def screens(recording: Iterable[Pause]) -> list[tuple[float, Picture]]:
    """Return the screens to show, each with the seconds that it is shown."""
    screen = Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    stream.feed(f"\x1b[32m$\x1b[0m {TITLE}\r\n".encode())
    found: list[tuple[float, Picture]] = []
    since, ended = 0.0, False
    for pause in recording:  # also what follows the end, or the command could not write it
        if ended:
            continue
        shown, mark, _ = pause.output.partition(ENDS_AT)
        stream.feed(shown)
        ended = bool(mark)
        since += pause.seconds
        if ended or (pause.seconds and since >= SHORTEST):
            picture = screen.picture()
            if not found or picture != found[-1][1]:
                found.append((LAST if ended else min(since, LONGEST), picture))
            since = 0.0
    if not ended:
        raise RuntimeError(f"the output does not contain {ENDS_AT.decode()!r}")
    return found


def main() -> None:
    recording = Recording(COMMAND, COLUMNS, ROWS)
    shown = screens(recording)
    recording.finish(0)
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(draw(shown, TITLE), encoding="utf-8")
    print(f"{TARGET}: {TARGET.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
