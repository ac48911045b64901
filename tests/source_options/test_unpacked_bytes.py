# SPDX-License-Identifier: Apache-2.0
"""`maxUnpackedBytes`."""

from __future__ import annotations

import pytest

from tests.inlong_packs import pack_grouped
from tests.source_options.conftest import Start
from tests.without_spark.source import bodies, read_batch
from tubemq_spark.compression import CODECS, compress
from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol import message

pytestmark = pytest.mark.option("maxUnpackedBytes")


@pytest.mark.parametrize("codec", CODECS)
def test_compressed_body_may_have_max_unpacked_bytes(start: Start, codec: str) -> None:
    tubemq = start({"t": 1})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(message, "COMPRESSION_KEY", "")  # or the embedded server's `send` would refuse the attribute
        for size in (1000, 1001):
            tubemq.send("t", compress(codec, bytes(size)), attributes={"spark_compression": codec})
    says = r"it becomes larger than 1000 bytes, which option 'maxUnpackedBytes' limits.*'corruptMessages'"
    with pytest.raises(ProtocolError, match=rf"1:t:0: message \d+: {says}"):
        read_batch(tubemq, "t", maxUnpackedBytes="1000")
    assert bodies(read_batch(tubemq, "t", maxUnpackedBytes="1000", corruptMessages="skip")) == [bytes(1000)]
    assert bodies(read_batch(tubemq, "t", maxUnpackedBytes="1001")) == [bytes(1000), bytes(1001)]


def test_pack_may_have_max_unpacked_bytes(start: Start) -> None:
    tubemq = start({"t": 1})
    tubemq.send("t", pack_grouped(1, [("groupId=g", bytes(10_000))] * 3, compressed=True))
    with pytest.raises(
        ProtocolError, match="its InLongMsg takes more than 30000 bytes, the limit of option 'maxUnpackedBytes'"
    ):
        read_batch(tubemq, "t", messageFormat="inlongmsg", maxUnpackedBytes="30000")
    assert bodies(read_batch(tubemq, "t", messageFormat="inlongmsg", maxUnpackedBytes="40000")) == [bytes(10_000)] * 3


def test_plain_body_is_not_limited(start: Start) -> None:
    tubemq = start({"t": 1})
    tubemq.send("t", bytes(1000))
    assert bodies(read_batch(tubemq, "t", maxUnpackedBytes="1")) == [bytes(1000)]
