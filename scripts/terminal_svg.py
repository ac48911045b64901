# SPDX-License-Identifier: Apache-2.0
"""Programs recorded in a pseudo-terminal, and screens drawn as SVG.

A picture shows one screen, or a few, one after the other; then it ends on the last one. A viewer without animations
shows the last one.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import termios
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from xml.sax.saxutils import escape

import pyte

SETTLED = 0.03  # seconds without output: the program has drawn the whole screen
TIMES = 3  # how often a recording is played

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
BLOCKS = "▁▂▃▄▅▆▇█"  # of bars and sparklines; the last one fills its cell
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


@dataclass(frozen=True)
class Pause:
    """Output of a program, and the seconds without output that followed."""

    output: bytes
    seconds: float


class Recording:
    """A program in a pseudo-terminal. Iterate over its output; `type_keys` types."""

    def __init__(
        self, command: Sequence[str], columns: int, rows: int, variables: Mapping[str, str] | None = None
    ) -> None:
        self._command = list(command)
        self._process, self._terminal = pty.fork()
        if self._process == 0:
            os.environ.update(variables or {}, TERM="xterm-256color", COLUMNS=str(columns), LINES=str(rows))
            os.execv(self._command[0], self._command)
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type_keys(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def __iter__(self) -> Iterator[Pause]:
        """Yield the output until the program ends."""
        while True:
            try:
                output = os.read(self._terminal, 1 << 16)
            except OSError:  # Linux: the program has ended
                output = b""
            if not output:
                return
            seconds = 0.0
            while not select.select([self._terminal], [], [], SETTLED)[0]:
                seconds += SETTLED
            yield Pause(output, seconds)

    def finish(self, wanted: int) -> None:
        """Wait for the end. Raise `RuntimeError` unless the program's exit status is `wanted`."""
        status = os.waitstatus_to_exitcode(os.waitpid(self._process, 0)[1])
        os.close(self._terminal)
        if status != wanted:
            raise RuntimeError(f"{' '.join(self._command)} ended with status {status}")


def draw(shown: Sequence[tuple[float, Picture]], title: str) -> str:
    """Return the screens, each with the seconds that it is shown, as SVG. All have the size of the first."""
    rows, columns = len(shown[0][1]), len(shown[0][1][0])
    width, height = columns * WIDTH + 2 * PADDING, rows * HEIGHT + 2 * PADDING + BAR
    total = sum(seconds for seconds, _ in shown)
    last = len(shown) - 1
    rules = [
        f"text{{font:{FONT}px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;"
        "white-space:pre}",
        "path{fill:none;stroke-width:1.2}",
        *(
            f".{name}{{fill:{colour}}}path.{name}{{fill:none;stroke:{colour}}}"
            f"path.{name}.blocks{{fill:{colour};stroke:none}}"
            for name, colour in COLOURS.items()
        ),
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
        frames.append([f'<g id="frame{number}" class="frame">', *draw_screen(picture), "</g>"])
        start += seconds
    rules.append("@media (prefers-reduced-motion:reduce){.frame{animation:none!important}}")
    final = " ".join("".join(cell.text for cell in row).strip() for row in shown[-1][1][-3:]).strip()
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
            f'height="{height:g}" role="img" aria-labelledby="title about">',
            f'<title id="title">{escape(title)}</title>',
            f'<desc id="about">A recording of a terminal. {escape(final)}</desc>',
            f"<style>{''.join(rules)}</style>",
            f'<rect x=".5" y=".5" width="{width - 1:g}" height="{height - 1:g}" rx="8" fill="#0d1117" '
            'stroke="#30363d"/>',
            *(
                f'<circle cx="{18 + 20 * place}" cy="18" r="6" fill="{colour}"/>'
                for place, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
            ),
            *without_repetitions(frames),
            "</svg>\n",
        ]
    )


def without_repetitions(frames: Iterable[Sequence[str]]) -> list[str]:
    """Return all lines of the frames. A line that several frames have is defined once, before them."""
    counts = Counter(line for lines in frames for line in lines)
    names = {
        line: f"row{number}" for number, (line, count) in enumerate(counts.items()) if count > 1 and len(line) > 40
    }
    definitions = [f'<g id="{name}">{line}</g>' for line, name in names.items()]
    shown = [f'<use href="#{names[line]}"/>' if line in names else line for lines in frames for line in lines]
    return ["<defs>", *definitions, "</defs>", *shown] if definitions else shown


def draw_screen(picture: Picture) -> list[str]:
    """Return one line of SVG for each row that is not empty."""
    rows = (draw_row(row, PADDING + BAR + place * HEIGHT) for place, row in enumerate(picture))
    return [row for row in rows if row]


def draw_row(row: tuple[Cell, ...], top: float) -> str:
    """Return a row: text as text, frames and bars as lines, so that they look the same with each font."""
    elements = []
    column = 0
    for (colour, kind), run in groupby(row, key=lambda cell: (cell.colour, kind_of(cell))):
        cells = list(run)
        left = PADDING + column * WIDTH
        text = "".join(cell.text for cell in cells)
        name = colour if colour in COLOURS else "default"
        if kind == "blocks":
            elements.append(f'<path class="{name} blocks" d="{blocks(text, left, top)}"/>')
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
    return "frame" if cell.text in STROKES else "blocks" if cell.text in BLOCKS else "text"


def blocks(text: str, left: float, top: float) -> str:
    """Return the path of block characters; equal ones side by side are one rectangle."""
    parts = []
    bottom = top + HEIGHT - 3
    for character, run in groupby(text):
        width = len(list(run)) * WIDTH
        height = (HEIGHT - 6) * (BLOCKS.index(character) + 1) / len(BLOCKS)
        parts.append(f"M{left:.1f} {bottom:g}h{width:.1f}v{-height:g}h{-width:.1f}z")
        left += width
    return "".join(parts)


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
