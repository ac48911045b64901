# SPDX-License-Identifier: Apache-2.0
"""Stories that are kept: schedules that broke a promise once, reduced, each in a file of `stories/`.

A file has all that the schedule depends on, so it stays the same when settings are made in another way: the family, the
seed of its rows and delays, its decisions, and its whole setting. `told` is the story for readers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

from tests.simulation.choices import Choices, values
from tests.simulation.families import FAMILIES, play, stage
from tests.simulation.schedule import Breach
from tests.simulation.story import tell

FOLDER = Path(__file__).parent / "stories"


@dataclass(frozen=True)
class Story:
    name: str
    family: str
    seed: int
    told: tuple[str, ...]
    choices: Any

    def play(self) -> list[Breach]:
        """Play the story in a `stage`, and return what it breaks."""
        return play(self.family, self.seed, Choices.from_json(json.dumps(self.choices))).breaches


def kept() -> Iterator[Story]:
    for path in sorted(FOLDER.glob("*.json")):
        data = json.loads(path.read_text("utf-8"))
        yield Story(path.stem, data["family"], data["seed"], tuple(data["told"]), data["choices"])


def write(name: str, family: str, seed: int, choices: Choices, breach: Breach) -> None:
    """Keep a story in a `stage`, with its whole setting."""
    schedule = FAMILIES[family](seed, replay=choices.decisions, changes=choices.changes)
    whole = Choices(choices.decisions, pinned(schedule.setting))
    told = [line for line in tell(family, seed, choices, breach).splitlines() if not line.startswith("python ")]
    story = Story(name, family, seed, tuple(told), json.loads(whole.to_json()))
    data = {key: value for key, value in asdict(story).items() if key != "name"}
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.json").write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", "utf-8")


def pinned(setting: Any) -> dict[str, Any]:
    """Return all values of a `Setting`, as changes of any other one."""
    found: dict[str, Any] = {}
    for name, value in values(setting).items():
        if is_dataclass(value) and not isinstance(value, type):
            usual = values(type(value)())
            found[name] = {}
            found.update({f"{name}.{key}": one for key, one in values(value).items() if one != usual[key]})
        else:
            found[name] = dict(value) if isinstance(value, Mapping) else value
    return found


def main() -> None:
    """Print what each story breaks, as JSON."""
    with stage():
        broken = {story.name: [one.text for one in story.play()] for story in kept()}
    print(json.dumps(broken))


if __name__ == "__main__":
    main()
