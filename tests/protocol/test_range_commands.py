from __future__ import annotations

from tubemq_spark.protocol.range_commands import Action, Command, CommandQueue

SEEK, FETCH = Command(Action.SEEK, 28), Command(Action.FETCH)


def test_sends_a_plan_once_and_keeps_the_fetches_in_flight() -> None:
    queue = CommandQueue()
    queue.plan([SEEK])
    assert queue.next_commands(2) == [SEEK, FETCH, FETCH]
    assert queue.next_commands(2) == []
    assert queue.awaited is Action.SEEK
    assert [queue.answered(), queue.answered()] == [SEEK, FETCH]
    assert queue.next_commands(2) == [FETCH]


def test_a_new_plan_makes_earlier_replies_worthless() -> None:
    queue = CommandQueue()
    queue.plan([SEEK])
    queue.next_commands(1)
    queue.plan([Command(Action.ROLL_BACK), SEEK])
    assert queue.next_commands(1) == [Command(Action.ROLL_BACK), SEEK, FETCH]
    assert [queue.answered() for _ in range(5)] == [None, None, Command(Action.ROLL_BACK), SEEK, FETCH]


def test_a_repeated_command_belongs_to_the_same_plan() -> None:
    queue = CommandQueue()
    queue.plan([SEEK])
    queue.next_commands(0)
    queue.repeat(SEEK)
    assert queue.next_commands(0) == [SEEK]
    assert [queue.answered(), queue.answered()] == [SEEK, SEEK]


def test_a_disconnect_leaves_nothing_unanswered() -> None:
    queue = CommandQueue()
    queue.plan([SEEK])
    queue.next_commands(1)
    queue.disconnect()
    assert queue.awaited is None
