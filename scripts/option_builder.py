# SPDX-License-Identifier: Apache-2.0
"""The text of tubemq_spark/option_builder.py: one keyword argument, with its type, for each declared option."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import Any

from tubemq_spark import option_definition as generic
from tubemq_spark.client.settings import CLIENT_OPTIONS
from tubemq_spark.option_definition import Option
from tubemq_spark.protocol.metadata import parse_addresses, parse_broker_addresses
from tubemq_spark.sink import options as sink
from tubemq_spark.sink.options import SINK_OPTIONS
from tubemq_spark.source import option_parsers as parsers
from tubemq_spark.source.options import SOURCE_OPTIONS

HEAD = '''\
# SPDX-License-Identifier: Apache-2.0
"""Builds the options of source and sink: keyword arguments with types, which editors complete and mypy checks.

    spark.readStream.format("tubemq").options(**source_options(master="…", group="…", subscribe="…")).load()

Written by scripts/generate_docs.py from the options' declarations: change them there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

__all__ = ["sink_options", "source_options"]

# Source and sink accept each other's options, and do not import each other.
'''

FUNCTION = '''

def {name}(
    *,
{parameters}
) -> dict[str, str]:
    """Return the given options of {what}: texts, by their names in docs/options.md.

    That page says what each option means. The values are checked when Spark loads the {side}.
    """
    return _texts(locals(), {constant})
'''

TAIL = """

def _texts(given: Mapping[str, object], names: Sequence[str]) -> dict[str, str]:
    words = {re.sub("[A-Z.]", r"_\\g<0>", name.removeprefix("tubemq.")): name for name in names}
    keywords = {text.replace(".", "").lower(): name for text, name in words.items()}
    return {keywords[keyword]: _text(value) for keyword, value in given.items() if value is not None}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return json.dumps({name: one if isinstance(one, (Mapping, str)) else list(one) for name, one in value.items()})
    return str(value) if isinstance(value, (str, int, float)) or not isinstance(value, Sequence) else ",".join(value)
"""

# The types of a value, by the parser of its text. All others take a text.
TYPES = {
    generic.boolean: "bool",
    generic.duration: "str | int",
    parse_addresses: "str | Sequence[str]",
    parse_broker_addresses: "str | Sequence[str]",
    parsers.topics: "str | Sequence[str]",
    parsers.assigned: "str | Mapping[str, Sequence[str]]",
    parsers.filters: "str | Sequence[str] | Mapping[str, Sequence[str]]",
}
_POSITIONS = "Mapping[str, str | Mapping[str, int]]"
_MADE_BY = {  # the functions that return parsers
    "moment_bound": "str | int | datetime",
    "moment_bounds": "Mapping[str, Mapping[str, int | str]]",
}


def document() -> str:
    """Return the text of the module."""
    source = _function("source_options", "a read or a stream", "source", SOURCE_OPTIONS)
    to_sink = _function("sink_options", "a write or a streaming write", "sink", SINK_OPTIONS)
    only = "".join(
        _names(constant, [option for option in options if option not in CLIENT_OPTIONS])
        for constant, options in (("SOURCE_ONLY", SOURCE_OPTIONS), ("SINK_ONLY", SINK_OPTIONS))
    )
    return HEAD + only + _names("_CONNECTION", CLIENT_OPTIONS) + source + to_sink + TAIL


def _names(constant: str, options: Sequence[Option[Any]]) -> str:
    names = textwrap.fill(
        ", ".join(f'"{option.name}"' for option in options),
        116,
        initial_indent="    ",
        subsequent_indent="    ",
    )
    return f"{constant} = (\n{names},\n)  # fmt: skip\n"


def python_name(option: Option[Any]) -> str:
    """Return the keyword of an option: `starting_offsets` for `startingOffsets`, `rpc_timeout_ms` for
    `tubemq.rpc.timeoutMs`."""
    words = option.name.removeprefix("tubemq.").replace(".", "_")
    return re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", words)


def python_type(option: Option[Any]) -> str:
    """Return the type of an option's values in Python's notation."""
    if option.parse in TYPES:
        return TYPES[option.parse]
    if isinstance(option.parse, generic.WholeNumber):
        return "int"
    maker = getattr(option.parse, "__qualname__", "").partition(".")[0]
    if isinstance(option.parse, generic.OneOf) or option is sink.COMPRESSION:
        return f"Literal[{_quoted(_words(option.expects))}]"
    if maker == "bound":
        words = _words(option.expects.partition(" or {")[0])
        return f"Literal[{_quoted(words)}] | {_POSITIONS}"
    return _MADE_BY.get(maker, "str")


def _words(text: str) -> list[str]:
    return [word for word in re.split(r", | or |\s", text) if word]


def _quoted(words: Sequence[str]) -> str:
    return ", ".join(f'"{word}"' for word in words)


def _function(name: str, what: str, side: str, options: Sequence[Option[Any]]) -> str:
    ordered = sorted(options, key=lambda option: not option.required)
    parameters = [
        f"    {python_name(option)}: {python_type(option)}{'' if option.required else ' | None = None'},"
        for option in ordered
    ]
    return FUNCTION.format(
        name=name,
        what=what,
        side=side,
        parameters="\n".join(parameters),
        constant=f"(*_CONNECTION, *{side.upper()}_ONLY)",
    )
