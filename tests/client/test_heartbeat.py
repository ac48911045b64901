# SPDX-License-Identifier: Apache-2.0
"""Heartbeats: their threads, failures, and forks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from tests.waiting import wait_until
from tubemq_spark.client.heartbeat import HEARTBEAT, Heartbeat
from tubemq_spark.errors import TransportError

SHORT = 0.01  # seconds
TIMEOUT = 30.0  # seconds after which a beat that does not come is an error


class Beats:
    """A heartbeat that counts its calls. `wait` waits for more of them."""

    def __init__(self, problem: Exception | None = None) -> None:
        self._problem = problem
        self._came = threading.Semaphore(0)
        self.thread: threading.Thread | None = None

    def __call__(self) -> None:
        self.thread = threading.current_thread()
        self._came.release()
        if self._problem is not None:
            raise self._problem

    def wait(self, count: int = 1) -> None:
        for _ in range(count):
            assert self._came.acquire(timeout=TIMEOUT), "the heart does not beat"


def ended(beats: Beats) -> bool:
    assert beats.thread is not None
    beats.thread.join(TIMEOUT)
    return not beats.thread.is_alive()


def test_each_heartbeat_runs_periodically_in_a_daemon_thread_of_its_own() -> None:
    heart = Heartbeat()
    first, second = Beats(), Beats()
    end_first, end_second = heart.keep(first, SHORT), heart.keep(second, SHORT)
    first.wait(3)
    second.wait(3)
    assert first.thread is not second.thread
    for beats in (first, second):
        assert beats.thread is not None
        assert (beats.thread.daemon, beats.thread.name) == (True, "tubemq-heartbeat")
    end_first()
    end_first()  # once more does no harm
    assert ended(first)
    second.wait(3)
    end_second()
    assert ended(second)


def test_a_hanging_heartbeat_delays_no_other_and_is_not_started_twice() -> None:
    heart = Heartbeat()
    answered = threading.Event()
    calls: list[threading.Thread] = []

    def hang() -> None:
        calls.append(threading.current_thread())
        assert answered.wait(TIMEOUT)

    end_hanging = heart.keep(hang, SHORT)
    wait_until(lambda: calls, "the beat that hangs")
    other = Beats()
    end_other = heart.keep(other, SHORT)
    other.wait(3)
    end_hanging()  # does not wait for it
    other.wait(3)
    end_other()
    assert ended(other)
    assert len(calls) == 1
    answered.set()
    calls[0].join(TIMEOUT)
    assert not calls[0].is_alive()
    assert len(calls) == 1


def test_a_heartbeat_whose_thread_cannot_start_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    heart = Heartbeat()

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="can't start"):
            heart.keep(lambda: None, SHORT)
    assert heart._beats == {}
    beats = Beats()
    end = heart.keep(beats, SHORT)
    beats.wait()
    end()
    assert ended(beats)


@pytest.mark.parametrize("problem", [TransportError("no route"), KeyError("a bug")], ids=["expected", "unexpected"])
def test_a_failed_heartbeat_is_logged_and_repeated(problem: Exception, caplog: pytest.LogCaptureFixture) -> None:
    heart = Heartbeat()
    failing, other = Beats(problem), Beats()
    end_failing, end_other = heart.keep(failing, SHORT), heart.keep(other, SHORT)
    failing.wait(3)
    other.wait(3)
    end_failing()
    end_other()
    assert ended(other)
    assert "a heartbeat failed" in caplog.text
    assert str(problem) in caplog.text


def test_a_heartbeat_that_was_ended_fails_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    threads: list[threading.Thread] = []
    ends: list[Callable[[], None]] = []

    def beat() -> None:
        threads.append(threading.current_thread())
        ends.pop()()
        raise TransportError("its server is gone, too")

    ends.append(Heartbeat().keep(beat, SHORT))
    wait_until(lambda: bool(threads))
    threads[0].join(TIMEOUT)
    own = [one for one in caplog.records if one.thread == threads[0].ident and one.levelname == "WARNING"]
    assert not own


def test_failures_in_a_row_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    heart = Heartbeat()
    outcomes = [TransportError("no route"), TransportError("still none"), None, TransportError("gone again")]
    done = threading.Event()
    threads: set[int] = set()

    def beat() -> None:
        threads.add(threading.get_ident())
        if not outcomes:
            done.set()
        elif (outcome := outcomes.pop(0)) is not None:
            raise outcome

    end = heart.keep(beat, SHORT)
    assert done.wait(TIMEOUT)
    end()
    own = [record for record in caplog.records if record.thread in threads]  # clients of other tests may beat still
    said = [record.getMessage() for record in own if record.levelname == "WARNING"]
    assert said == [
        "[heartbeat-failed] a heartbeat failed: no route",
        "[heartbeat-failed] a heartbeat failed: gone again",
    ]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_starts_without_heartbeats() -> None:
    end = HEARTBEAT().keep(lambda: None, 3600.0)
    child = os.fork()
    if child == 0:
        end()  # the parent's: nothing to end here
        threads = [thread.name for thread in threading.enumerate()]
        fresh = HEARTBEAT()._beats == {} and "tubemq-heartbeat" not in threads
        HEARTBEAT().keep(lambda: None, 3600.0)
        end()
        os._exit(0 if fresh and len(HEARTBEAT()._beats) == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    end()
