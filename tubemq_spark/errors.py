"""Everything this connector raises on purpose; the class says who must act.

    TubeMQError
    ├── ConfigError              the user: an option, an offset, a row
    │   └── NoTimesError         the user: messages have no $msgTime$ by which a time could be found
    ├── AuthError                the user: credentials or permissions
    ├── PartitionOccupiedError   the user: another consumer of the group holds the partition
    │   └── FencedError          nobody: a newer attempt took the partition over, this one must end
    ├── DataLossError            the operator: messages are gone
    ├── PositionMovedError       nobody: the group's position was moved under a reader, the batch must run again
    ├── ServerError              the operator: the server refused or failed
    ├── TransportError           the network, after the retries
    └── ProtocolError            the peer: its bytes make no sense

All of them survive pickling, for Spark carries them between processes.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tubemq_spark.peer_text import escaped


class TubeMQError(Exception):
    """Base of all errors of the connector. Its text is one line of characters that print: much of it is a peer's."""

    def __init__(self, text: str = "") -> None:
        super().__init__(escaped(text))

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are rebuilt from `args` by default, which fits no constructor with more than a text.
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(kind: type[TubeMQError], args: tuple[Any, ...], state: dict[str, Any]) -> TubeMQError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class ConfigError(TubeMQError):
    """An option, an offset or a row that cannot be used."""


class NoTimesError(ConfigError):
    """A time was to be found among messages that have none."""


class AuthError(TubeMQError):
    """The server refused the credentials, or the group may not read this topic."""


class ProtocolError(TubeMQError):
    """Bytes of the peer that TubeMQ's protocol does not allow."""


class TransportError(TubeMQError):
    """The network failed: refused, closed, or no answer in time. `unserved` are the partitions that it kept from us,
    where somebody asked for more than one thing.
    """

    def __init__(self, text: str, *, unserved: Collection[Any] = ()) -> None:
        super().__init__(text)
        self.unserved = unserved


class ServerError(TubeMQError):
    """The server answered with an error.

    `code` is TubeMQ's number (kept as it came, known or not), `name` its name in `TErrCodeConstants` or the class name
    of the server's exception, `message` the server's own text.
    """

    def __init__(self, text: str, *, code: int, name: str, message: str) -> None:
        super().__init__(text)
        self.code = code
        self.name = name
        self.message = message


class PartitionOccupiedError(TubeMQError):
    """Another consumer of the group holds the partition; `holder` is its client id as the broker told it."""

    def __init__(self, text: str, *, holder: str) -> None:
        super().__init__(text)
        self.holder = holder


class FencedError(PartitionOccupiedError):
    """The claim of this reader was taken over by a newer attempt; what it still reads must not be used."""


class PositionMovedError(TubeMQError):
    """The group's position was moved from outside while a range was read; the attempt must not be used."""


class DataLossError(TubeMQError):
    """Messages that were to be read are gone.

    `asked` is the position that was wanted and `offered` the one the broker has instead, both in bytes of the index
    (28 a message). Offered above asked: retention removed [asked, offered). Offered below asked: the store lost its
    tail, [offered, asked) is gone and those positions are being used again.
    """

    def __init__(self, text: str, *, topic: str, broker_id: int, partition: int, asked: int, offered: int) -> None:
        super().__init__(text)
        self.topic = topic
        self.broker_id = broker_id
        self.partition = partition
        self.asked = asked
        self.offered = offered

    def advising(self, advice: str) -> DataLossError:
        """The same loss, with what to do about it."""
        return DataLossError(
            f"{self}. {advice}",
            topic=self.topic,
            broker_id=self.broker_id,
            partition=self.partition,
            asked=self.asked,
            offered=self.offered,
        )
