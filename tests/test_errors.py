# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from tubemq_spark import errors
from tubemq_spark.errors import DataLossError, FencedError, PartitionOccupiedError, ServerError, TubeMQError
from tubemq_spark.protocol.envelope import Failure
from tubemq_spark.protocol.errcode import code_name, error_for_code, error_for_failure

FIELDS: dict[type[TubeMQError], dict[str, Any]] = {
    ServerError: {"code": 404, "name": "NOT_FOUND", "message": "m"},
    PartitionOccupiedError: {"holder": "h"},
    FencedError: {"holder": "h"},
    DataLossError: {"topic": "t", "broker_id": 1, "partition": 2, "asked": 28, "offered": 56},
}


def subclasses(kind: type[TubeMQError]) -> Iterator[type[TubeMQError]]:
    """Yield the error classes of the module; other modules may have more."""
    if kind.__module__ == errors.__name__:
        yield kind
    for subclass in kind.__subclasses__():
        yield from subclasses(subclass)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("kind", dict.fromkeys(subclasses(TubeMQError)))
def test_errors_can_be_pickled(kind: type[TubeMQError], protocol: int) -> None:
    fields = FIELDS.get(kind, {})
    error = kind("text", **fields)
    error.__cause__ = ValueError("stays behind")
    for there in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error)):
        assert type(there) is type(error)
        assert str(there) == "text"
        assert {name: getattr(there, name) for name in fields} == fields


def test_the_text_of_an_error_is_one_printable_line() -> None:
    text = str(TubeMQError("a\nb\x1b[31m\u202ec\ud800 \N{SNOWMAN}"))
    assert text == r"a\nb\x1b[31m\u202ec\ud800 " + "\N{SNOWMAN}"


@pytest.mark.parametrize("code", [404, 415, 424, 777])
def test_cuts_a_servers_text_and_keeps_the_advice_last(code: int) -> None:
    error = error_for_code(code, "no\n" * 100_000, "asking")
    assert str(error).startswith(rf"asking failed with {code} {code_name(code)}: no\nno\n")
    assert "… (300000 characters)" in str(error)
    assert len(str(error)) < 700
    if isinstance(error, ServerError):
        assert len(error.message) < 2100


def test_cuts_the_text_of_a_servers_exception() -> None:
    error = error_for_failure(Failure("org.x." + "Y" * 100_000, "\x1b" * 100_000), "asking")
    assert len(str(error)) < 700
    assert len(error.name) + len(error.message) < 2300
    assert str(error).isprintable()
