# SPDX-License-Identifier: Apache-2.0
"""All errors that this connector raises. The class says who must act.

    TubeMQError
    ├── ConfigError              the user: an option, an offset, a column
    │   ├── RowError               the user: a row of a DataFrame can never be sent
    │   └── TimestampMissingError  the user: messages have no $msgTime$, so no time can be found among them
    ├── AuthError                the user: credentials or permissions
    ├── PartitionOccupiedError   the user: another consumer of the group holds the partition
    │   └── FencedError          nobody: a newer attempt took over the partition and fenced this one, which must end
    ├── DataLossError            the operator: messages are lost
    ├── PositionMovedError       nobody: the group's position was moved during a read, run the batch again
    ├── ServerError              the operator: the server refused or failed
    ├── TransportError           the network: it failed for longer than the retries
    └── ProtocolError            the peer: it sent invalid bytes

All are names of `tubemq_spark`, too. All can be pickled, because Spark sends them from process to process. Each class
says its `cause` and its `remedy` for users: docs/errors.md shows them (`make docs`).
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any, ClassVar

from tubemq_spark.peer_text import escaped


class TubeMQError(Exception):
    """Base of all errors of the connector. Its text is one printable line, because parts of it may come from a peer.

    `cause` and `remedy` are sentences for users, and each class has its own.
    """

    cause: ClassVar[str] = "A command cannot go on: another program failed, or it would leave something out."
    remedy: ClassVar[str] = "Read the text: it says what to change, or has the first line of the other program's error."

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
    """An option, an offset or a column is invalid. `code` is that of the server's refusal, 0 without one."""

    code: int = 0

    cause = "An option, an offset in the checkpoint or a column is invalid, or does not fit the cluster."
    remedy = "Change what the text names. It says what was expected."


class RowError(ConfigError):
    """A row that is written can never be sent, whatever the cluster does."""

    cause = (
        "A row of the DataFrame can never be sent. The text has its number in the task, the first bytes of its key or "
        "else of its value, the column, and what is wrong there: a text of `BadRowError` or of *Columns and rows*."
    )
    remedy = (
        "Correct the column in the query. Or let option `failedRows` drop such rows or write them to a dead letter "
        "topic."
    )


class TimestampMissingError(ConfigError):
    """A time cannot be found among messages without times."""

    cause = "The search for a position by time read messages without the attribute `$msgTime$`."
    remedy = (
        "Give positions with `startingOffsets` and `endingOffsets` instead of times. Or let the producers set "
        "`$msgTime$`."
    )


class AuthError(TubeMQError):
    """The server refused the credentials, or the group may not read this topic."""

    cause = (
        "The cluster refused the user, the password or the visit token, or the group may not read the topic or use "
        "these filters."
    )
    remedy = (
        "Check `tubemq.user`, the password, and the clock of the machine. Ask the cluster's administrator to authorise "
        "the group for the topic and the filters."
    )


class ProtocolError(TubeMQError):
    """The peer sent bytes that TubeMQ's protocol does not allow."""

    cause = (
        "The peer's bytes are not TubeMQ's protocol: the port belongs to another service, TLS is on at one side only, "
        "the framing is another one, or a stored message is damaged."
    )
    remedy = (
        "Check the host and the port, `tubemq.tls.enabled` and `tubemq.rpc.framing`. For damaged messages set "
        "`corruptMessages` to `skip` or `keep`."
    )


class TransportError(TubeMQError):
    """The network failed: a connection was refused or closed, or no reply came in time.

    `unserved` are the partitions that could not be reached, if the call was for several. The brokers of those in
    `unknown` answered that they do not have the topic; `is_topic_unknown`, if the call was for one. `is_silence` means
    that the server accepted the connection and did not reply in time. `holder` is the client that holds the partition,
    if the server named it.
    """

    cause = (
        "A server could not be reached, closed the connection, or did not reply in time, for longer than the retries."
    )
    remedy = (
        "Check that the masters and brokers run, and that the driver and every executor reach the addresses in the "
        "text. Then start the query again: it continues from its checkpoint. For longer outages raise "
        "`tubemq.retry.maxElapsedMs`, for slow servers `tubemq.rpc.timeoutMs`."
    )

    def __init__(
        self,
        text: str,
        *,
        unserved: Collection[Any] = (),
        unknown: Collection[Any] = (),
        is_topic_unknown: bool = False,
        is_silence: bool = False,
        holder: str = "",
    ) -> None:
        super().__init__(text)
        self.unserved = unserved
        self.unknown = unknown
        self.is_topic_unknown = is_topic_unknown
        self.holder = holder
        self.is_silence = is_silence


class ServerError(TubeMQError):
    """The server replied with an error.

    `code` is TubeMQ's number, known or not, `name` its name in `TErrCodeConstants` or the class name of the server's
    exception, and `message` the server's text.
    """

    cause = "The server replied with an error code that a retry cannot solve, or that lasted longer than the retries."
    remedy = (
        "Read the server's text in the error, the server's log at that time, and the "
        "[codes](#error-codes-of-the-servers)."
    )

    def __init__(self, text: str, *, code: int, name: str, message: str) -> None:
        super().__init__(text)
        self.code = code
        self.name = name
        self.message = message


class PartitionOccupiedError(TubeMQError):
    """Another consumer of the group holds the partition. `holder` is its client id, from the broker's reply."""

    cause = (
        "Another consumer of the same group holds the partition and did not release it within `tubemq.claim.timeoutMs`."
    )
    remedy = (
        "Stop the other consumer: the text names its client id, the host of a Spark query, and the application of a "
        "batch read. Or use another `tubemq.group` ([limit 23](limits.md#limit-23))."
    )

    def __init__(self, text: str, *, holder: str) -> None:
        super().__init__(text)
        self.holder = holder


class FencedError(PartitionOccupiedError):
    """A newer attempt fenced this reader: it took over the claim. Discard what this reader reads after that."""

    cause = (
        "A newer attempt of the same task, or a newer run of the same query, took over the partition that this one "
        "reads, or the rows that it sends. This attempt must end."
    )
    remedy = (
        "Nothing, if a newer attempt or run goes on. If the error repeats, check that the query does not run twice "
        "with one checkpoint, and compare the clocks of the drivers."
    )


class PositionMovedError(TubeMQError):
    """Something moved the group's position while a range was read. Discard what the attempt read."""

    cause = (
        "Somebody moved the position of the group in which a task was reading: `tubemq.group` with `_spark_read`, or "
        "in a batch read `_spark_batch`. Or a broker lost messages in a crash while a task was reading them. The task "
        "discards what it has read."
    )
    remedy = (
        "Nothing at first: Spark runs the task again, or a restart of the query does. After a crash, the next run "
        "reports what was lost. If the error repeats, find out which administrator or program resets that group."
    )


class DataLossError(TubeMQError):
    """Messages of a range or a batch are lost.

    `asked` is the requested position and `offered` the position that the broker has instead, both in bytes of the index
    (28 for each message). If `offered` is greater, retention removed [asked, offered). If it is less, the store lost
    its tail [offered, asked), and the broker uses these positions again.
    """

    cause = (
        "Messages that the query must read are gone: retention removed them before they were read, or a broker lost "
        "the end of its log in a crash. The text has the exact range."
    )
    remedy = (
        "Find out whether the output has them already, and start the query once with `failOnDataLoss` set to `false`: "
        "[After a DataLossError](howto/data-loss.md). A restart without that ends with the same error. Against "
        "retention, read more often, or keep messages for longer."
    )

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
