# SPDX-License-Identifier: Apache-2.0
"""Fault injection: rules that select calls and change what happens to them.

Each rule is one `Fault`. It counts the calls it applied to, so a test can assert that its fault happened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from google.protobuf.message import DecodeError, Message

from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.constants import IDENTITY_GROUP, Method, OpType
from tubemq_spark.protocol.envelope import Failure, Request, Response
from tubemq_spark.protocol.errcode import code_name
from tubemq_spark.testing.dispatch import REPLIES, REQUESTS, new_reply, set_status

_UNREGISTER = "partition_unregister"  # the same method as a register on the wire
_NAMES = sorted([method.name.lower() for method in REPLIES] + [_UNREGISTER])


@dataclass(frozen=True)
class Effect:
    """What happens to a call. With all defaults the server handles and answers it as usual."""

    work: bool = True  # False: the server does not execute the request
    reply: Callable[[Request], Response | Failure] | None = None  # replaces the server's own
    delay: float = 0.0  # seconds on the clock before all else; later requests of the connection wait too
    before: Callable[[], object] | None = None  # runs before the work
    after: Callable[[], object] | None = None  # runs between the work and the reply
    damage: Callable[[bytes], bytes] | None = None  # what is sent for a frame: none, part of it, two
    close: bool = False  # the connection ends afterwards
    silence: bool = False  # the server ignores all later requests of the connection
    delay_by_gets: int = 0  # more gets of the group that begin before this one moves the cursor
    passes: bool = False  # none of these: the next rule decides


@dataclass(frozen=True)
class Conditions:
    """The calls that a rule selects: those of `method` that match all conditions, from the `nth` on, `times` of them.

    `server` is "master 1" or "broker 1"; `client` is a part of the client id. The question which broker this is counts
    only if `group` names its group, because clients ask it on each new connection.
    """

    method: str
    server: str | None = None
    client: str | None = None
    group: str | None = None
    topic: str | None = None
    partition: int | None = None
    nth: int = 1
    times: int | None = None

    def __post_init__(self) -> None:
        if self.method not in _NAMES:
            raise ConfigError(f"there is no call {self.method!r}; the calls are {', '.join(_NAMES)}")
        if self.nth < 1 or (self.times is not None and self.times < 1):
            raise ConfigError(f"nth and times count from 1, not {self.nth} and {self.times}")

    def fit(self, server: str, name: str, fields: Message) -> bool:
        group = getattr(fields, "groupName", None)
        return (
            self.method == name
            and self.server in (None, server)
            and (self.client is None or self.client in getattr(fields, "clientId", ""))
            and self.group in ({group} if group == IDENTITY_GROUP else {None, group})
            and self.topic in (None, getattr(fields, "topicName", None))
            and self.partition in (None, getattr(fields, "partitionId", None))
        )


class Fault:
    """An active rule. `fired` counts the calls it applied to. `remove()` or the end of a `with` block ends it.

    `error` is the first error of a function given to `Calls.run`. The test receives it when the rule ends, else from
    `EmbeddedTubeMQ.close`. It never replaces another error that is being raised.
    """

    def __init__(self, conditions: Conditions, effect: Effect) -> None:
        self.fired = 0
        self.removed = False
        self.effect = effect
        self.error: BaseException | None = None
        self._error_pending = False  # not raised in the test yet
        self._conditions = conditions
        self._matched = 0

    @property
    def is_over(self) -> bool:
        """True when the rule is removed and its error was raised."""
        return self.removed and not self._error_pending

    def remove(self) -> None:
        self.removed = True
        self.raise_error()

    def raise_error(self) -> None:
        """Raise the pending error, if there is one."""
        if self._error_pending and self.error is not None:
            self._error_pending = False
            raise self.error

    def failed(self, error: BaseException) -> None:
        """Record the error of a function of the test."""
        if self.error is None:
            self.error, self._error_pending = error, True

    def __enter__(self) -> Fault:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.removed = True
        if kind is None:
            self.raise_error()

    def __repr__(self) -> str:
        return f"<Fault {self._conditions} fired {self.fired} times>"

    def meets(self, server: str, name: str, fields: Message) -> bool:
        """Return True if the rule applies to this call, and count the call."""
        conditions = self._conditions
        if self.removed or not conditions.fit(server, name, fields):
            return False
        self._matched += 1
        if self._matched < conditions.nth or (conditions.times is not None and self.fired >= conditions.times):
            return False
        self.fired += 1
        return True


class Calls:
    """Selected calls. Each method adds one rule for them."""

    def __init__(self, faults: Faults, conditions: Conditions) -> None:
        self._faults = faults
        self._conditions = conditions

    def fail(self, code: int, text: str = "") -> Fault:
        """Answer with an error code (`ErrCode`) without executing the request."""

        def reply(request: Request) -> Response:
            message = new_reply(Method(request.method))
            set_status(message, code, text or code_name(code))
            return Response(request.method, message.SerializeToString())

        return self._add(Effect(work=False, reply=reply))

    def throw(self, exception_name: str, text: str = "") -> Fault:
        """Answer with a Java exception without executing the request."""
        return self._add(Effect(work=False, reply=lambda request: Failure(exception_name, text)))

    def drop_request(self) -> Fault:
        """Neither execute nor answer the request."""
        return self._add(Effect(work=False))

    def drop_reply(self) -> Fault:
        """Execute the request and do not answer."""
        return self._add(Effect(damage=lambda frame: b""))

    def end_late(self, fetches: int) -> Fault:
        """For `get_message`: read at once, but move the group's cursor only when `fetches` more fetches of the group
        have begun in the partition, whichever client holds it then. The connection ends without an answer.
        """
        if self._conditions.method != "get_message" or fetches < 1:
            raise ConfigError(f"{fetches} fetches after a {self._conditions.method}: only get_message can end late")
        return self._add(Effect(delay_by_gets=fetches, damage=lambda frame: b"", close=True))

    def delay(self, seconds: float) -> Fault:
        """Handle the request, and later ones of its connection, after `seconds` on the cluster's clock."""
        return self._add(Effect(delay=seconds))

    def close_connection(self) -> Fault:
        """Do not execute the request; end its connection without an answer."""
        return self._add(Effect(work=False, close=True))

    def close_mid_frame(self) -> Fault:
        """Execute the request and end the connection in the middle of the answer."""
        return self._add(Effect(damage=lambda frame: frame[: len(frame) // 2], close=True))

    def corrupt(self, at: int) -> Fault:
        """Execute the request and invert one byte of the answer's frame.

        A negative `at` counts from the end. In a frame that is too short it is the last, or first, byte.
        """
        return self._add(Effect(damage=lambda frame: _invert(frame, at)))

    def silence(self) -> Fault:
        """Keep the connection open, and neither execute nor answer anything on it from now on."""
        return self._add(Effect(work=False, silence=True))

    def run(self, function: Callable[[], object], *, after: bool = False) -> Fault:
        """Run `function` before the request is executed, or with `after` before it is answered.

        A server that the function stops does not answer. The function runs on the servers' thread: it may change the
        cluster, but must not wait for an answer of its servers, nor close it. When it raises, the connection ends
        without an answer, and the rule's `Fault` has the error.
        """
        return self._add(Effect(after=function) if after else Effect(before=function))

    def count(self) -> Fault:
        """Only count the calls; rules that were added later decide what happens to them."""
        return self._add(Effect(passes=True))

    def _add(self, effect: Effect) -> Fault:
        return self._faults.add(Fault(self._conditions, effect))


class Faults:
    """The rules of a cluster. The first matching rule that does not only count applies to a call."""

    def __init__(self) -> None:
        self._rules: list[Fault] = []

    # Tests add rules while the servers' thread iterates over them, so a list is replaced and never changed.

    def add(self, fault: Fault) -> Fault:
        self._rules = [*(rule for rule in self._rules if not rule.is_over), fault]
        return fault

    def clear(self) -> None:
        """Remove all rules, and raise the first pending error."""
        for rule in self._rules:
            rule.removed = True
        self._rules = [rule for rule in self._rules if not rule.is_over]
        self.raise_errors()

    def raise_errors(self) -> None:
        """Raise the first pending error of a rule, if there is one."""
        for rule in self._rules:
            rule.raise_error()

    def fault_on(self, server: str, request: Request) -> Fault | None:
        """Return the rule that applies to the call."""
        if not self._rules:
            return None
        name, fields = _read(request)
        if fields is None:
            return None
        met = (rule for rule in self._rules if rule.meets(server, name, fields))
        return next((rule for rule in met if not rule.effect.passes), None)


def _invert(frame: bytes, at: int) -> bytes:
    if not frame:  # the server does not answer
        return frame
    damaged = bytearray(frame)
    damaged[max(-len(frame), min(at, len(frame) - 1))] ^= 0xFF
    return bytes(damaged)


def _read(request: Request) -> tuple[str, Message | None]:
    try:
        method = Method(request.method)
        fields = REQUESTS[method]()
        fields.MergeFromString(request.data)
    except (ValueError, DecodeError):
        return "", None  # the server itself answers with the error
    if method is Method.PARTITION_REGISTER and getattr(fields, "opType", None) == OpType.UNREGISTER:
        return _UNREGISTER, fields
    return method.name.lower(), fields
