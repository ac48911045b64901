# SPDX-License-Identifier: Apache-2.0
"""Moves an idle group: claims its partitions, shows what would change, and moves it while it holds them.

Nobody else can read in the group, or move it, between the look at its positions and the change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tubemq_spark.cli.moments import place_of
from tubemq_spark.cli.reading import GroupMember
from tubemq_spark.errors import ConfigError, PartitionOccupiedError, TubeMQError
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.metadata import Partition


class GroupBusyError(TubeMQError):
    """Another client reads in the group."""

    cause = "Another client reads in the group that `offsets` shall move."
    remedy = "Stop the client that the text names. The claim of a client that died ends after about half a minute."


@dataclass(frozen=True)
class Move:
    """A group's change of position in one partition, in bytes of the index."""

    partition: Partition
    old: int
    new: int

    @property
    def entries(self) -> int:
        """The number of index entries between the two, negative if the group moves back."""
        return (self.new - self.old) // UNIT

    def as_json(self) -> dict[str, object]:
        return {**place_of(self.partition), "old": self.old, "new": self.new, "entries": self.entries}


def move_group(
    member: GroupMember,
    find: Callable[[GroupMember], Mapping[Partition, int]],
    approve: Callable[[list[Move]], bool],
) -> list[Move]:
    """Move the group to the positions that `find` returns, if `approve` agrees; return what was moved.

    `find` and `approve` are called while the partitions are held. Raise `GroupBusyError` if another client holds one of
    them; then nothing moves.
    """
    try:
        with member:
            before = member.positions
            moves = [Move(one, before[one].group, new) for one, new in sorted(find(member).items())]
            moves = [move for move in moves if move.old != move.new]
            if not moves or not approve(moves):
                return []
            member.claims.take({move.partition: move.new for move in moves})
            return moves
    except PartitionOccupiedError as error:
        raise GroupBusyError(
            f"group {member.session.group} is in use: {error.holder or 'another client'} holds a partition of "
            f"{', '.join(member.topics)}. Stop it first; the claim of a client that died ends after about half a minute"
        ) from None
    except ConfigError as error:  # the master refuses a member of another kind than those that it has
        if "the group is in use" not in str(error):
            raise
        raise GroupBusyError(f"group {member.session.group} is in use: {error}") from None
