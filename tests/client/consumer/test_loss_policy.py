# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pickle

import pytest

from tubemq_spark.client.consumer.loss_policy import BATCH_ADVICE, STREAM_ADVICE, LossPolicy
from tubemq_spark.errors import DataLossError

LOSS = DataLossError("messages are gone", topic="t", broker_id=1, partition=2, asked=140, offered=84)


@pytest.mark.parametrize("advice", [STREAM_ADVICE, BATCH_ADVICE])
def test_a_loss_fails_the_query_and_says_how_to_go_on(advice: str) -> None:
    with pytest.raises(DataLossError, match=r"^messages are gone\. .*'failOnDataLoss'") as caught:
        LossPolicy(advice=advice).report(LOSS)
    assert (caught.value.topic, caught.value.asked, caught.value.offered) == ("t", 140, 84)


def test_a_loss_is_logged_where_the_user_chose_to_go_on(caplog: pytest.LogCaptureFixture) -> None:
    LossPolicy(fail=False, advice=STREAM_ADVICE).report(LOSS)
    (record,) = caplog.records
    assert record.getMessage() == (
        "[data-loss] messages are gone; reading goes on without them, because option 'failOnDataLoss' is false"
    )


def test_the_policy_travels_to_executors() -> None:
    policy = LossPolicy(fail=False, advice=STREAM_ADVICE)
    assert pickle.loads(pickle.dumps(policy)) == policy
