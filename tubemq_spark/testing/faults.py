"""Faults a test asks for: which calls they meet, and what happens to those.

Every rule is one `Fault`, which counts the calls it met, so that a test can assert that its fault happened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError, Message

from tubemq_spark.protocol.constants import Method, OpType
from tubemq_spark.protocol.envelope import Failure, Request, Response
from tubemq_spark.protocol.errcode import code_name
from tubemq_spark.testing.rpc_messages import REPLIES, REQUESTS

_UNREGISTER = "partition_unregister"  # the same method as a register on the wire
_NAMES = sorted([method.name.lower() for method in REPLIES] + [_UNREGISTER])


@dataclass(frozen=True)
class Effect:
    """What becomes of a call. Without anything said it is handled and answered as ever."""

    work: bool = True  # whether the server does what it is asked
    reply: Callable[[Request], Response | Failure] | None = None  # in place of the server's own
    delay: float = 0.0  # seconds on the clock before all else; what follows on the connection waits too
    before: Callable[[], object] | None = None  # run ahead of the work
    after: Callable[[], object] | None = None  # run between the work and the reply
    damage: Callable[[bytes], bytes] | None = None  # from the reply's frame to what is sent of it
    close: bool = False  # the connection ends after that
    silence: bool = False  # nothing more is answered on the connection, and nothing done
    late_by: int = 0  # how many more fetches of the group begin before this one moves the cursor
    passes: bool = False  # nothing of all this: the call goes on to the next rule


@dataclass(frozen=True)
class Conditions:
    """Which calls a rule is for: those of `method` that fit all that is said, from the `nth` on, `times` of them.

    `server` is "master 1" or "broker 1"; `client` is a part of the client id.
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
            raise ValueError(f"there is no call {self.method!r}; the calls are {', '.join(_NAMES)}")
        if self.nth < 1 or (self.times is not None and self.times < 1):
            raise ValueError(f"nth and times count from 1, not {self.nth} and {self.times}")

    def fit(self, server: str, name: str, fields: Message) -> bool:
        return (
            self.method == name
            and self.server in (None, server)
            and (self.client is None or self.client in _get(fields, "clientId", ""))
            and self.group in (None, _get(fields, "groupName", None))
            and self.topic in (None, _get(fields, "topicName", None))
            and self.partition in (None, _get(fields, "partitionId", None))
        )


class Fault:
    """A rule at work. `fired` says how many calls met it. `remove()` ends it, and so does the end of a `with` block.

    `error` is the first that a function given to `Calls.run` raised. It is raised once more, in the test: when the rule
    ends, or else by `EmbeddedTubeMQ.close`; never over another error that is on its way.
    """

    def __init__(self, conditions: Conditions, effect: Effect) -> None:
        self.fired = 0
        self.removed = False
        self.effect = effect
        self.error: BaseException | None = None
        self._owes = False  # whether nobody was told of the error yet
        self._conditions = conditions
        self._seen = 0

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to it."""
        return self.removed and not self._owes

    def remove(self) -> None:
        self.removed = True
        self.raise_error()

    def raise_error(self) -> None:
        """Raises the error that nobody was told of yet, if there is one."""
        if self._owes and self.error is not None:
            self._owes = False
            raise self.error

    def failed(self, error: BaseException) -> None:
        """Something that the test gave has raised."""
        if self.error is None:
            self.error, self._owes = error, True

    def __enter__(self) -> Fault:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.removed = True
        if kind is None:
            self.raise_error()

    def __repr__(self) -> str:
        return f"<Fault {self._conditions} fired {self.fired} times>"

    def meets(self, server: str, name: str, fields: Message) -> bool:
        """Whether this call has the effect. Counts it."""
        conditions = self._conditions
        if self.removed or not conditions.fit(server, name, fields):
            return False
        self._seen += 1
        if self._seen < conditions.nth or (conditions.times is not None and self.fired >= conditions.times):
            return False
        self.fired += 1
        return True


class Calls:
    """Some calls, and what may become of them. Each method makes one rule."""

    def __init__(self, faults: Faults, conditions: Conditions) -> None:
        self._faults = faults
        self._conditions = conditions

    def fail(self, code: int, text: str = "") -> Fault:
        """They are answered with an error code (`ErrCode`), and not done."""
        return self._add(Effect(work=False, reply=answer_with(code, text)))

    def throw(self, exception_name: str, text: str = "") -> Fault:
        """They are answered with a Java exception, and not done."""
        return self._add(Effect(work=False, reply=lambda request: Failure(exception_name, text)))

    def drop_request(self) -> Fault:
        """They are neither done nor answered."""
        return self._add(Effect(work=False))

    def drop_reply(self) -> Fault:
        """They are done and not answered."""
        return self._add(Effect(damage=lambda frame: b""))

    def end_late(self, fetches: int) -> Fault:
        """Of `get_message`: they read at once, but move the group's cursor when so many more fetches of the group have
        begun in the partition, whoever holds it by then. Their connection ends without an answer.
        """
        if self._conditions.method != "get_message" or fetches < 1:
            raise ValueError(f"{fetches} fetches after a {self._conditions.method}: only get_message can end late")
        return self._add(Effect(late_by=fetches, damage=lambda frame: b"", close=True))

    def delay(self, seconds: float) -> Fault:
        """They, and what follows them on their connection, are taken up later, by the cluster's clock."""
        return self._add(Effect(delay=seconds))

    def close_connection(self) -> Fault:
        """They are not done, and their connection ends without an answer."""
        return self._add(Effect(work=False, close=True))

    def close_mid_frame(self) -> Fault:
        """They are done, and the connection ends in the middle of the answer."""
        return self._add(Effect(damage=lambda frame: frame[: len(frame) // 2], close=True))

    def corrupt(self, at: int) -> Fault:
        """They are done, and the byte at `at` of the answer's frame (from its end when negative) comes out inverted. Of
        a frame that is too short it is the last, or first, byte.
        """
        return self._add(Effect(damage=lambda frame: _invert(frame, at)))

    def silence(self) -> Fault:
        """Their connection stays open, and nothing that comes over it is done or answered from then on."""
        return self._add(Effect(work=False, silence=True))

    def run(self, function: Callable[[], object], *, after: bool = False) -> Fault:
        """`function` runs before they are done, or after and ahead of the answer; what it stops answers no more.

        It runs on the servers' own thread: it may change the cluster, but must not wait for an answer of its servers,
        nor close it. When it raises, the connection ends without an answer, and the rule's `Fault` has the error.
        """
        return self._add(Effect(after=function) if after else Effect(before=function))

    def count(self) -> Fault:
        """Nothing becomes of them by this rule: it counts them, and they go on to the rules that were made later."""
        return self._add(Effect(passes=True))

    def _add(self, effect: Effect) -> Fault:
        return self._faults.add(Fault(self._conditions, effect))


class Faults:
    """The rules of a cluster. The first that fits a call is the one it meets, after those that only count."""

    def __init__(self) -> None:
        self._rules: list[Fault] = []

    # Tests add rules while the servers' thread goes through them: a list is replaced, and never changed.

    def add(self, fault: Fault) -> Fault:
        self._rules = [*(rule for rule in self._rules if not rule.is_over), fault]
        return fault

    def clear(self) -> None:
        """Ends them all. Raises the first error that nobody was told of."""
        for rule in self._rules:
            rule.removed = True
        self._rules = [rule for rule in self._rules if not rule.is_over]
        self.raise_errors()

    def raise_errors(self) -> None:
        """Raises the first error of a rule that nobody was told of, if there is one."""
        for rule in self._rules:
            rule.raise_error()

    def fault_on(self, server: str, request: Request) -> Fault | None:
        """The rule that says what becomes of the call."""
        if not self._rules:
            return None
        name, fields = _read(request)
        if fields is None:
            return None
        met = (rule for rule in self._rules if rule.meets(server, name, fields))
        return next((rule for rule in met if not rule.effect.passes), None)


def answer_with(code: int, text: str) -> Callable[[Request], Response]:
    """A reply of the request's own kind that carries an error code."""

    def reply(request: Request) -> Response:
        message = REPLIES[Method(request.method)]()
        values: dict[str, Any] = {
            "success": False, "errCode": code, "errMsg": text or code_name(code), "currOffset": -1, "brokerCheckSum": -1
        }  # fmt: skip
        for name, value in values.items():
            if name in message.DESCRIPTOR.fields_by_name:
                setattr(message, name, value)
        return Response(request.method, message.SerializeToString())

    return reply


def _invert(frame: bytes, at: int) -> bytes:
    if not frame:  # the server does not answer at all
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
        return "", None  # the server will say so itself
    if method is Method.PARTITION_REGISTER and _get(fields, "opType", None) == OpType.UNREGISTER:
        return _UNREGISTER, fields
    return method.name.lower(), fields


def _get(fields: Message, name: str, default: Any) -> Any:
    return getattr(fields, name, default)
