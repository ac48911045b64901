# SPDX-License-Identifier: Apache-2.0
"""What the connector has stored itself: offsets in checkpoints, names of claims, receipts."""

from __future__ import annotations

import json
import random
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tests.fuzz import corpus
from tests.fuzz.mutations import damaged, damaged_text
from tubemq_spark.client.producer.record_batch import RecordPlaces
from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.claim_id import DRIVER, ClaimId, Relation, holder_in
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.sink.receipts import Receipts, write_receipts
from tubemq_spark.source.offset import StreamOffset

_STRANGE: tuple[Any, ...] = (
    None, True, 0, -1, 27, 28, 2**63, -(2**70), 1.5, 1e300, "", "x", "1:0", "01:00", "\u0661:\u0660", "1:99999999999",
    [], {}, [[]], {"": {}}, {"t": {"1:0": 28}}, {"t": [1]}, "\ud800",
)  # fmt: skip
_WHOLE = json.dumps({
    "v": 1, "query": "q", "offsets": {"a": {"1:0": 28, "2:10001": 0}}, "initial": {"a": {"1:0": 0}},
    "marks": {"a": {"1:0": [[0, 1, 7, 0], [28, 0, 9, 5]]}}, "counted": {"a": [1, 2]}, "empty": {"a": ["2:10001"]},
    "left": {"b": {"1:0": 28}}, "later": 3,
})  # fmt: skip


def make_offset(chance: random.Random) -> str:
    text = chance.choice((_WHOLE, chance.choice(corpus.offsets())))
    if chance.random() < 0.5:
        return damaged_text(chance, text, [_WHOLE])
    data = json.loads(text)
    for _ in range(chance.choice((1, 1, 2, 4))):
        data = _changed(chance, data)
    if chance.random() < 0.01:
        depth = chance.choice((50, 300, 900, 990, 5000))
        inside = "[" * depth + "]" * depth
        key = chance.choice(("counted", "marks", "initial", "left"))
        return f'{{"v":1,"query":"q","offsets":{{}},"{key}":{inside}}}'
    return json.dumps(data)


def _changed(chance: random.Random, data: Any) -> Any:
    """Replace, remove or add one value somewhere inside."""
    if isinstance(data, dict) and data and chance.random() < 0.85:
        key = chance.choice(list(data))
        changed = dict(data)
        match chance.randrange(8):
            case 0:
                del changed[key]
            case 1:
                changed[chance.choice(("", "v", "x", "1:0", "9:9", "marks"))] = changed.pop(key)
            case _:
                changed[key] = _changed(chance, changed[key])
        return changed
    if isinstance(data, list) and data and chance.random() < 0.85:
        at = chance.randrange(len(data))
        return [*data[:at], _changed(chance, data[at]), *data[at + chance.choice((0, 1, 1)) :]]
    return chance.choice(_STRANGE)


def accepts_offset(given: str) -> bool:
    """What is read is the same when it is written and read again, and its positions are positions."""
    try:
        found = StreamOffset.from_json(given)
    except ConfigError:
        return False
    for positions in (found.positions, found.initial or {}, found.left):
        assert all(0 <= position <= 2**63 - 1 and position % 28 == 0 for position in positions.values())
    text = json.dumps(found.to_json())
    again = StreamOffset.from_json(text)
    assert again == replace(found, fingerprints={store: marks for store, marks in found.fingerprints.items() if marks})
    assert json.dumps(again.to_json()) == text
    return True


_CLAIMS = [
    ClaimId("3f2c-77", 1_700_000_000_000, 5, label="host+app"),
    ClaimId("3f2c-77", 1_700_000_000_000, 5, task=-2, reader="a1f"),
    ClaimId("3f2c-77", 1_700_000_000_000, 5, task=3, attempt=9, stage=12, reader="0", label="h.example.com"),
    ClaimId("3f2c-77", 1_700_000_000_001, 4, task=3, attempt=8),
]
_NAMES = [str(claim) for claim in _CLAIMS]
_REFUSAL = "[Duplicated Register] Partition 1:demo:0 has been registered by {}"


def make_claim(chance: random.Random) -> str:
    name = damaged_text(chance, chance.choice(_NAMES), _NAMES)
    return _REFUSAL.format(name) if chance.random() < 0.2 else name


def accepts_claim(given: str) -> bool:
    """What is read names the same claim when it is written, and two claims never fence each other."""
    found = ClaimId.parse(holder_in(given) or given)
    if found is None:
        return False
    assert ClaimId.parse(str(found)) == found
    for other in _CLAIMS:
        if found.task == other.task == DRIVER:  # a run has one driver
            continue
        assert {found.relation(other), other.relation(found)} != {Relation.PREDECESSOR}
    return True


class File(NamedTuple):
    """The damaged file of a batch that is committed again."""

    data: bytes


@cache
def _packed() -> bytes:
    receipts = Receipts(0)
    for row in range(3):
        receipts.add([row], RecordPlaces(Partition(1, "demo", row), [100 + row], [28 * row], [None]))
    return receipts.packed()


@cache
def _files() -> list[bytes]:
    """Return files as earlier commits have written them: whole, and with rows of other tasks."""
    found = []
    for partition, rows in ((0, 3), (5, 200)):
        receipts = Receipts(partition)
        for row in range(rows):
            place = RecordPlaces(Partition(1, "demo", row % 3), [900 + row], [None], [1_700_000_000_000])
            receipts.add([row], place)
        with tempfile.TemporaryDirectory() as folder:
            found.append(Path(write_receipts(folder, "query", 7, [receipts.packed()])).read_bytes())
    return found


def make_file(chance: random.Random) -> File:
    data = chance.choice(_files())
    if chance.random() < 0.3:
        return File(damaged(chance, data, _files()))
    # The footer of Parquet is at the end: damage there as often as at the front.
    back = damaged(chance, data[::-1], [])[::-1]
    return File(back)


def accepts_file(given: File) -> bool:
    """The new rows are in the new file with their values, whatever the old file was."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "query-0000000007.parquet")
        path.write_bytes(given.data)
        try:
            write_receipts(folder, "query", 7, [_packed()])
        except ConfigError:
            return False
        rows = pq.read_table(path, use_threads=False)
        partition = pa.compute.equal(rows["spark_partition"], 0)
        mine = rows.filter(partition).to_pylist()
    new = {(row["spark_row"], row["message_id"], row["offset"]) for row in mine}
    assert {(row, 100 + row, 28 * row) for row in range(3)} <= new
    return True
