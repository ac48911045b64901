# SPDX-License-Identifier: Apache-2.0
"""Java consumers share a group of the embedded server, which assigns the partitions to them (rebalance)."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from tests.interop.java_client import JavaClient, Member, Received
from tests.waiting import wait_until
from tubemq_spark.testing import EmbeddedTubeMQ

GROUP = "shared"
PARTITIONS = 3
UNIT = 28


def owners(tubemq: EmbeddedTubeMQ) -> dict[int, str]:
    """Return client ids by partition."""
    return {partition: client for (group, _, _, partition), client in tubemq.claims().items() if group == GROUP}


def wait_for_owners(tubemq: EmbeddedTubeMQ, *members: Member) -> dict[int, str]:
    """Wait until all partitions are held, each of `members` holds some, and no other client does."""
    wanted = {member.client_id for member in members}

    def is_dealt() -> bool:
        found = owners(tubemq)
        return len(found) == PARTITIONS and set(found.values()) == wanted

    wait_until(is_dealt)
    return owners(tubemq)


def wait_until_confirmed(tubemq: EmbeddedTubeMQ, count: int) -> None:
    """Wait until so many messages are confirmed. Others come again after their consumer has left."""

    def confirmed() -> list[int | None]:
        return [tubemq.group_offset(GROUP, "demo", 1, partition) for partition in range(PARTITIONS)]

    wait_until(lambda: confirmed() == [count * UNIT] * PARTITIONS, f"{count} confirmed messages")


def send(tubemq: EmbeddedTubeMQ, name: str, count: int = 30) -> list[bytes]:
    return [tubemq.send("demo", f"{name} {n}".encode(), partition=n % PARTITIONS).body for n in range(count)]


def bodies(received: list[Received]) -> Counter[bytes]:
    return Counter(message.body for message in received)


def by_partition(received: list[Received]) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = defaultdict(list)
    for message in received:
        found[int(message.partition.rpartition(":")[2])].append(message.body)
    return found


@pytest.mark.parametrize("push", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["pull", "push"])
def test_each_partition_has_one_owner_and_a_member_that_leaves_is_replaced(
    embedded: EmbeddedTubeMQ, java_here: JavaClient, push: bool
) -> None:
    with java_here.member("demo", GROUP, push=push) as first:
        wait_for_owners(embedded, first)
        begin = send(embedded, "alone")
        first.wait_until(lambda received: len(received) >= len(begin))
        wait_until_confirmed(embedded, len(begin))
        with java_here.member("demo", GROUP, push=push) as second:
            dealt = wait_for_owners(embedded, first, second)
            shared = send(embedded, "shared")
            wait_until(lambda: len(first.received) + len(second.received) >= len(begin) + len(shared))
            wait_until_confirmed(embedded, len(begin) + len(shared))
            for member in (first, second):
                held = {partition for partition, client in dealt.items() if client == member.client_id}
                came = by_partition([one for one in member.received if one.body in shared])
                assert came == {partition: shared[partition::PARTITIONS] for partition in held}

            first.leave()
            assert first.client_id not in owners(embedded).values()
            wait_for_owners(embedded, second)
            left = send(embedded, "left")
            second.wait_until(lambda received: set(left) <= set(bodies(received)))
            wait_until_confirmed(embedded, len(begin + shared + left))

            assert bodies(first.received + second.received) == Counter(begin + shared + left)
            second.leave()
    end = len(begin + shared + left) * UNIT
    confirmed = [embedded.group_offset(GROUP, "demo", 1, partition) for partition in range(PARTITIONS)]
    assert confirmed == [end] * PARTITIONS


def test_a_restarted_broker_gets_its_readers_back(embedded: EmbeddedTubeMQ, java_here: JavaClient) -> None:
    with java_here.member("demo", GROUP) as member:
        wait_for_owners(embedded, member)
        begin = send(embedded, "before")
        member.wait_until(lambda received: len(received) >= len(begin))

        embedded.stop_broker(1)
        embedded.start_broker(1)
        rest = send(embedded, "after")

        received = member.wait_until(lambda received: set(begin + rest) <= set(bodies(received)))
        assert set(bodies(received)) == set(begin + rest)
        member.leave()
