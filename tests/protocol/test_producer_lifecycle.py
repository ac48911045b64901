from __future__ import annotations

import pytest

from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.producer_lifecycle import SendEvent, send_event

PARTITIONS = [Partition(broker, "demo", partition) for broker in (1, 2) for partition in range(4)]

FAILED = {301, 403, 404, 410, 415, 419, 452, 500, 503, 510, 599, 201}


@pytest.mark.parametrize("code", ErrCode)
def test_send_event_of_each_code(code: ErrCode) -> None:
    expected = SendEvent.FAILED if code in FAILED else SendEvent.REFUSED
    assert send_event(code) is (SendEvent.ACKNOWLEDGED if code == 200 else expected)


@pytest.mark.parametrize("code", [0, -1, 440, 1000])
def test_an_unknown_code_is_a_refusal(code: int) -> None:
    assert send_event(code) is SendEvent.REFUSED
