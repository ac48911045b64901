# SPDX-License-Identifier: Apache-2.0
"""Dialogues of an `ExactRange` with a broker, line by line.

    > seek 3, fetch        what the reader sends, with one fetch in flight; numbers are index entries
    < at 3 of 10           the cursor's position, and the end of the store
    < from 3: d e          a fetch that began at entry 3 returned the messages d and e
    < nothing: end         a fetch found none: at the `end` of the store, it `passed` others' messages, or `waits`
    < group at 3           where the group is, the reply to a roll-back
    < files end at 8       the reply to a seek that reads files only
    = 3:d 4:e              what was delivered; without numbers where the store is shared
    ! lost its tail        the error

These ten show the states; `test_exact_range.py` has properties of all dialogues.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace

import pytest

from tubemq_spark.errors import TubeMQError
from tubemq_spark.protocol.constants import INDEX_MSG_UNIT_SIZE as UNIT
from tubemq_spark.protocol.errcode import NotFound
from tubemq_spark.protocol.exact_range import ExactRange
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.range_state import Action, Command

OWN = {
    "the rest of a store": """
        > seek 0, fetch
        < at 0 of 3
        < from 0: a b c         the reply ends where the store and the range end, so it is complete
        > roll back, seek 0
        < group at 0            nothing moved the cursor
        < at 0 of 3             nothing was removed
        = 0:a 1:b 2:c
    """,
    "a part of a store": """
        > seek 0, fetch
        < at 0 of 9
        < from 0: a b c d e     the next reply will show where this one ends
        > fetch
        < from 5: f g           it ends at 5, and has five messages for five entries
        > roll back, seek 0
        < group at 0
        < at 0 of 9
        = 0:a 1:b 2:c
    """,
    "an entry that gives no message": """
        > seek 0, fetch
        < at 0 of 4
        < from 0: a c           which entry is empty?
        > fetch
        < from 3: d             the one message may be too long to be read from memory
        > roll back, files 0
        < group at 0
        < files end at 2
        > seek 0, files 0       asked again after a pause; has the store lost these entries meanwhile?
        < at 0 of 4
        < files end at 4
        > seek 0, fetch
        < at 0 of 4
        < from 0: a b c         there it is, now that it is read from a file
        > fetch
        < from 3: d
        > roll back, seek 0
        < group at 0
        < at 0 of 4
        = 0:a 1:b 2:c
    """,
    "a store that lost its tail": """
        > seek 0, fetch
        < at 0 of 2
        ! the store lost its tail, \\[56, 84\\)
    """,
    "a range of which retention took the beginning": """
        > seek 0, fetch
        < at 1 of 9
        ! retention removed \\[0, 28\\), the store begins at 28
    """,
    "a connection that breaks": """
        > seek 0, fetch
        < at 0 of 9
        < from 0: a b
        > fetch
        < from 2: c d
        = 0:a 1:b
        x                       the broker may have lost messages and used their positions again
        > seek 0, fetch
        < at 0 of 9
        < from 0: a b           delivered before, and not again
        > fetch
        < from 2: c d
        > fetch
        < from 4: e
        > roll back, seek 0
        < group at 0
        < at 0 of 9
        = 2:c
    """,
    "a broker that comes back with other messages": """
        > seek 0, fetch
        < at 0 of 9
        < from 0: a b
        > fetch
        < from 2: c d
        = 0:a 1:b
        x
        > seek 0, fetch
        < at 0 of 9
        < from 0: a B           not what was delivered
        > fetch
        < from 2: C D
        > roll back, seek 0, fetch
        < group at 0
        < at 0 of 9
        < from 0: a B C         and b is not there any more
        > roll back, seek 0
        < group at 0
        < at 0 of 9
        ! the store lost what was read in \\[0, 56\\) and uses the positions for other messages
    """,
    "a group that somebody moves": """
        > seek 0, fetch
        < at 0 of 9
        < from 0: a b c d
        > fetch
        < from 4: e
        > roll back, seek 0
        < group at 5            the reader's last seek went to 0
        > seek 0
        < at 0 of 9             the reply to the seek behind that roll-back
        < at 0 of 9             nothing is removed, so it was not retention
        ! the group was at 140 instead of 0
    """,
}
SHARED = {
    "a range of a shared store": """
        > seek 0, fetch
        < at 0 of 9
        < from 0: a             entries between messages are other partitions'
        > fetch
        < nothing: passed
        > fetch
        < from 2: c e           it may cross the end, entry 3
        > fetch
        < from 6: g
        > roll back, seek 3, fetch
        < group at 0
        < at 3 of 9
        < from 3: e g           the first message behind the end: cut the reply there
        > roll back, seek 0
        < group at 3
        < at 0 of 9
        = a c
    """,
    "a shared store that ends": """
        > seek 0, fetch
        < at 0 of 3
        < from 0: a
        > fetch
        < nothing: end
        > roll back, seek 0
        < group at 0
        < at 0 of 3             it still ends there, so nothing of the reply is behind the end
        = a
    """,
}
DIALOGUES = [*((name, text, True) for name, text in OWN.items()), *((n, text, False) for n, text in SHARED.items())]
START, END = 0, 3
_NAMES = {
    Action.SEEK: "seek {}",
    Action.FIND_FLUSHED_END: "files {}",
    Action.FETCH: "fetch",
    Action.ROLL_BACK: "roll back",
}
_KINDS = {"end": NotFound.END, "passed": NotFound.PASSED, "waits": NotFound.WAIT}


def shown(command: Command) -> str:
    return _NAMES[command.action].format(command.position // UNIT)


def delivered(reader: ExactRange) -> Iterator[str]:
    for batch in reader.take_batches():
        positions: Sequence[int | None] = batch.positions or [None] * len(batch.messages)
        for position, message in zip(positions, batch.messages, strict=True):
            yield message.name if position is None else f"{position // UNIT}:{message.name}"  # type: ignore[attr-defined]


def message(name: str) -> SimpleNamespace:
    return SimpleNamespace(name=name, messageId=ord(name), checkSum=0)


def reply(reader: ExactRange, text: str, store_end: int) -> Callable[[], None]:
    """Return the call that passes the reply."""
    match text.split():
        case ["at", position, "of", end]:
            return lambda: reader.on_seek(int(position) * UNIT, int(end) * UNIT)
        case ["from", begin, *names]:
            messages = [message(name) for name in names]
            return lambda: reader.on_fetch(int(begin.rstrip(":")) * UNIT, store_end * UNIT, messages)
        case ["nothing:", kind]:
            return lambda: reader.on_not_found(_KINDS[kind])
        case ["group", "at", position]:
            return lambda: reader.on_roll_back(int(position) * UNIT)
        case ["files", "end", "at", position]:
            return lambda: reader.on_flushed_end(int(position) * UNIT)
    raise ValueError(text)


@pytest.mark.parametrize(("script", "owns_store"), [one[1:] for one in DIALOGUES], ids=[one[0] for one in DIALOGUES])
def test_dialogue(script: str, owns_store: bool) -> None:
    reader = ExactRange(Partition(1, "demo", 0), START * UNIT, END * UNIT, owns_store=owns_store, depth=1)
    error: TubeMQError | None = None
    store_end = 0
    for line in script.strip().splitlines():
        mark, text = line.strip()[0], re.split(r"  +", line.strip()[1:].strip())[0]
        if mark == ">":
            assert [shown(command) for command in reader.commands()] == text.split(", ")
        elif mark == "=":
            assert " ".join(delivered(reader)) == text
        elif mark == "x":
            reader.on_disconnect()
        elif mark == "!":
            assert error is not None
            assert re.search(text, str(error))
        else:
            if found := re.fullmatch(r"at \d+ of (\d+)", text):
                store_end = int(found[1])
            try:
                reply(reader, text, store_end)()
            except TubeMQError as raised:
                error = raised
    assert reader.done is (error is None)
    assert reader.commands() == []
