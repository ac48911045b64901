# SPDX-License-Identifier: Apache-2.0
"""The packages that this one needs beside Spark, and their versions: those of pyproject.toml."""

from __future__ import annotations

import re
from typing import NamedTuple

Version = tuple[int, ...]


def numbers_of(text: str) -> Version:
    """Return the leading numbers of a version, such as (4, 1, 2) of `4.1.2.dev0`."""
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, found[0].split("."))) if found else ()


class Range(NamedTuple):
    """The versions of a package from `least` on, before `below`. `package` is what Python imports."""

    package: str
    least: Version = ()
    below: Version | None = None

    @property
    def shown(self) -> str:
        """The name of the package in results."""
        return self.package.removeprefix("google.")

    @property
    def requirement(self) -> str:
        least, below = (".".join(map(str, version)) for version in (self.least, self.below or ()))
        return f"{self.shown}>={least}" + (f",<{below}" if below else "")

    def has(self, version: Version | None) -> bool:
        if not version:
            return False
        return version >= self.least and (self.below is None or version < self.below)


NEEDED = (
    Range("google.protobuf", (4, 24, 1), (8,)),
    Range("pyarrow", (14, 0, 1)),
    Range("numpy", (1, 21, 3), (3,)),
)
