# SPDX-License-Identifier: Apache-2.0
"""Stream offsets in checkpoints: always readable, and always the same text for the same offset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tubemq_spark.errors import ConfigError, ProtocolError
from tubemq_spark.protocol.log_fingerprint import Fingerprint
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.source.offset import StreamOffset

PARTITION = Partition(1, "t", 0)
GOLDEN = Path(__file__).parents[1] / "golden" / "checkpoints"

topics = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
partitions = st.builds(Partition, st.integers(0, 10**9), topics, st.integers(0, 10**9))
positions = st.dictionaries(partitions, st.integers(0, 2**56).map(lambda n: n * 28), max_size=8)
numbers = st.integers(0, 2**63 - 1)
stores = st.tuples(st.integers(0, 10**9), topics, st.integers(0, 10**9))
marks = st.dictionaries(
    stores,
    st.lists(st.builds(Fingerprint, numbers, numbers, numbers, numbers), min_size=1, max_size=3).map(tuple),
    max_size=3,
)
exclusive = st.dictionaries(topics, st.frozensets(st.integers(0, 10**9), max_size=3), max_size=3)
offsets = st.builds(
    StreamOffset,
    st.text(max_size=16),
    positions,
    st.none() | positions,
    marks,
    st.none() | exclusive,
    positions.map(frozenset),
    positions,
)


def offset_in(log_entry: Path) -> str:
    return log_entry.read_text(encoding="utf-8").splitlines()[-1]


@given(offsets)
def test_json_and_back(offset: StreamOffset) -> None:
    text = json.dumps(offset.to_json())
    assert StreamOffset.from_json(json.loads(text)) == offset
    assert StreamOffset.from_json(text) == offset


def test_the_text_is_sorted() -> None:
    """By topic, broker, and partition or store."""
    given_order = [(10, "b", 0), (2, "b", 10_000), (2, "b", 9), (1, "c", 0), (3, "a", 0)]
    marks = {
        (2, "b", 0): (Fingerprint(0, 1, 7, 0), Fingerprint(28, 0, 9, 5)),
        (1, "b", 1): (Fingerprint(0, 10_000, 8, 0),),
        (9, "a", 0): (),
    }
    exclusive = {"b": frozenset([10, 9]), "a": frozenset([1])}
    offset = StreamOffset(
        "q", {Partition(*parts): 28 for parts in given_order}, fingerprints=marks, exclusive=exclusive
    )
    assert json.dumps(offset.to_json(), separators=(",", ":")) == (
        '{"v":1,"query":"q","offsets":{"a":{"3:0":28},"b":{"2:9":28,"2:10000":28,"10:0":28},"c":{"1:0":28}},'
        '"marks":{"b":{"1:1":[[0,10000,8,0]],"2:0":[[0,1,7,0],[28,0,9,5]]}},"counted":{"a":[1],"b":[9,10]}}'
    )


@pytest.mark.parametrize("position", [-28, 29, 2**63 // 28 * 28 + 28])
def test_a_position_that_could_not_be_read_again_is_not_written(position: int) -> None:
    for offset in (StreamOffset("q", {PARTITION: position}), StreamOffset("q", {}, {PARTITION: position})):
        with pytest.raises(ProtocolError, match=f"at {position} of 1:t:0, where its broker says .*Check the broker"):
            offset.to_json()


def deep(levels: int) -> str:
    return '{"v":' * levels + "1" + "}" * levels


def nested(levels: int) -> Any:
    data: Any = 1
    for _ in range(levels):
        data = [data]
    return data


STRANGE = {
    "nested too deeply": deep(100_000),
    "nested too deeply, as JSON": {"v": nested(100_000)},
    "nested in its place": {"v": 1, "query": "q", "offsets": {"t": {"1:0": nested(100_000)}}},
    "nested marks": {"v": 1, "query": "q", "offsets": {}, "marks": {"t": {"1:0": [nested(100_000)]}}},
    "nested brokers": {"v": 1, "query": "q", "offsets": {}, "counted": {"t": nested(100_000)}},
    "a nested query": {"v": 1, "query": nested(100_000), "offsets": {}},
    "long": "x" * 1_000_000,
    "a long topic": {"v": 1, "query": "q", "offsets": {"t" * 1_000_000: {"1": 28}}},
    "of several lines": "no\noffset\x1b[2J",
    "half a character": {"v": 1, "query": "q", "offsets": {"t\ud800": {"1:0": 28}}},
    "a huge position": {"v": 1, "query": "q", "offsets": {"t": {"1:0": 28 * 10**400}}},
    "a huge broker": {"v": 1, "query": "q", "offsets": {"t": {f"{10**400}:0": 28}}},
    "a broker with very many digits": {"v": 1, "query": "q", "offsets": {"t": {f"{'9' * 5000}:0": 28}}},
}


@pytest.mark.parametrize("case", STRANGE)
def test_errors_about_strange_checkpoints_are_short(case: str) -> None:
    with pytest.raises(ConfigError, match=r"^the checkpoint holds ") as caught:
        StreamOffset.from_json(STRANGE[case])
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000
    assert str(caught.value).endswith("Check that option 'checkpointLocation' is this query's own")


@pytest.mark.parametrize("kept", sorted(GOLDEN.glob("*/offsets/*")), ids=lambda file: str(file.relative_to(GOLDEN)))
def test_kept_offsets_are_read_and_written_unchanged(kept: Path) -> None:
    text = offset_in(kept)
    assert json.dumps(StreamOffset.from_json(text).to_json()) == text


@pytest.mark.parametrize("version", [2, 99, 0])
def test_another_version_is_refused(version: int) -> None:
    with pytest.raises(ConfigError) as caught:
        StreamOffset.from_json({"v": version, "elsewhere": "unknown"})
    assert f"offset of version {version}, this release of tubemq-spark reads 1" in str(caught.value)
    assert "use the release that wrote it, or a newer one" in str(caught.value)


PLAIN = {"v": 1, "query": "q", "offsets": {}}
BAD_COUNTED: list[Any] = [[], "a", {"a": 1}, {"a": ["1"]}, {"a": [True]}, {"a": [-1]}]
BAD_EMPTY: list[Any] = [[], "a", {"a": 1}, {"a": [1]}, {"a": ["1"]}, {"a": ["1:x"]}]
BAD_MARKS: list[Any] = [[], {"t": []}, {"t": {"1": []}}]
BAD_FINGERPRINTS: list[Any] = [[[0, 0, 1]], [[0, 0, 1, -1]], 5, "", {}]


@pytest.mark.parametrize(
    "junk",
    [
        "",
        "junk",
        "{",
        "null",
        "[]",
        "3",
        None,
        [],
        {},
        {"v": None},
        {"v": "1"},
        {"v": True, "query": "q", "offsets": {}},
        {"v": 1},
        {"v": 1, "query": "q"},
        {"v": 1, "offsets": {}},
        {"v": 1, "query": 7, "offsets": {}},
        {"v": 1, "query": "q", "offsets": []},
        {"v": 1, "query": "q", "offsets": None},
        {"v": 1, "query": "q", "offsets": {"t": 28}},
        {"v": 1, "query": "q", "offsets": {"t": {"1:0": 27}}},
        {"v": 1, "query": "q", "offsets": {"t": {"1:0": -1}}},
        {"v": 1, "query": "q", "offsets": {"t": {"1:0": "28"}}},
        {"v": 1, "query": "q", "offsets": {"t": {"1": 28}}},
        {"v": 1, "query": "q", "offsets": {"t": {"1:0": 28}}, "initial": {"t": {"1:0": 1}}},
        {"v": 1, "query": "q", "offsets": {"t": {"1:0": 28}}, "initial": [1]},
        *({**PLAIN, "counted": one} for one in BAD_COUNTED),
        *({**PLAIN, "empty": one} for one in BAD_EMPTY),
        *({**PLAIN, "marks": one} for one in BAD_MARKS),
        *({**PLAIN, "marks": {"t": {"1:0": one}}} for one in BAD_FINGERPRINTS),
    ],
)
def test_junk_is_refused(junk: Any) -> None:
    with pytest.raises(ConfigError, match=r"^the checkpoint holds "):
        StreamOffset.from_json(junk)
