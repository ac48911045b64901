# SPDX-License-Identifier: Apache-2.0
"""The text of docs/reference/api.md: the public Python names with their signatures and docstrings."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

INTRODUCTION = """\
# Python API

<!-- Written by scripts/generate_docs.py from the docstrings: change them there. -->

Most users need no Python name of this package: `format("tubemq")` and [options](../options.md) are enough. These names
are public. Everything else may change between releases.
"""

# By module: its public names; empty for those in its `__all__`.
SECTIONS: Mapping[str, Sequence[str]] = {
    "tubemq_spark": (),
    "tubemq_spark.checks": ("CheckResult",),
    "tubemq_spark.monitoring": (),
    "tubemq_spark.testing": (),
    "tubemq_spark.client": ("forget_servers",),
    "tubemq_spark.errors": (),
}
_HIDDEN = {"__version__"}
_GIVEN = {"Calls", "Fault"}  # classes whose objects come from methods, so that their constructors do not matter
# Members that only the package itself calls
_INTERNAL = {"Fault.failed", "Fault.is_over", "Fault.meets", "Fault.raise_error", "TLSFiles.context"}


def document() -> str:
    """Return the text of docs/reference/api.md."""
    parts = [INTRODUCTION]
    for module_name, names in SECTIONS.items():
        module = importlib.import_module(module_name)
        parts.append(f"## {module_name}\n")
        if module.__doc__:
            parts.append(f"{_prose(module.__doc__)}\n")
        for name in names or _public_names(module):
            parts.extend(_entry(name, getattr(module, name)))
    return "\n".join(parts)


def _public_names(module: Any) -> list[str]:
    listed = getattr(module, "__all__", None)
    if listed is not None:
        errors = "tubemq_spark.errors"  # a section of their own
        return [name for name in listed if name not in _HIDDEN and getattr(module, name).__module__ != errors]
    return [
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__ and not name.startswith("_")
    ]


def _entry(name: str, value: Any) -> Iterator[str]:
    yield f"### {name}\n"
    yield f"```py\n{_signature(name, value)}\n```\n"
    yield f"{_prose(inspect.getdoc(value) or '')}\n"
    if inspect.isclass(value) and not issubclass(value, BaseException):
        members = list(_members(value))
        if members:
            yield "\n".join(members) + "\n"


def _signature(name: str, value: Callable[..., Any]) -> str:
    if value.__name__ in _GIVEN:
        return f"class {name}"
    if inspect.isclass(value) and issubclass(value, enum.Enum):
        return f"{name}: {', '.join(member.name for member in value)}"
    signature = inspect.signature(value)
    parameters = _parameters(list(signature.parameters.values()))
    returns = "" if inspect.isclass(value) else f" -> {_annotation(signature.return_annotation)}"
    line = f"{name}({', '.join(parameters)}){returns}"
    return line if len(line) <= 110 else f"{name}(\n    " + ",\n    ".join(parameters) + f",\n){returns}"


def _parameters(parameters: list[inspect.Parameter]) -> list[str]:
    """Return each parameter as text; `*` before those that have to be named."""
    shown: list[str] = []
    for parameter in parameters:
        stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
        if parameter.kind is parameter.KEYWORD_ONLY and not any(text.startswith("*") for text in shown):
            shown.append("*")
        text = f"{stars}{parameter.name}"
        if parameter.annotation is not parameter.empty:
            text += f": {_annotation(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            text += f" = {_default(parameter.default)}"
        shown.append(text)
    return shown


def _annotation(annotation: Any) -> str:
    if not isinstance(annotation, str):  # of a NamedTuple it is a ForwardRef
        annotation = getattr(annotation, "__forward_arg__", None) or getattr(annotation, "__name__", str(annotation))
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", annotation)  # without modules


def _default(value: object) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    shown = repr(value)
    return "…" if " at 0x" in shown else shown  # an object without a text of its own


def _members(kind: type[Any]) -> Iterator[str]:
    fields = {field.name for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    for name in sorted(dir(kind)):
        value = inspect.getattr_static(kind, name)
        owner = next((base for base in kind.__mro__ if name in vars(base)), object)
        if name.startswith("_") or name in fields or not owner.__module__.startswith("tubemq_spark"):
            continue
        if f"{kind.__name__}.{name}" in _INTERNAL:
            continue
        if isinstance(value, property):
            yield _member(name, value)
        elif inspect.isfunction(value):
            parameters = _parameters(list(inspect.signature(value).parameters.values())[1:])
            yield _member(f"{name}({', '.join(parameters)})", value)


def _member(shown: str, value: object) -> str:
    doc = " ".join((inspect.getdoc(value) or "").split())
    return f"- `{shown}`{': ' if doc else ''}{doc}"


def _prose(doc: str) -> str:
    """Return a docstring as Markdown: a section `Args:` becomes a list."""
    lines: list[str] = []
    in_arguments = False
    for line in doc.strip().splitlines():
        if line in ("Args:", "Raises:"):
            in_arguments = True
            lines += [f"**{line}**", ""]
        elif in_arguments and (found := re.match(r" {4}([\w, ]+): (.*)", line)):
            lines.append(f"- `{found[1]}`: {found[2]}")
        elif in_arguments and line.startswith(" " * 8):
            lines.append(f"  {line.strip()}")
        else:
            in_arguments = in_arguments and not line.strip()
            lines.append(line)
    return re.sub(r"(?<!`)map<string,string>", "`map<string,string>`", "\n".join(lines))
