# SPDX-License-Identifier: Apache-2.0
"""`messageFormat`."""

from __future__ import annotations

import pytest

from tests.inlong_packs import message_obj, message_objs, pack_3, pack_grouped
from tests.source_options.conftest import Start
from tests.without_spark.source import Stream, bodies, fill, options, read_batch
from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.errors import ConfigError, ProtocolError

pytestmark = pytest.mark.option("messageFormat")

GROUP = "groupId=g&streamId=s&dt=1709251140000"
PACKS = [
    pack_grouped(1, [(GROUP, b"one"), (GROUP, b"two")], compressed=True),
    pack_3(GROUP, [[("a=1", b"three"), ("a=2", b"four")]]),
]


@pytest.mark.parametrize("given", ["raw", "Raw", None])
def test_raw_packs_are_not_opened(start: Start, given: str | None) -> None:
    tubemq = start({"t": 1})
    for pack in PACKS:
        tubemq.send("t", pack)
    rows = read_batch(tubemq, "t", messageFormat=given)
    assert bodies(rows) == PACKS
    assert "inlong_group" not in rows[0]


@pytest.mark.parametrize("streaming", [True, False])
def test_each_message_of_a_pack_is_a_row(start: Start, streaming: bool) -> None:
    tubemq = start({"t": 1})
    ids = [tubemq.send("t", pack, msg_type="s").message_id for pack in PACKS]
    given = {"messageFormat": "InLongMsg", "filters": "s"}
    rows = Stream(tubemq, "t", **given).run()[0] if streaming else read_batch(tubemq, "t", **given)
    assert bodies(rows) == [b"one", b"two", b"three", b"four"]
    assert [(row["message_id"], row["inlong_index"]) for row in rows] == [(id_, n) for id_ in ids for n in (0, 1)]
    assert {(row["inlong_group"], row["inlong_stream"]) for row in rows} == {("g", "s")}


@pytest.mark.option("inlongDefaultFormat")
@pytest.mark.parametrize("streaming", [True, False])
def test_each_message_has_its_own_format(start: Start, streaming: bool) -> None:
    tubemq = start({"t": 1})
    objs = message_objs([message_obj(1709251140000, b"one", [("k", "v")]), message_obj(5, b"two")])
    tubemq.send("t", objs, attributes={"version": "1", "inlongGroupId": "g", "inlongStreamId": "s"}, msg_type="s")
    tubemq.send("t", PACKS[1], msg_type="s", attributes={"msgEnType": "2"})
    tubemq.send("t", b"plain", msg_type="s")
    given = {"messageFormat": "inlong", "inlongDefaultFormat": "raw", "filters": "s"}
    rows = Stream(tubemq, "t", **given).run()[0] if streaming else read_batch(tubemq, "t", **given)
    assert bodies(rows) == [b"one", b"two", b"three", b"four", b"plain"]
    assert [row["inlong_index"] for row in rows] == [0, 1, 0, 1, 0]
    assert [row["inlong_group"] for row in rows] == ["g"] * 4 + [None]
    with pytest.raises(ProtocolError, match=r"is not an InLongMsg.*no attribute version .*'inlongDefaultFormat'"):
        read_batch(tubemq, "t", messageFormat="inlong")


@pytest.mark.option("messageFormat")
def test_a_message_that_is_marked_as_no_pack_names_the_other_format(start: Start) -> None:
    tubemq = start({"t": 1})
    tubemq.send("t", b"plain", attributes={"version": "0"})
    with pytest.raises(ProtocolError, match=r"is not an InLongMsg.*option 'messageFormat' inlong .*version"):
        read_batch(tubemq, "t", messageFormat="inlongmsg")
    assert bodies(read_batch(tubemq, "t", messageFormat="inlong")) == [b"plain"]


@pytest.mark.option("inlongDefaultFormat")
def test_default_format_needs_a_format_of_inlong(start: Start) -> None:
    given = {"messageFormat": "inlongmsg", "inlongDefaultFormat": "raw"}
    with pytest.raises(ConfigError, match=r"^option 'inlongDefaultFormat' needs option 'messageFormat'"):
        TubeMQDataSource(options(start({"t": 1}), "t", **given)).schema()


@pytest.mark.option("corruptMessages")
def test_message_that_is_not_a_pack_is_corrupt(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    tubemq = start({"t": 1})
    tubemq.send("t", PACKS[0])
    (other,) = fill(tubemq, "t", 1)
    with pytest.raises(ProtocolError, match=r"1:t:0: message \d+: its body .* is not an InLongMsg.*'corruptMessages'"):
        read_batch(tubemq, "t", messageFormat="inlongmsg")
    assert bodies(read_batch(tubemq, "t", messageFormat="inlongmsg", corruptMessages="skip")) == [b"one", b"two"]
    assert "1:t:0: 1 corrupt messages were skipped" in caplog.text
    kept = read_batch(tubemq, "t", messageFormat="inlongmsg", corruptMessages="keep")
    assert [(row["value"], row["corrupt"]) for row in kept] == [(b"one", False), (b"two", False), (other, True)]
