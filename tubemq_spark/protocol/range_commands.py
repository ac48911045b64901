"""The commands of an `ExactRange`, and which replies to them still matter."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple


class Action(Enum):
    SEEK = auto()  # register at `position`
    FIND_FLUSHED_END = auto()  # register at `position` to read files only: the reply has the position where they end
    FETCH = auto()  # get messages, in manual mode
    ROLL_BACK = auto()  # commit with lastPackConsumed=false


class Command(NamedTuple):
    action: Action
    position: int = -1


class CommandQueue:
    """Commands to send, and commands that wait for their replies, which come in the same order.

    A new plan starts a new generation. Replies to commands of earlier generations arrive but do not matter any more.
    """

    def __init__(self) -> None:
        self._generation = 0
        self._to_send: list[Command] = []
        self._unanswered: deque[tuple[int, Command]] = deque()

    def plan(self, commands: Sequence[Command]) -> None:
        """Send `commands` next, and ignore the replies to all that was sent before."""
        self._generation += 1
        self._to_send = list(commands)

    def repeat(self, command: Command) -> None:
        """Send `command` again, as a part of the same plan."""
        self._to_send = [command]

    def next_commands(self, fetches: int) -> list[Command]:
        """Return the commands to send now, with as many fetches as are missing to have `fetches` in flight."""
        in_flight = sum(
            generation == self._generation and command.action is Action.FETCH
            for generation, command in self._unanswered
        )
        commands = self._to_send + [Command(Action.FETCH)] * (fetches - in_flight)
        self._to_send = []
        self._unanswered.extend((self._generation, command) for command in commands)
        return commands

    @property
    def awaited(self) -> Action | None:
        """The action whose reply comes next, None when nothing is unanswered."""
        return self._unanswered[0][1].action if self._unanswered else None

    def answered(self) -> Command | None:
        """Remove the oldest unanswered command and return it, or None if its reply does not matter any more."""
        generation, command = self._unanswered.popleft()
        return command if generation == self._generation else None

    def disconnect(self) -> None:
        """Forget the unanswered commands: their connection is closed."""
        self._unanswered.clear()
