"""How a handler's work becomes the outcome that its reply message names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tubemq_spark.protocol.errcode import ErrCode


class DeclinedError(Exception):
    """A call that is answered with an error code in the reply message."""

    def __init__(self, code: ErrCode, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


def bad_request(text: str) -> DeclinedError:
    return DeclinedError(ErrCode.BAD_REQUEST, text)


@contextmanager
def filling_status(reply: Any) -> Iterator[None]:
    """Fills `errCode`, `errMsg` and any `success` by how the block ends; a `DeclinedError` goes no further."""
    code, text = ErrCode.SUCCESS, "OK!"
    try:
        yield
    except DeclinedError as declined:
        code, text = declined.code, declined.text
    reply.errCode = code
    reply.errMsg = text
    if "success" in reply.DESCRIPTOR.fields_by_name:
        reply.success = code == ErrCode.SUCCESS
