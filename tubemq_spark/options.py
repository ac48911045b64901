"""How an option is declared, read and refused.

Spark hands the options over as text under lower-cased keys. A value that cannot be used, a required option that is not
there and an unknown `tubemq.*` key are `ConfigError`s that say what was expected.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tubemq_spark.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True)
class Option(Generic[T]):
    """An option: its name as documented, how its text becomes a value, and what is expected of the text.

    `parse` raises `ValueError` for a text it cannot use. `secret` values are not shown in errors.
    """

    name: str
    parse: Callable[[str], T]
    expects: str
    default: T | None = None
    required: bool = False
    secret: bool = False

    def read(self, raw: Mapping[str, str]) -> T | None:
        """The value in `raw` (keys in any case), the default when it is not there."""
        text = _lower(raw).get(self.name.lower())
        if text is None:
            if self.required:
                raise ConfigError(f"option '{self.name}' is required: {self.expects}")
            return self.default
        try:
            return self.parse(text)
        except ValueError as cause:
            shown = "***" if self.secret else repr(text)
            raise ConfigError(f"option '{self.name}' is {shown}; expected {self.expects} ({cause})") from None

    def get(self, raw: Mapping[str, str]) -> T:
        """As `read`, for options that have a default or are required."""
        value = self.read(raw)
        if value is None:
            raise ConfigError(f"option '{self.name}' is required: {self.expects}")
        return value


@dataclass(frozen=True)
class Planned:
    """An option of the public contract that this release does not have yet; only its default is accepted."""

    name: str
    default: str | None = None

    def check(self, raw: Mapping[str, str]) -> None:
        text = _lower(raw).get(self.name.lower())
        if text is not None and text.strip().lower() != self.default:
            instead = f"leave it out or at {self.default}" if self.default else "leave it out"
            raise ConfigError(f"option '{self.name}' is not available in this release of tubemq-spark: {instead}")


def check_names(raw: Mapping[str, str], known: Iterable[Option[Any] | Planned]) -> None:
    """Refuses planned options that are set, and `tubemq.*` keys that are not known, naming the nearest known one."""
    options = list(known)
    names = {option.name.lower(): option.name for option in options}
    for key in raw:
        if key.lower().startswith("tubemq.") and key.lower() not in names:
            raise ConfigError(f"option '{key}' is unknown; did you mean '{_nearest(key, names.values())}'?")
    for option in options:
        if isinstance(option, Planned):
            option.check(raw)


def whole_number(least: int, most: int = 2**31 - 1) -> Callable[[str], int]:
    def parse(text: str) -> int:
        number = int(text)
        if not least <= number <= most:
            raise ValueError(f"{number} is not within {least} and {most}")
        return number

    return parse


def boolean(text: str) -> bool:
    try:
        return {"true": True, "false": False}[text.strip().lower()]
    except KeyError:
        raise ValueError(f"{text!r} is neither true nor false") from None


def one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        choice = text.strip().lower()
        if choice not in choices:
            raise ValueError(f"{text!r} is none of {', '.join(choices)}")
        return choice

    return parse


def not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("it is blank")
    return text.strip()


def _nearest(key: str, names: Iterable[str]) -> str:
    """The name most like `key`; the prefix does not count, for it may be what is wrong."""

    def likeness(name: str) -> float:
        return difflib.SequenceMatcher(None, _bare(name), _bare(key)).ratio()

    return max(names, key=likeness)


def _bare(name: str) -> str:
    return name.lower().removeprefix("tubemq.")


def _lower(raw: Mapping[str, str]) -> dict[str, str]:
    return {key.lower(): value for key, value in raw.items()}
