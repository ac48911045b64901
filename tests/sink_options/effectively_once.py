# SPDX-License-Identifier: Apache-2.0
"""What the tests of `effectivelyOnce` on embedded servers share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from tests.clusters.embedded import EmbeddedCluster
from tests.sending import bodies_in
from tests.without_spark.checkpoints import new_checkpoint
from tests.without_spark.sink import Cells, Writing, schema
from tubemq_spark.client import forget_servers

Start = Callable[..., EmbeddedCluster]
_CHECKPOINTS: WeakKeyDictionary[EmbeddedCluster, str] = WeakKeyDictionary()


def rows(prefix: str, count: int, **others: Any) -> list[Cells]:
    """Return `count` rows with different values."""
    return [{"value": f"{prefix} {n}".encode(), **others} for n in range(count)]


def plan_batch(cluster: EmbeddedCluster, of: Sequence[Cells], topic: str | None = "demo", **given: Any) -> Writing:
    """Plan a micro-batch on the driver; `of` are rows with all of its columns. A cluster has one query by default."""
    checkpoint = _CHECKPOINTS.setdefault(cluster, new_checkpoint())
    effectively_once = {"effectivelyOnce": True, "checkpointLocation": checkpoint, **given}
    return Writing(cluster, schema(of), topic, streaming=True, **effectively_once)


def assert_each_stored_once(cluster: EmbeddedCluster, *parts: Sequence[Cells]) -> None:
    assert bodies_in(cluster) == Counter(row["value"] for part in parts for row in part)


def new_workers() -> None:
    """Act as if Spark had ended the workers before."""
    forget_servers()
