from __future__ import annotations

import pytest

from tubemq_spark.client.routing import Avoidance
from tubemq_spark.protocol.metadata import Partition

PARTITIONS = [Partition(broker_id, "demo", number) for broker_id in (1, 2) for number in (0, 1)]
P10, P11, P20, P21 = PARTITIONS


@pytest.mark.parametrize(
    ("now", "left"),
    [(0.0, [P20]), (3.0, [P20, P21]), (9.9, [P20, P21]), (10.0, PARTITIONS)],
)
def test_what_is_avoided_comes_back(now: float, left: list[Partition]) -> None:
    avoidance = Avoidance()
    avoidance.broker(1, 10.0)
    avoidance.broker(1, 5.0)  # does not shorten it
    avoidance.partition(P21, 3.0)
    assert list(avoidance.left_by(PARTITIONS, now)) == left


def test_it_shows_what_it_avoids() -> None:
    avoidance = Avoidance()
    avoidance.broker(2, 1.0)
    avoidance.partition(P10, 1.0)
    assert repr(avoidance) == "<Avoidance of brokers [2], partitions ['1:demo:0']>"
