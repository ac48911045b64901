# SPDX-License-Identifier: Apache-2.0
"""Rate limits: a reader waits, does not fail, and logs each limit once."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from tests.faults.engine import GROUP, RETRY_FOR, Query, fill, stored
from tubemq_spark.client.consumer import fetch_throttle as pacing
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.testing import EmbeddedTubeMQ

REFUSALS = 3  # each is followed by a wait of 0.2 s, so that all together take longer than a query tries


@pytest.fixture(autouse=True)
def _nothing_was_said() -> Iterator[None]:
    pacing._log_once().cache_clear()
    yield
    pacing._log_once().cache_clear()


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the log lines about rate limits."""
    return [text for name, _, text in caplog.record_tuples if name == pacing.__name__]


def test_a_limited_reader_waits_and_does_not_fail(tubemq: EmbeddedTubeMQ, caplog: pytest.LogCaptureFixture) -> None:
    fill(tubemq)
    query = Query(tubemq, "one")
    with (
        caplog.at_level(logging.INFO),
        tubemq.on("get_message", client="_p", topic="one", times=REFUSALS).fail(
            ErrCode.SERVER_CONSUME_SPEED_LIMIT
        ) as limit,
    ):
        query.run()
    assert limit.fired == REFUSALS
    assert REFUSALS * 0.2 > RETRY_FOR
    assert query.rows == stored(tubemq, "one")
    (said,) = messages(caplog)
    assert said.startswith(f"[flow-limit] 1:one:0 for group {GROUP} is read more slowly")


def test_a_limited_reader_keeps_its_claim(tubemq: EmbeddedTubeMQ) -> None:
    fill(tubemq)
    query = Query(tubemq, "one")
    holders: list[str] = []
    limit = tubemq.on("get_message", client="_p", topic="one", times=1).fail(ErrCode.SERVER_CONSUME_SPEED_LIMIT)
    look = tubemq.on("get_message", client="_p", topic="one", nth=2, times=1).run(
        lambda: holders.extend(tubemq.claims().values())
    )
    with limit, look:
        query.run()
    assert look.fired == 1
    assert any("_p0_" in holder for holder in holders)  # the task's own
    assert query.rows == stored(tubemq, "one")


@pytest.mark.parametrize("whose", ["group", "default"])
def test_a_reader_obeys_the_pull_frequency_of_the_rules(
    tubemq: EmbeddedTubeMQ, caplog: pytest.LogCaptureFixture, whose: str
) -> None:
    """With a pause after each fetch there is never a second one in flight."""
    rule = json.dumps([{"type": 3, "rule": [{"normFreqInMs": 20, "filterFreqInMs": 20, "minDataFilterFreqInMs": 20}]}])
    tubemq.set_flow_rule(rule, GROUP if whose == "group" else None)
    fill(tubemq)
    query = Query(tubemq)
    with caplog.at_level(logging.INFO):
        query.run()
    assert query.rows == stored(tubemq)
    said = messages(caplog)
    assert len(said) == 3  # partitions
    assert all(f"for group {GROUP} is read more slowly" in text and whose in text for text in said)
