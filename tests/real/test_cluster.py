# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from tests.real.cluster import RealTubeMQ, TopicSpec


@pytest.mark.real
@pytest.mark.thorough  # tests/contract/test_stories.py kills and starts brokers too
def test_a_killed_broker_comes_back() -> None:
    with RealTubeMQ(topics={"demo": TopicSpec(partitions=2)}) as tubemq:
        before = tubemq.pids["broker-1"]
        tubemq.kill_broker(1)
        with pytest.raises(OSError, match="refused"):
            tubemq.broker_admin(1, method="admin_query_pubinfo")
        tubemq.start_broker(1)

        assert tubemq.pids["broker-1"] != before
        (topic,) = tubemq.admin(method="admin_query_topic_info", topicName="demo")["data"]
        assert (topic["totalRunNumPartCount"], topic["isSrvAcceptPublish"]) == (2, True)
        assert tubemq.group_offset("nobody", "demo", 1, 0) is None
