"""The driver's claim on one partition, as a state machine with what the broker reported last."""

from __future__ import annotations

from dataclasses import dataclass

from tubemq_spark.client.consumer.claim_acquirer import GroupPosition
from tubemq_spark.protocol.lifecycle import CLAIM, ClaimEvent, ClaimState, Lifecycle
from tubemq_spark.protocol.metadata import Partition

_UNKNOWN_POSITION = GroupPosition(-1, -1)


@dataclass
class PartitionClaim:
    """The driver's claim on one partition, or its attempts to get one."""

    life: Lifecycle[ClaimState, ClaimEvent]
    client_id: str = ""  # under which the driver holds the partition, or has lent it
    position: GroupPosition = _UNKNOWN_POSITION  # as the broker reported it last
    claimed_at: float = 0.0  # on the monotonic clock
    unanswered_id: str | None = None  # the client id of a claim that the broker may have made, but did not confirm
    is_doubtful: bool = False  # a fetch of an earlier holder may still be running
    becomes_doubtful: bool = False  # the claim will be doubtful when it is acquired
    is_suspect: bool = False  # a heartbeat's reply says that the driver does not hold the partition
    is_topic_unknown: bool = False
    keep: bool = False  # `release` leaves the claim to expire

    @classmethod
    def on(cls, partition: Partition) -> PartitionClaim:
        """Return a claim that is not acquired yet."""
        return cls(Lifecycle(f"the driver's claim on {partition}", ClaimState.FREE, CLAIM))

    @property
    def is_held(self) -> bool:
        return self.life.state is ClaimState.HELD

    def on_acquired(self, client_id: str, position: GroupPosition, now: float) -> None:
        was_lent = self.life.state is ClaimState.LENT  # then a task has verified the partition
        self.is_doubtful = self.becomes_doubtful or (self.is_doubtful and not was_lent)
        self.becomes_doubtful = self.is_topic_unknown = False
        self.life.on(ClaimEvent.REGISTERED)
        self.client_id, self.position, self.claimed_at = client_id, position, now
