# SPDX-License-Identifier: Apache-2.0
"""Packs with many rows: which rows share one, in which order they are sent, and what readers find in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timezone
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clocks import ManualClock
from tests.clusters.embedded import embedded_cluster
from tests.real.topics import TopicSpec
from tests.sending import connect, settings
from tubemq_spark.compression import CODECS, decompress
from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.message import decode_attributes
from tubemq_spark.sink.inlong.inlongmsg import InLongMsgFormat
from tubemq_spark.sink.inlong.message_objs import MessageObjsFormat
from tubemq_spark.sink.inlong.pack_format import PackFormat
from tubemq_spark.sink.inlong.packs import Packs
from tubemq_spark.sink.options import PackLimits, SinkOptions
from tubemq_spark.sink.row_encoder import EncodedRow, RowEncoder
from tubemq_spark.sink.schema import Cells
from tubemq_spark.sink.task_writer import write_batches
from tubemq_spark.sink.write_plan import WritePlan
from tubemq_spark.source.inlong.inlongmsg import Head, unpack
from tubemq_spark.source.inlong.message_objs import open_message
from tubemq_spark.testing import ServerConfig

GOLDEN = Path(__file__).parents[1] / "golden" / "inlong"
LIMIT = 1000  # bytes of a message


@dataclass
class Sent:
    """A producer that keeps what it should send: the messages' bodies, by row number of their first rows."""

    form: PackFormat = field(default_factory=InLongMsgFormat)
    messages: dict[int, bytes] = field(default_factory=dict)
    attributes: list[bytes] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    clock: ManualClock = field(default_factory=ManualClock)

    def limit(self, topic: str) -> int:
        if topic == "unknown":
            raise ConfigError("a message: topic unknown is not deployed")
        return LIMIT

    def send(self, topic: str, body: bytes, *others: Any, key: bytes | None = None, target: Any = None) -> None:
        if len(body) > self.limit(topic):
            raise ConfigError("it is too long")
        self.messages[others[-1]] = body
        self.attributes.append(others[0])
        self.keys.append(key)

    def add(self, packs: Packs, rows: Sequence[Cells], first: int = 0) -> None:
        """Add rows as a task does, which sends those alone that are in no pack."""
        for number, cells in enumerate(rows, first):
            encoded = encode(self.form, cells)
            if not packs.add(number, encoded, cells, [cells.value or b""]):
                attributes = encoded.attributes + encoded.format_attributes
                self.send(encoded.topic, encoded.body, attributes, number, key=encoded.key)

    def packs(self, rows: int = 100, size: int = 10_000, wait: float = 1.0) -> Packs:
        return Packs(self.form, PackLimits(rows, size, wait), self.clock, self)  # type: ignore[arg-type]

    @property
    def values(self) -> list[list[bytes]]:
        """The rows' values in each message."""
        return [[body for _, part in pack for body in part.to_pylist()] for pack in self.opened()]

    def opened(self) -> list[list[tuple[Head, pa.BinaryArray]]]:
        """The messages as `messageFormat=inlong` reads them."""
        pairs = zip(self.messages.values(), self.attributes, strict=True)
        return [
            list(open_message(pack, decode_attributes(attributes).own or {}, timezone.utc, 1 << 20, 0))
            for pack, attributes in pairs
        ]


def encode(form: PackFormat, cells: Cells) -> EncodedRow:
    return RowEncoder("demo", form, stamped=False).encode(cells)


INLONGMSG, PROTOBUF = InLongMsgFormat(), MessageObjsFormat()
FORMATS = pytest.mark.parametrize("form", [INLONGMSG, PROTOBUF], ids=["inlongmsg", "protobuf"])


def row(value: bytes, **others: Any) -> Cells:
    cells = {"inlong_group": "g_one", "inlong_stream": "s_one", "msg_time": "202611222031", **others}
    return Cells(value, **cells)


def send(given_rows: Sequence[Cells], form: PackFormat = INLONGMSG, **limits: Any) -> Sent:
    sent = Sent(form)
    packs = sent.packs(**limits)
    sent.add(packs, given_rows)
    packs.send_all()
    return sent


def test_a_pack_with_rows_equals_that_of_inlongs_java_class() -> None:
    moment = 1_709_251_140_123
    rows = [
        row(value, inlong_time=moment, inlong_attributes={"NodeIP": "127.0.0.1"}) for value in (b"first", b"", b"third")
    ]
    rows += [row(value, inlong_time=moment + 1) for value in (b"fourth", b"fifth")]
    # Java's attributes are in the order in which they were given; the sink writes those of InLong first.
    assert [*send(rows).messages.values()] == [(GOLDEN / "v1-rows.bin").read_bytes()]


def test_a_pack_has_at_most_so_many_rows() -> None:
    sent = send([row(b"%d" % n) for n in range(10)], rows=4)
    assert sent.values == [[b"0", b"1", b"2", b"3"], [b"4", b"5", b"6", b"7"], [b"8", b"9"]]
    assert [*sent.messages] == [0, 4, 8]
    ((head, _),) = unpack(sent.messages[8])
    assert (head.attributes["cnt"], head.group, head.stream) == ("2", "g_one", "s_one")


@FORMATS
@pytest.mark.parametrize("size", [200, 500, 5000])
def test_a_pack_has_at_most_so_many_bytes(size: int, form: PackFormat) -> None:
    sent = send([row(b"x" * 50) for _ in range(40)], form, size=size)
    assert sum(map(len, sent.values)) == 40
    most, each = min(size, LIMIT), 54 if form is INLONGMSG else 220
    assert all(len(pack) <= max(most, each) for pack in sent.messages.values())
    assert all(most - 120 - each < len(pack) for pack in [*sent.messages.values()][:-1])


@FORMATS
@pytest.mark.parametrize(
    "other",
    [
        {"inlong_stream": "s_two"},
        {"inlong_group": "g_two"},
        {"msg_type": "t"},
        {"msg_time": "202611222032"},
        {"key": b"k"},
    ],
    ids=str,
)
def test_rows_that_differ_have_other_packs(other: dict[str, Any], form: PackFormat) -> None:
    sent = send([row(b"a"), row(b"b", **other), row(b"c"), row(b"d", **other)], form)
    assert sent.values == [[b"a", b"c"], [b"b", b"d"]]


def test_rows_with_other_attributes_are_groups_of_one_pack() -> None:
    sent = send([row(b"a", inlong_time=1), row(b"b", inlong_time=2), row(b"c", inlong_time=2)])
    assert sent.values == [[b"a", b"b", b"c"]]
    heads = [(head.time, head.attributes["cnt"]) for head, _ in unpack(sent.messages[0])]
    assert heads == [(1000, "1"), (2000, "2")]


def test_attributes_that_come_again_begin_a_new_pack() -> None:
    """InLong's readers would move the row to the first of the two groups."""
    sent = send([row(b"a", inlong_time=1), row(b"b", inlong_time=2), row(b"c", inlong_time=1)])
    assert sent.values == [[b"a", b"b"], [b"c"]]


def test_rows_of_protobuf_share_a_pack_whatever_their_attributes() -> None:
    """Each has its own. One without a time is sent with the present time."""
    times = [0, 2, 0, None, 2]
    sent = send([row(b"%d" % n, inlong_time=time) for n, time in enumerate(times)], PROTOBUF)
    first, second = sent.opened()
    assert [head.time for head, _ in first] == [0, 2000, 0, 2000]
    assert [head.time is not None and head.time > 10**15 for head, _ in second] == [True]
    assert [b"msgCount=4" in one for one in sent.attributes] == [True, False]


def test_rows_with_a_target_have_packs_of_their_own() -> None:
    rows = [row(b"a", broker_id=1, partition=0), row(b"b", broker_id=1, partition=0), row(b"c")]
    assert send(rows).values == [[b"a"], [b"b"], [b"c"]]


def test_a_row_that_fits_into_no_pack_is_refused_at_once() -> None:
    sent = Sent()
    packs = sent.packs()
    sent.add(packs, [row(b"a")])
    with pytest.raises(ConfigError, match="too long"):
        sent.add(packs, [row(bytes(LIMIT))], first=1)
    packs.send_all()
    assert sent.values == [[b"a"]]


def test_a_pack_does_not_wait_for_long() -> None:
    sent = Sent()
    packs = sent.packs(wait=5.0)
    sent.add(packs, [row(b"a")])
    sent.clock.advance(3)
    sent.add(packs, [row(b"b"), row(b"c", msg_type="t")], first=1)
    packs.send_due()
    assert sent.values == []
    sent.clock.advance(2.5)
    packs.send_due()
    assert sent.values == [[b"a", b"b"]]
    packs.send_all()
    assert sent.values == [[b"a", b"b"], [b"c"]]


def test_a_task_fills_a_bounded_number_of_packs() -> None:
    sent = Sent()
    packs = sent.packs()
    sent.add(packs, [row(b"%d" % n, inlong_stream=f"s_{n}") for n in range(300)])
    assert len(sent.messages) == 300 - 256
    packs.send_all()
    assert sorted(sent.values) == sorted([b"%d" % n] for n in range(300))


@FORMATS
@given(
    st.lists(
        st.tuples(
            st.sampled_from([None, b"k", b"l"]),
            st.sampled_from(["s", "t"]),
            st.sampled_from([None, 1, 2]),
            st.integers(0, 400),
        ),
        max_size=60,
    ),
    st.integers(1, 9),
)
def test_no_row_is_lost_and_rows_of_a_key_keep_their_order(
    form: PackFormat, rows: list[tuple[bytes | None, str, int | None, int]], most: int
) -> None:
    made = [
        row(b"%06d" % n + b"x" * size, key=key, inlong_stream=stream, inlong_time=moment)
        for n, (key, stream, moment, size) in enumerate(rows)
    ]
    sent = Sent(form)
    packs = sent.packs(rows=most, size=700)
    sent.add(packs, made)
    packs.send_all()
    found = [(key, value) for key, part in zip(sent.keys, sent.values, strict=True) for value in part]
    assert sorted(value for _, value in found) == sorted(cells.value or b"" for cells in made)
    for key in (b"k", b"l"):
        assert [value for one, value in found if one == key] == [cells.value for cells in made if cells.key == key]
    for part in sent.values:
        assert part == sorted(part)
        assert len(part) <= most


# With a server


def write(
    rows: int, failed_rows: str = "fail", limit: int = LIMIT, codec: str = "none", **columns: pa.Array
) -> list[list[bytes]]:
    """Write rows in packs of 100, or 1000 with a codec, and return the rows' values in each message that is stored."""
    batch = pa.record_batch(
        {
            "value": pa.array([b"%d" % n for n in range(rows)]),
            "inlong_group": pa.array(["g"] * rows),
            "inlong_stream": pa.array(["s"] * rows),
            **columns,
        }
    )
    topics = {"demo": TopicSpec(partitions=2)}
    with embedded_cluster(topics=topics, config=ServerConfig(max_msg_size=limit)) as cluster:
        connect(cluster)
        given = SinkOptions(
            settings(cluster),
            "demo",
            message_format="inlongmsg",
            packs=PackLimits(100 if codec == "none" else 1000, 10 * limit),
            compression=codec,
            failed_rows=failed_rows,
        )
        written = write_batches(WritePlan(given), [batch])
        stored = [message.body for message in cluster.tubemq.messages("demo")]
    if codec != "none":
        stored = [decompress(codec, body) for body in stored]
    assert sum(written.rows.values()) == len(stored)
    return [[body for _, part in unpack(pack) for body in part.to_pylist()] for pack in stored]


@pytest.mark.parametrize("codec", CODECS)
def test_a_row_that_its_compression_makes_too_long_is_named(codec: str) -> None:
    """It is the bad row, not one that shares its pack or begins another one."""
    values = [b"%d" % n for n in range(300)]
    alone = encode(INLONGMSG, Cells(b"", inlong_group="g", inlong_stream="s")).body
    values[150] = Random(7).randbytes(20_000 - len(alone))
    found = write(300, "drop", 20_000, codec, value=pa.array(values))
    assert sorted(value for part in found for value in part) == sorted(values[:150] + values[151:])
    with pytest.raises(ConfigError, match=r"^row 150 of the task.*takes 20000 at most"):
        write(300, "fail", 20_000, codec, value=pa.array(values))


@pytest.mark.parametrize(
    "columns", [{}, {"inlong_time": pa.array([*range(300)], pa.timestamp("ms"))}], ids=["equal", "times"]
)
def test_an_error_of_a_pack_is_charged_to_no_row(columns: dict[str, pa.Array], monkeypatch: pytest.MonkeyPatch) -> None:
    """The task fails rather than to drop the row that is next, and to lose the others."""
    monkeypatch.setattr(PackFormat, "max_unpacked", lambda self, limit: 2 * limit)
    with pytest.raises(ConfigError, match=r"^row 0 of the task: value has 1\d\d\d bytes, and topic demo takes 1000 at"):
        write(300, "drop", value=pa.array([bytes(100)] * 300), **columns)
