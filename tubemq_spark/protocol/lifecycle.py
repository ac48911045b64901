"""State machines as tables: an event that the table lacks for a state is an error."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Generic, TypeVar

from tubemq_spark.errors import ProtocolError

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class Lifecycle(Generic[S, E]):
    """The state of one object. Events change it as `table` says; the table's keys are (state, event)."""

    def __init__(self, what: str, start: S, table: Mapping[tuple[S, E], S]) -> None:
        self._what = what
        self._table = table
        self.state = start

    def on(self, event: E) -> S:
        """Return the new state. Raise `ProtocolError` if `event` is not possible in the current state."""
        try:
            self.state = self._table[self.state, event]
        except KeyError:
            raise ProtocolError(f"{self._what} is {self.state.name}: {event.name} cannot happen now") from None
        return self.state

    def __repr__(self) -> str:
        return f"<{self._what} {self.state.name}>"
