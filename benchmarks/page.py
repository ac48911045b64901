# SPDX-License-Identifier: Apache-2.0
"""The figures of docs/performance.md, from the stored results: text between markers, written by
`scripts/generate_docs.py`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from benchmarks import results
from benchmarks.results import CPU, JVM, MEMORY, MILLISECONDS, RATE, Key, Results, Row
from benchmarks.sizes import LAYOUTS, OWN, SIZES
from scripts.markdown import table

PAGE = Path(__file__).parents[1] / "docs/performance.md"
_BEGIN, _END = "<!-- figures: begin -->\n", "<!-- figures: end -->\n"
_TABLES = {"read": "reading", "write": "writing", "packs": "rows in InLong packs"}
_OTHERS = {
    "growth": "Growth with partitions, sizes of bodies and tasks",
    "memory": "Memory of a worker that reads",
    "latency": "Latency from acknowledgement to row",
    "small": "A small micro-batch",
    "idle": "An idle query",
    "driver": "CPU time of the driver with 1000 partitions",
    "faults": "Small batches and one faulty broker of three",
}
_NONE = "No results are stored yet. `make bench` measures them and fills this section.\n"


def document() -> str:
    """Return the text of the page with the stored figures."""
    return with_figures(PAGE, figures(results.read()))


def with_figures(page: Path, text: str) -> str:
    """Return the text of a page with `text` between its markers. Raise `ValueError` without the markers."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{page} has no markers {_BEGIN.strip()} and {_END.strip()}")
    return before + begin + text + end + after


def figures(found: Results) -> str:
    """Return the tables of the results as Markdown."""
    if not found.parts:
        return _NONE
    parts = [_origin(found), _decoders(found), _rates(found), _rows_of(found)]
    return "\n".join(part for part in parts if part)


def _origin(found: Results) -> str:
    """Say where and when the figures were measured."""
    first = next(iter(found.parts.values()))
    versions: dict[str, None] = {}  # of all parts, each once
    for part in found.parts.values():
        versions |= {f"{name} {version.partition('+')[0]}": None for name, version in part.versions.items()}
    what = ", ".join(versions)
    days = sorted({part.date[:10] for part in found.parts.values()})
    where = f"{first.machine.get('cores', '?')} cores ({first.machine.get('processor', first.machine['system'])})"
    loads = sorted(float(part.machine["load before"]) for part in found.parts.values() if "load before" in part.machine)
    load = f" Other programs ran: the load before the parts was {loads[0]:g} to {loads[-1]:g}." if loads else ""
    return (
        f"Measured by `make bench` on {' and '.join(days)} on {where} that servers and clients share; "
        f"{what}.{load}\n\n"
        "![Messages per second of each reader and writer](images/performance.svg)\n"
    )


def _decoders(found: Results) -> str:
    """Return rate and costs of reads with each way of decoding, beside what limits them."""
    runners = _runners(found, "ceiling")
    if not runners:
        return ""
    rows = [[runner, *(_costs(found, runner, size) for size in SIZES)] for runner in runners]
    head = ["decoders, and what limits them", *(f"{size} B" for size in SIZES)]
    return (
        "Thousand rows per second; in parentheses CPU seconds per million of the reader (for bare sockets: of the "
        "broker), and of Spark's JVM:\n\n" + table(head, rows)
    )


def _costs(found: Results, runner: str, size: int) -> str:
    rate, *costs = (found.median(Key("ceiling", runner, quantity, OWN, size)) for quantity in (RATE, CPU, JVM))
    shown = " + ".join(f"{cost:.1f}" for cost in costs if cost is not None)
    return f"{(rate or 0) / 1000:,.0f}" + (f" ({shown})" if shown else "")


def _rates(found: Results) -> str:
    """Return messages per second of reading and writing, for both sizes and layouts."""
    rounds = _counts(row for row in found if row.key.part in _TABLES)
    lines = [
        f"Thousand messages or rows per second, medians of {rounds} rounds, bodies of "
        + " / ".join(f"{size} B" for size in SIZES)
        + "; in parentheses CPU seconds of the tasks per million:\n"
    ]
    for part, title in _TABLES.items():
        if runners := _runners(found, part):
            rows = [[runner, *(_cell(found, part, runner, layout) for layout in LAYOUTS)] for runner in runners]
            lines.append(table([title, "a store for each of 3 partitions", "3 partitions in one store"], rows))
    return "\n".join(lines)


def _cell(found: Results, part: str, runner: str, layout: str) -> str:
    rates = [found.median(Key(part, runner, RATE, layout, size)) for size in SIZES]
    if None in rates:
        return ""
    text = " / ".join(f"{rate / 1000:,.0f}" for rate in rates if rate is not None)
    costs = [found.median(Key(part, runner, CPU, layout, size)) for size in SIZES]
    if runner.startswith("Spark ") and None not in costs:
        text += f" ({' / '.join(f'{cost:.1f}' for cost in costs if cost is not None)})"
    return text


def _runners(found: Results, part: str) -> list[str]:
    named = [row.key.runner for row in found if row.key.part == part and row.key.layout == OWN]
    return list(dict.fromkeys(named))


def _rows_of(found: Results) -> str:
    """Return the rows of the other parts, one table for each part, folded."""
    parts: dict[str, list[Row]] = {}
    for row in found:
        key = row.key
        # The rate of a session's first query is mostly that of its start.
        if key.part in _OTHERS and key.quantity not in (CPU, JVM) and (key.part, key.quantity) != ("memory", RATE):
            parts.setdefault(key.part, []).append(row)
    return "\n".join(
        _folded(_OTHERS[part], table(["measured", f"median (values: {_counts(rows)})", ""], list(map(_measured, rows))))
        for part, rows in parts.items()
    )


def _measured(row: Row) -> list[str]:
    size = f", {_bytes(row.key.size)}" if row.key.size else ""
    shown = f"{row.median:,.0f}" if row.key.quantity in (RATE, MEMORY, MILLISECONDS) else f"{row.median:.1f}"
    return [f"{row.key.runner}{size}", shown, row.key.quantity]


def _counts(rows: Iterable[Row]) -> str:
    """Return how many values the rows have, as `1 to 3`."""
    counts = {len(row.values) for row in rows}
    return " to ".join(map(str, dict.fromkeys((min(counts, default=0), max(counts, default=0)))))


def _folded(title: str, content: str) -> str:
    """Return what a reader unfolds, on GitHub and on the site."""
    return f'<details markdown="1"><summary>{title}</summary>\n\n{content}\n</details>\n'


def _bytes(size: int) -> str:
    if size < 1024:
        return f"{size} B"
    return f"{size >> 10} KiB" if size < 1 << 20 else f"{size >> 20} MiB"
