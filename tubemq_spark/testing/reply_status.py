# SPDX-License-Identifier: Apache-2.0
"""Error codes of reply messages: a handler raises `DeclinedError`, and the reply carries its code and text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tubemq_spark.protocol.errcode import ErrCode


class DeclinedError(Exception):
    """A call that the server answers with an error code in the reply message."""

    def __init__(self, code: ErrCode, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


def bad_request(text: str) -> DeclinedError:
    return DeclinedError(ErrCode.BAD_REQUEST, text)


@contextmanager
def filling_status(reply: Any) -> Iterator[None]:
    """Set `errCode`, `errMsg` and `success` (if there is one) when the block ends; swallow a `DeclinedError`."""
    code, text = ErrCode.SUCCESS, "OK!"
    try:
        yield
    except DeclinedError as declined:
        code, text = declined.code, declined.text
    reply.errCode = code
    reply.errMsg = text
    if "success" in reply.DESCRIPTOR.fields_by_name:
        reply.success = code == ErrCode.SUCCESS
