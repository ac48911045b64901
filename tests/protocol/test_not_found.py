from __future__ import annotations

import pytest

from tubemq_spark.protocol.not_found import NotFound, not_found_kind


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
