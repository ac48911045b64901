# SPDX-License-Identifier: Apache-2.0
"""Hash of keys: the partitioner gives the same key the same partition in every run and every language.

    slot       CRC-32 (of zlib) of the key's bytes, modulo 4096
    partition  of all the topic's, the one for which SHA-256 of the text `slot:brokerId:partitionId` is highest when
               compared byte by byte

This is rendezvous hashing: a new partition takes an equal share of the keys from all others, and no other key moves.
When a partition is removed, only its own keys move.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256

from tubemq_spark.protocol.metadata import Partition

# A key's slot never changes, and few slots move when a partition is added. So many that partitions get nearly equal
# shares, and so few that the owners of all are soon known. Another number would move keys of running queries.
SLOTS = 4096


def slot_of(key: bytes) -> int:
    return zlib.crc32(key) % SLOTS


def owner_of(slot: int, partitions: Sequence[Partition]) -> Partition:
    """Return the partition of a slot. `partitions` are all of one topic, at least one, in any order."""
    return max(partitions, key=lambda one: sha256(f"{slot}:{one.broker_id}:{one.partition_id}".encode()).digest())


class KeyMap:
    """The partitions of one topic by key. A slot's owner is computed when the first key asks for it."""

    def __init__(self, partitions: Sequence[Partition]) -> None:
        self.partitions = partitions
        self._owners: dict[int, Partition] = {}

    def __repr__(self) -> str:
        return f"<KeyMap of {len(self.partitions)} partitions>"

    def partition(self, key: bytes) -> Partition:
        slot = slot_of(key)
        owner = self._owners.get(slot)
        if owner is None:
            owner = self._owners[slot] = owner_of(slot, self.partitions)
        return owner


@lru_cache(maxsize=64)
def key_map(partitions: tuple[Partition, ...]) -> KeyMap:
    """Return the `KeyMap` that all tasks of the process share, because many partitions take a while to compute."""
    return KeyMap(partitions)
