# SPDX-License-Identifier: Apache-2.0
"""Record `tubemq-spark demo` in a pseudo-terminal and draw it as docs/images/demo.svg: `make demo-svg`.

The picture shows a few screens of the recording, one after the other, and ends on the last one. A viewer without
animations shows the last one.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import sys
import termios
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from xml.sax.saxutils import escape

import pyte

TARGET = Path(__file__).resolve().parents[1] / "docs/images/demo.svg"
COMMAND = [sys.executable, "-m", "tubemq_spark.cli", "demo"]
ENDS_AT = b"To try it yourself"  # the code to paste that follows has no place in the picture
TITLE = "tubemq-spark demo"

COLUMNS, ROWS = 100, 28
SETTLED = 0.03  # seconds without output: the demo has drawn the whole screen
SHORTEST, LONGEST, LAST = 0.5, 1.2, 6.0  # seconds that a screen and the last one are shown
TIMES = 3  # how often the recording is played

# Pixels
FONT, WIDTH, HEIGHT, PADDING, BAR = 14, 8.4, 18, 16, 34
COLOURS = {
    "default": "#d0d7de",
    "brightblack": "#8b949e",
    "green": "#56d364",
    "brown": "#e3b341",  # pyte's name of yellow
    "yellow": "#e3b341",
    "red": "#ff7b72",
    "cyan": "#76e3ea",
    "blue": "#79c0ff",
    "magenta": "#d2a8ff",
}
# From the middle of a cell to its left, right, upper and lower edge
STROKES = {"─": "lr", "│": "ud", "╭": "rd", "╮": "ld", "╰": "ru", "╯": "lu"}


@dataclass(frozen=True)
class Cell:
    """A character on the screen and the name of its colour."""

    text: str
    colour: str


Picture = tuple[tuple[Cell, ...], ...]
"""The rows of a screen."""


class Screen(pyte.Screen):  # type: ignore[misc]  # pyte has no type information
    """A screen on which dim text is grey: pyte knows no dim text."""

    def select_graphic_rendition(self, *codes: int, **kwargs: bool) -> None:
        super().select_graphic_rendition(*(90 if code == 2 and len(codes) < 3 else code for code in codes), **kwargs)

    def picture(self) -> Picture:
        return tuple(
            tuple(Cell(self.buffer[row][column].data, self.buffer[row][column].fg) for column in range(self.columns))
            for row in range(self.lines)
        )


def record(command: list[str]) -> Iterator[tuple[float, bytes]]:
    """Run a command in a pseudo-terminal; yield its output, and the seconds without output that follow.

    Raise `RuntimeError` if the command fails.
    """
    process, terminal = pty.fork()
    if process == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS=str(COLUMNS), LINES=str(ROWS))
        os.execv(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    while True:
        try:
            output = os.read(terminal, 1 << 16)
        except OSError:  # Linux: the command has ended
            output = b""
        if not output:
            break
        pause = 0.0
        while not select.select([terminal], [], [], SETTLED)[0]:
            pause += SETTLED
        yield pause, output
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    os.close(terminal)
    if status != 0:
        raise RuntimeError(f"{' '.join(command)} ended with status {status}")


def screens(recording: Iterator[tuple[float, bytes]]) -> list[tuple[float, Picture]]:
    """Return the screens to show, each with the seconds that it is shown."""
    screen = Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    stream.feed(f"\x1b[32m$\x1b[0m {TITLE}\r\n".encode())
    found: list[tuple[float, Picture]] = []
    since, ended = 0.0, False
    for pause, output in recording:  # also what follows the end, or the command could not write it
        if ended:
            continue
        shown, mark, _ = output.partition(ENDS_AT)
        stream.feed(shown)
        ended = bool(mark)
        since += pause
        if ended or (pause and since >= SHORTEST):
            picture = screen.picture()
            if not found or picture != found[-1][1]:
                found.append((LAST if ended else min(since, LONGEST), picture))
            since = 0.0
    if not ended:
        raise RuntimeError(f"the output does not contain {ENDS_AT.decode()!r}")
    return found


def draw(shown: list[tuple[float, Picture]]) -> str:
    """Return the animation as SVG."""
    width, height = COLUMNS * WIDTH + 2 * PADDING, ROWS * HEIGHT + 2 * PADDING + BAR
    total = sum(seconds for seconds, _ in shown)
    last = len(shown) - 1
    rules = [
        f"text{{font:{FONT}px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;"
        "white-space:pre}",
        "path{fill:none;stroke-width:1.2}",
        *(f".{name}{{fill:{colour}}}path.{name}{{fill:none;stroke:{colour}}}" for name, colour in COLOURS.items()),
        f".frame{{visibility:hidden;animation:{total:.2f}s step-end {TIMES} forwards}}",
        f"#frame{last}{{visibility:visible}}",
    ]
    frames = []
    start = 0.0
    for number, (seconds, picture) in enumerate(shown):
        begin, end = 100 * start / total, 100 * (start + seconds) / total
        steps = [f"{begin:.2f}%{{visibility:visible}}"]
        if number:
            steps.insert(0, "0%{visibility:hidden}")
        steps.append("100%{visibility:visible}" if number == last else f"{end:.2f}%,100%{{visibility:hidden}}")
        rules.append(f"@keyframes show{number}{{{''.join(steps)}}}#frame{number}{{animation-name:show{number}}}")
        frames.append(f'<g id="frame{number}" class="frame">\n{draw_screen(picture)}\n</g>')
        start += seconds
    rules.append("@media (prefers-reduced-motion:reduce){.frame{animation:none!important}}")
    final = " ".join("".join(cell.text for cell in row).strip() for row in shown[-1][1][-3:]).strip()
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
            f'height="{height:g}" role="img" aria-labelledby="title about">',
            f'<title id="title">{TITLE}</title>',
            f'<desc id="about">A recording of a terminal. {escape(final)}</desc>',
            f"<style>{''.join(rules)}</style>",
            f'<rect x=".5" y=".5" width="{width - 1:g}" height="{height - 1:g}" rx="8" fill="#0d1117" '
            'stroke="#30363d"/>',
            *(
                f'<circle cx="{18 + 20 * place}" cy="18" r="6" fill="{colour}"/>'
                for place, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
            ),
            *frames,
            "</svg>\n",
        ]
    )


def draw_screen(picture: Picture) -> str:
    return "\n".join(filter(None, (draw_row(row, PADDING + BAR + place * HEIGHT) for place, row in enumerate(picture))))


def draw_row(row: tuple[Cell, ...], top: float) -> str:
    """Return a row: text as text, frames and bars as lines, so that they look the same with each font."""
    elements = []
    column = 0
    for (colour, kind), run in groupby(row, key=lambda cell: (cell.colour, kind_of(cell))):
        cells = list(run)
        left = PADDING + column * WIDTH
        text = "".join(cell.text for cell in cells)
        name = colour if colour in COLOURS else "default"
        if kind == "bar":
            elements.append(
                f'<rect class="{name}" x="{left:.1f}" y="{top + 3:g}" width="{len(text) * WIDTH:.1f}" '
                f'height="{HEIGHT - 6}"/>'
            )
        elif kind == "frame":
            elements.append(f'<path class="{name}" d="{strokes(text, left, top)}"/>')
        elif text.strip():
            indent = len(text) - len(text.lstrip())
            text = text.strip()
            elements.append(
                f'<text class="{name}" x="{left + indent * WIDTH:.1f}" y="{top + HEIGHT - 5:g}" '
                f'textLength="{len(text) * WIDTH:.1f}">{escape(text)}</text>'
            )
        column += len(text) if kind != "text" else len(cells)
    return "".join(elements)


def kind_of(cell: Cell) -> str:
    return "frame" if cell.text in STROKES else "bar" if cell.text == "█" else "text"


def strokes(text: str, left: float, top: float) -> str:
    """Return the path of frame characters; equal ones side by side are one line."""
    parts = []
    for character, run in groupby(text):
        count = len(list(run))
        x, y = left + WIDTH / 2, top + HEIGHT / 2
        if character == "─":
            parts.append(f"M{left:.1f} {y:g}h{count * WIDTH:.1f}")
        else:
            for place in range(count):
                middle = x + place * WIDTH
                ends = {
                    "l": f"{left + place * WIDTH:.1f} {y:g}",
                    "r": f"{left + (place + 1) * WIDTH:.1f} {y:g}",
                    "u": f"{middle:.1f} {top:g}",
                    "d": f"{middle:.1f} {top + HEIGHT:g}",
                }
                edges = STROKES[character]
                parts.append(f"M{ends[edges[0]]}Q{middle:.1f} {y:g} {ends[edges[1]]}")
        left += count * WIDTH
    return "".join(parts)


def main() -> None:
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(draw(screens(record(COMMAND))), encoding="utf-8")
    print(f"{TARGET}: {TARGET.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
