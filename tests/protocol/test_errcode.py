# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tubemq_spark.errors import AuthError, ConfigError, ServerError, TubeMQError
from tubemq_spark.protocol import errcode
from tubemq_spark.protocol.envelope import Failure
from tubemq_spark.protocol.errcode import (
    REACTIONS,
    ErrCode,
    NotFound,
    Reaction,
    code_name,
    error_for_code,
    error_for_failure,
    is_elsewhere,
    not_found_kind,
    reaction_to,
)

EXCEPTIONS = "org.apache.inlong.tubemq.corerpc.exception."


def test_the_codes_without_an_own_reaction() -> None:
    assert set(ErrCode) - set(REACTIONS) == {ErrCode.SUCCESS, ErrCode.BAD_REQUEST}
    assert set(REACTIONS.values()) == set(Reaction) - {Reaction.FAIL}


def test_product_code_reads_every_reaction() -> None:
    table = Path(errcode.__file__)
    product = [path.read_text("utf-8") for path in table.parents[1].rglob("*.py") if path != table]
    product.append(inspect.getsource(error_for_code))
    read = {name for text in product for name in re.findall(r"\bReaction\.(\w+)", text)}
    assert read == {reaction.name for reaction in Reaction if reaction is not Reaction.FAIL}  # FAIL: none of the others


@pytest.mark.parametrize(
    ("code", "reaction"),
    [
        (201, Reaction.WAIT),
        (301, Reaction.RETRY),
        (400, Reaction.FAIL),
        (401, Reaction.CLAIM_LOST),
        (403, Reaction.RETRY),
        (404, Reaction.WAIT),
        (410, Reaction.RETRY),
        (411, Reaction.CLAIM_LOST),
        (412, Reaction.CLAIM_LOST),
        (415, Reaction.FIX_CREDENTIALS),
        (425, Reaction.FIX_CONFIG),
        (431, Reaction.FIX_CONFIG),
        (450, Reaction.FIX_CREDENTIALS),
        (452, Reaction.WAIT),
        (503, Reaction.RETRY),
    ],
)
def test_reactions(code: int, reaction: Reaction) -> None:
    assert reaction_to(code) is reaction


@given(st.integers().filter(lambda code: code not in set(ErrCode)))
def test_an_unknown_code_fails_and_is_shown(code: int) -> None:
    assert reaction_to(code) is Reaction.FAIL
    assert code_name(code) == "UNKNOWN"
    error = error_for_code(code, "its text", "get from broker 1")
    assert isinstance(error, ServerError)
    assert (error.code, error.name, error.message) == (code, "UNKNOWN", "its text")
    assert str(error) == f"get from broker 1 failed with {code} UNKNOWN: its text"


@pytest.mark.parametrize(
    ("code", "kind", "advice"),
    [
        (ErrCode.CLIENT_INCONSISTENT_CONSUMETYPE, ConfigError, "another 'tubemq.group'"),
        (ErrCode.CLIENT_INCONSISTENT_TOPICSET, ConfigError, "in use with other topics"),
        (ErrCode.CLIENT_INCONSISTENT_FILTERSET, ConfigError, "in use with other filters"),
        (ErrCode.CLIENT_INCONSISTENT_SOURCECOUNT, ConfigError, "set a source count"),
        (ErrCode.TOPIC_NOT_DEPLOYED, ConfigError, "check the topic's name"),
        (ErrCode.CERTIFICATE_FAILURE, AuthError, "'tubemq.user'"),
        (ErrCode.CONSUME_GROUP_FORBIDDEN, AuthError, "authorise the group"),
        (ErrCode.CONSUME_CONTENT_FORBIDDEN, AuthError, "set option 'filters'"),
        (ErrCode.BAD_REQUEST, ServerError, ""),
        (ErrCode.INTERNAL_SERVER_ERROR, ServerError, ""),
    ],
)
def test_an_error_says_what_failed_where_why_and_what_to_do(
    code: ErrCode, kind: type[TubeMQError], advice: str
) -> None:
    error = error_for_code(code, "the server's text", "registering group g at master m:1")
    assert type(error) is kind
    text = str(error)
    assert text.startswith(f"registering group g at master m:1 failed with {code.value} {code.name}: the server's text")
    assert advice in text


@pytest.mark.parametrize(
    ("name", "elsewhere"),
    [
        (EXCEPTIONS + "StandbyException", True),
        ("com.tencent.tubemq.corerpc.exception.StandbyException", True),
        (EXCEPTIONS + "ServiceStoppingException", True),
        (EXCEPTIONS + "ServerNotReadyException", True),
        ("java.lang.reflect.InvocationTargetException", False),
        ("", False),
    ],
)
def test_exceptions_of_servers_out_of_service(name: str, elsewhere: bool) -> None:
    assert is_elsewhere(Failure(name, "")) is elsewhere


@pytest.mark.parametrize(("text", "shown"), [("why", "why"), ("", "no further text")])
def test_an_exception_is_shown_by_its_simple_name(text: str, shown: str) -> None:
    error = error_for_failure(Failure("java.lang.reflect.InvocationTargetException", text), "get from broker 1")
    assert str(error) == f"get from broker 1 failed at the server with InvocationTargetException: {shown}"
    assert (error.code, error.name, error.message) == (-1, "InvocationTargetException", text)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("The request offset reached maxOffset!", NotFound.END),
        ("Can't found Message by index!", NotFound.PASSED),
        ("Can't found Message by index in cache", NotFound.WAIT),
        ("Request offset reached cache maxOffset", NotFound.WAIT),
        ("current offset is exceed max file offset", NotFound.WAIT),
        ("current offset is exceed max offset!", NotFound.WAIT),
        ("RpcServer consume speed limit!", NotFound.WAIT),
        ("", NotFound.WAIT),
    ],
)
def test_the_kind_of_a_404(message: str, kind: NotFound) -> None:
    assert not_found_kind(message) is kind
