# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tubemq_spark.errors import ServerError
from tubemq_spark.protocol.envelope import Failure
from tubemq_spark.protocol.errcode import (
    ErrCode,
    NotFound,
    Reaction,
    broker_in,
    code_name,
    error_for_code,
    error_for_failure,
    is_elsewhere,
    not_found_kind,
    reaction_to,
)

EXCEPTIONS = "org.apache.inlong.tubemq.corerpc.exception."


@given(st.integers().filter(lambda code: code not in set(ErrCode)))
def test_an_unknown_code_fails_and_is_shown(code: int) -> None:
    assert reaction_to(code) is Reaction.FAIL
    assert code_name(code) == "UNKNOWN"
    error = error_for_code(code, "its text", "get from broker 1")
    assert isinstance(error, ServerError)
    assert (error.code, error.name, error.message) == (code, "UNKNOWN", "its text")
    assert str(error) == f"get from broker 1 failed with {code} UNKNOWN: its text"


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


@pytest.mark.parametrize(
    ("code", "text", "broker_id"),
    [
        (410, "[Duplicated Register] Partition 7#g:t:0 has been registered by c", 7),
        (410, "[Duplicated Register] Partition 12#a#b:t:0 has been registered by Partition 3#", 12),
        (410, "[Duplicated Register] Remove Invalid Consumer Register c#g:t:0", None),
        (410, "Partition 7#g:t:0 has been registered by c", None),
        (410, "[Duplicated Register] Partition 99999999999#g:t:0 has been registered by c", None),
        (410, "", None),
        (403, "[Duplicated Register] Partition 7#g:t:0 has been registered by c", None),
    ],
)
def test_a_broker_names_itself_when_another_client_has_the_partition(
    code: int, text: str, broker_id: int | None
) -> None:
    assert broker_in(code, text) == broker_id
