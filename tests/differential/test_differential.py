# SPDX-License-Identifier: Apache-2.0
"""Plays scripts on the embedded and on a real server and compares all replies: random scripts and fixed ones.

`python -m tests.differential` plays thousands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing

import pytest

from tests.differential.bench import Bench
from tests.differential.generate import FAMILIES, scripts
from tests.differential.play import Line, Target
from tests.differential.regressions import REGRESSIONS
from tests.differential.script import Script
from tests.differential.servers import Embedded, Real, Store
from tests.differential.shrink import findings, report
from tubemq_spark.protocol.constants import Method
from tubemq_spark.protocol.envelope import Response, decode_reply, encode_reply, parse
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb

pytestmark = pytest.mark.real

QUICK = ("memory", "master", "faults")  # families whose scripts wait for no timer of the real server
ALL = [name for name in FAMILIES if name != "half"]  # which would wait for two more flushes, 20 s
MAX_UNSTEADY = 2
STORES = 40  # of each topic, enough for one batch of each kind

HONEST = Script(
    "calm1",
    (
        {"call": "send", "client": "p", "partition": 0, "size": 10},
        {"call": "send", "client": "p", "partition": 0, "size": 20},
        {"call": "heartbeat", "client": "a", "group": "g", "partitions": (0,)},
        {"call": "register", "client": "a", "group": "g", "partition": 0, "status": 0, "at": ("base", 0)},
        {"call": "get", "client": "a", "group": "g", "partition": 0, "manual": True},
        {"call": "commit", "client": "a", "group": "g", "partition": 0},
        {"call": "get", "client": "a", "group": "g", "partition": 0, "manual": True},
    ),
)


def assert_equal(bench: Bench, scripts: Sequence[Script], *, empty: bool = False) -> None:
    """A few differences may not come again when their script is played once more. The real server's clock causes them:
    a timer fires in the middle of a script, or two ids that contain the time fall into one millisecond.
    """
    results = bench.run(scripts, empty=empty)
    found = findings(bench, results.differences, limit=5)
    text = "\n\n".join(map(report, found))
    print(text)
    assert all(finding.is_steady is False for finding in found), text
    assert sum(finding.count for finding in found) <= MAX_UNSTEADY, text
    assert results.played == len(scripts)


@pytest.fixture(scope="module")
def bench(pair: tuple[Real, Embedded]) -> Bench:
    return Bench(*pair, STORES)


def random_scripts(seed: str, count: int, families: Sequence[str]) -> list[Script]:
    return [script for family in scripts(seed, count, families).values() for script in family]


def test_known_differences_stay_fixed(bench: Bench) -> None:
    assert_equal(bench, [HONEST, *REGRESSIONS], empty=True)


def test_the_same_random_scripts_get_equal_replies(bench: Bench) -> None:
    assert_equal(bench, random_scripts("usual", 80, QUICK))


@pytest.mark.thorough
def test_new_random_scripts_get_equal_replies(bench: Bench, seed: str) -> None:
    assert_equal(bench, random_scripts(seed, 280, ALL))


class Liar(Target):
    """A view of a server in which `change` changes replies to `method`; None keeps a reply."""

    def __init__(self, honest: Target, method: Method, change: Callable[[bytes], bytes | None]) -> None:
        super().__init__("liar", honest.master, honest.broker, honest.framing, honest.known)
        self.method = method
        self.change = change

    def line(self, to_master: bool) -> Line:
        return LyingLine(super().line(to_master), self)


class LyingLine(Line):
    def __init__(self, line: Line, liar: Liar) -> None:
        self.__dict__.update(line.__dict__)
        self._line = line
        self._liar = liar

    def send(self, body: bytes) -> int:
        return self._line.send(body)

    def receive(self, serial_no: int) -> bytes:
        body = self._line.receive(serial_no)
        reply = decode_reply(body)
        if isinstance(reply, Response) and reply.method == self._liar.method:
            changed = self._liar.change(reply.data)
            if changed is not None:
                return encode_reply(Response(reply.method, changed))
        return body


class Lying:
    """A server whose target is a liar."""

    def __init__(self, server: Embedded, target: Target) -> None:
        self._server = server
        self.target = target

    def flush(self, stores: Iterable[Store]) -> None:
        self._server.flush(stores)

    def expire(self) -> None:
        self._server.expire()


def without_last_message(data: bytes) -> bytes | None:
    reply = parse(broker_pb.GetMessageResponseB2C, data)
    if not reply.messages:
        return None
    del reply.messages[-1]
    return reply.SerializeToString()


def messages_reversed(data: bytes) -> bytes | None:
    reply = parse(broker_pb.GetMessageResponseB2C, data)
    messages = list(reply.messages)
    del reply.messages[:]
    reply.messages.extend(reversed(messages))
    return reply.SerializeToString()


def another_text(data: bytes) -> bytes | None:
    reply = parse(broker_pb.GetMessageResponseB2C, data)
    reply.errMsg = reply.errMsg.replace("reached", "has reached")
    return reply.SerializeToString()


def committed_further(data: bytes) -> bytes | None:
    reply = parse(broker_pb.CommitOffsetResponseB2C, data)
    reply.currOffset += 28
    return reply.SerializeToString()


def unset(data: bytes) -> bytes | None:
    reply = parse(broker_pb.HeartBeatResponseB2C, data)
    reply.ClearField("hasPartFailure")
    return reply.SerializeToString()


@pytest.mark.parametrize(
    ("method", "change", "field", "steps"),
    [
        (Method.GET_MESSAGE, without_last_message, "messages", 3),
        (Method.GET_MESSAGE, messages_reversed, "messages", 4),
        (Method.GET_MESSAGE, another_text, "errMsg", 2),
        (Method.COMMIT_OFFSET, committed_further, "currOffset", 2),
        (Method.PARTITION_HEARTBEAT, unset, "hasPartFailure", 1),
    ],
)
def test_finds_a_changed_reply(
    pair: tuple[Real, Embedded],
    method: Method,
    change: Callable[[bytes], bytes | None],
    field: str,
    steps: int,
) -> None:
    one, other = pair
    with closing(Liar(other.target, method, change)) as liar:
        bench = Bench(one, Lying(other, liar), STORES)
        (found,) = findings(bench, bench.run([HONEST]).differences, limit=1)
    assert found.smallest.fields == [field]
    assert len(found.smallest.script.steps) == steps
    assert found.is_steady
