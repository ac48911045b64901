"""All errors that this connector raises. The class says who must act.

    TubeMQError
    ├── ConfigError              the user: an option, an offset, a row
    │   └── NoTimesError         the user: messages have no $msgTime$, so no time can be found among them
    ├── AuthError                the user: credentials or permissions
    ├── PartitionOccupiedError   the user: another consumer of the group holds the partition
    │   └── FencedError          nobody: a newer attempt took over the partition and fenced this one, which must end
    ├── DataLossError            the operator: messages are lost
    ├── PositionMovedError       nobody: the group's position was moved during a read, run the batch again
    ├── ServerError              the operator: the server refused or failed
    ├── TransportError           the network: it failed for longer than the retries
    └── ProtocolError            the peer: it sent invalid bytes

All errors can be pickled, because Spark sends them from process to process.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

from tubemq_spark.peer_text import escaped


class TubeMQError(Exception):
    """Base of all errors of the connector. Its text is one printable line, because parts of it may come from a peer."""

    def __init__(self, text: str = "") -> None:
        super().__init__(escaped(text))

    def __reduce__(self) -> tuple[Any, ...]:
        # By default, `pickle` passes only `args` to the constructor. Some constructors here need more.
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(kind: type[TubeMQError], args: tuple[Any, ...], state: dict[str, Any]) -> TubeMQError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class ConfigError(TubeMQError):
    """An option, an offset or a row is invalid."""


class NoTimesError(ConfigError):
    """A time cannot be found among messages without times."""


class AuthError(TubeMQError):
    """The server refused the credentials, or the group may not read this topic."""


class ProtocolError(TubeMQError):
    """The peer sent bytes that TubeMQ's protocol does not allow."""


class TransportError(TubeMQError):
    """The network failed: a connection was refused or closed, or no reply came in time.

    `unserved` are the partitions that could not be reached, if the call was for several.
    """

    def __init__(self, text: str, *, unserved: Collection[Any] = ()) -> None:
        super().__init__(text)
        self.unserved = unserved


class ServerError(TubeMQError):
    """The server replied with an error.

    `code` is TubeMQ's number, known or not, `name` its name in `TErrCodeConstants` or the class name of the server's
    exception, and `message` the server's text.
    """

    def __init__(self, text: str, *, code: int, name: str, message: str) -> None:
        super().__init__(text)
        self.code = code
        self.name = name
        self.message = message


class PartitionOccupiedError(TubeMQError):
    """Another consumer of the group holds the partition. `holder` is its client id, from the broker's reply."""

    def __init__(self, text: str, *, holder: str) -> None:
        super().__init__(text)
        self.holder = holder


class FencedError(PartitionOccupiedError):
    """A newer attempt fenced this reader: it took over the claim. Discard what this reader reads after that."""


class PositionMovedError(TubeMQError):
    """Something moved the group's position while a range was read. Discard what the attempt read."""


class DataLossError(TubeMQError):
    """Messages of a range or a batch are lost.

    `asked` is the requested position and `offered` the position that the broker has instead, both in bytes of the index
    (28 for each message). If `offered` is greater, retention removed [asked, offered). If it is less, the store lost
    its tail [offered, asked), and the broker uses these positions again.
    """

    def __init__(self, text: str, *, topic: str, broker_id: int, partition: int, asked: int, offered: int) -> None:
        super().__init__(text)
        self.topic = topic
        self.broker_id = broker_id
        self.partition = partition
        self.asked = asked
        self.offered = offered

    def advising(self, advice: str) -> DataLossError:
        """Return the same error with `advice` added."""
        advised = copy.copy(self)
        advised.args = (escaped(f"{self}. {advice}"),)
        return advised
