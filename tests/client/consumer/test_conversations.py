# SPDX-License-Identifier: Apache-2.0
"""Conversations are held side by side; one that fails or waits goes on when the others have got as far as they can."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Any

import pytest

from tests.clocks import ManualClock
from tubemq_spark.client.consumer.conversations import Begin, Conversation, Wait, converse, hold
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import ConfigError, TransportError
from tubemq_spark.protocol.metadata import Partition

A, B, C = (Partition(1, "t", number) for number in range(3))
AWAY = TransportError("broker 1 is away")
Ask = Any  # stands for the requests of a conversation


class Line:
    """A channel that answers a text with itself, or raises in the conversation what `troubles` has for it next."""

    def __init__(self, troubles: Mapping[str, Sequence[Exception | None]] | None = None) -> None:
        self.clock = ManualClock(1000.0)
        self.settings = ClientSettings((), retry_for=10.0, clock=self.clock)
        self.troubles = {text: list(several) for text, several in (troubles or {}).items()}
        self.writes: list[list[str]] = []
        self.failures: list[tuple[Partition, str]] = []

    def exchange(self, requests: Mapping[Partition, Sequence[Any]]) -> Any:
        self.writes.append([text for several in requests.values() for text in several])
        return {partition: [self._answer(text) for text in several] for partition, several in requests.items()}

    def _answer(self, text: str) -> Any:
        return (self.troubles.get(text) and self.troubles[text].pop(0)) or text

    def failed(self, partition: Partition, error: TransportError) -> None:
        self.failures.append((partition, str(error)))


def saying(*texts: str) -> Conversation[list[str]]:
    """Says one after the other, and returns the answers."""
    heard = []
    for text in texts:
        asked: Ask = [text]
        (answer,) = yield asked
        if isinstance(answer, Exception):
            raise answer
        heard.append(answer)
    return heard


def test_conversations_are_held_side_by_side() -> None:
    line = Line()
    begin = {A: partial(saying, "a1", "a2"), B: partial(saying), C: partial(saying, "c1", "c2", "c3")}
    assert hold(line, begin, "talking") == {A: ["a1", "a2"], B: [], C: ["c1", "c2", "c3"]}
    assert line.writes == [["a1", "c1"], ["a2", "c2"], ["c3"]]
    assert not line.clock.pauses
    assert hold(line, {}, "talking") == {}


def test_a_write_has_so_many_conversations() -> None:
    line = Line()
    assert hold(line, {one: partial(saying, str(one.partition_id)) for one in (A, B, C)}, "talking", at_once=2)
    assert line.writes == [["0", "1"], ["2"]]


def test_one_that_fails_begins_again_when_the_others_are_complete() -> None:
    line = Line({"a2": [AWAY]})
    begin = {A: partial(saying, "a1", "a2"), C: partial(saying, "c1", "c2", "c3")}
    assert hold(line, begin, "talking") == {A: ["a1", "a2"], C: ["c1", "c2", "c3"]}
    assert line.writes == [["a1", "c1"], ["a2", "c2"], ["c3"], ["a1"], ["a2"]]
    assert line.failures == [(A, str(AWAY))]
    assert len(line.clock.pauses) == 1


@pytest.mark.parametrize("leave_out", [False, True])
def test_one_that_keeps_failing_is_given_up(leave_out: bool) -> None:
    """That it gets as far as before, again and again, is no progress."""
    line = Line({"a2": [AWAY] * 1000})
    talk: Callable[[], Any] = partial(
        hold, line, {A: partial(saying, "a1", "a2"), C: partial(saying, "c1")}, "talking", leave_out=leave_out
    )
    if leave_out:
        assert talk() == {C: ["c1"]}
    else:
        with pytest.raises(
            TransportError, match="away; gave up after 10 s, with 1 of 2 partitions to go, talking"
        ) as caught:
            talk()
        assert caught.value.unserved == {A}
    assert 10 <= sum(line.clock.pauses) < 12


def test_the_time_for_retries_begins_again_with_each_progress() -> None:
    line = Line({"a1": [AWAY] * 10, "a2": [AWAY] * 10, "a3": [AWAY] * 10})
    assert hold(line, {A: partial(saying, "a1", "a2", "a3")}, "talking") == {A: ["a1", "a2", "a3"]}
    assert sum(line.clock.pauses) > 15


@pytest.mark.parametrize("seconds", [0.0, 7.0])
def test_one_that_waits_goes_on_where_it_was(seconds: float) -> None:
    """A limit of the cluster may last for longer than retries."""

    def waiting() -> Conversation[list[str]]:
        heard: list[str] = yield from saying("a1")
        for _ in range(5):
            assert (yield Wait("not yet", seconds))
        return heard + (yield from saying("a2"))

    line = Line()
    begin: dict[Partition, Begin[list[str]]] = {A: waiting, B: partial(saying, "b1", "b2")}
    assert hold(line, begin, "talking") == {A: ["a1", "a2"], B: ["b1", "b2"]}
    assert line.writes == [["a1", "b1"], ["b2"], ["a2"]]
    assert len(line.clock.pauses) == 5
    assert min(line.clock.pauses) >= seconds


@pytest.mark.parametrize("has_result", [True, False])
def test_one_that_waits_is_told_when_the_time_is_over(has_result: bool) -> None:
    def waiting() -> Conversation[str]:
        while (yield Wait("no clear answer")):
            pass
        if not has_result:
            raise TransportError("it stays unclear")
        return "unclear"

    if has_result:
        assert hold(Line(), {A: waiting}, "talking") == {A: "unclear"}
    else:
        with pytest.raises(TransportError, match="gave up after 10 s, talking"):
            hold(Line(), {A: waiting}, "talking")


def test_another_error_ends_all_when_each_answer_has_been_passed_on() -> None:
    line = Line({"a1": [ConfigError("refused")]})
    heard: list[str] = []

    def hearing() -> Conversation[None]:
        heard.extend((yield from saying("b1")))

    begin: dict[Partition, Begin[Any]] = {A: partial(saying, "a1"), B: hearing}
    with pytest.raises(ConfigError, match="refused"):
        hold(line, begin, "talking")
    assert heard == ["b1"]


def test_the_lock_is_free_in_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    line, lock = Line({"a1": [AWAY]}), Lock()
    seen: list[bool] = []
    monkeypatch.setattr(line.clock, "sleep", lambda _: seen.append(lock.locked()))
    monkeypatch.setattr(line, "failed", lambda *_: seen.append(lock.locked()))
    hold(line, {A: partial(saying, "a1")}, "talking", lock=lock)
    assert seen == [True, False]


def test_a_single_conversation_passes_errors_on() -> None:
    def waiting() -> Conversation[list[str]]:
        yield Wait("not yet", 3.0)
        return (yield from saying("a1"))

    line = Line({"a1": [None, AWAY]})
    assert converse(line, A, waiting()) == ["a1"]
    assert line.clock.pauses == [3.0]
    with pytest.raises(TransportError, match="away"):
        converse(line, A, waiting())
