# SPDX-License-Identifier: Apache-2.0
"""The text of docs/reference/columns.md: the columns of source and sink with their types, taken from the schemas."""

from __future__ import annotations

from collections.abc import Iterable

from tubemq_spark.sink.receipts import SCHEMA as RECEIPTS
from tubemq_spark.sink.schema import accepted_columns
from tubemq_spark.source.schema import spark_schema

INTRODUCTION = """\
# Columns

<!-- Written by scripts/generate_docs.py from the schemas in the code: change scripts/columns_reference.py. -->

The source has the same columns for every topic. The sink takes some of them, so that a DataFrame that was read can be
written [without changes](../sink.md#copying-a-topic). What is inside `value` is yours: convert it with Spark's
functions, such as `from_json(CAST(value AS STRING), …)`.
"""

NOTES = """\
## Notes

- `value` is binary: `CAST(value AS STRING)` makes a text of it.
- `offset` is null if several partitions share a store, or with `filters`, because the protocol does not show the
  position of a single message; also in the rest of a micro-batch after more than 16 positions without a message of the
  partition. It is never a guess. See [Positions and stores](../concepts/positions.md).
- `topic`, `broker_id`, `partition` and `message_id` together name a message. Use them to drop copies.
- A store is one sequence of a topic's messages on one broker. A partition's id is store * 10000 + its number in the
  store.
"""

WHEN_READ = {
    "value": "the body, without the attributes",
    "attributes": "the producer's own attributes, or null without any",
    "msg_type": "the type that readers filter by, or null",
    "msg_time": "the producer's time, precise to the minute, or null",
    "topic": "the message's topic",
    "broker_id": "the broker that stores the message",
    "partition": "the partition's id at that broker",
    "offset": "the message's position in the store's index, in bytes, or null: see the notes",
    "message_id": "the broker's id of the message, unique in a store",
    "inlong_group": "attribute `groupId`, or `bid`",
    "inlong_stream": "attribute `streamId`, or `tid`",
    "inlong_time": "attribute `t` or `dt`",
    "inlong_attributes": "all attributes of the message inside the pack",
    "inlong_index": "the message's place in its pack, from 0",
    "corrupt": "true for a message whose bytes could not be decoded",
}
WHEN_WRITTEN = {
    "value": "required, not null",
    "topic": "the row's topic; option `topic` overrides it",
    "attributes": "no `,` or `=` in keys and values",
    "msg_type": "the type that readers filter by: 1 to 255 characters, without `,` and `=`",
    "msg_time": "rounded down to the minute; a timestamp is written in UTC; default: now",
    "key": "rows with the same key go to the same partition, in order; it is not stored",
    "broker_id": "with `partition` an explicit target: both or neither; ignored beside `offset` or `message_id`",
    "partition": "see `broker_id`",
    "inlong_group": "with `messageFormat=inlongmsg`, required",
    "inlong_stream": "with `messageFormat=inlongmsg`, required",
    "inlong_time": "with `messageFormat=inlongmsg`; default: the time of sending",
    "inlong_attributes": "with `messageFormat=inlongmsg`",
}
IN_RECEIPTS = {
    "spark_id": "the query, or the write",
    "spark_batch": "the micro-batch; null for a batch write",
    "spark_partition": "the task's partition",
    "spark_row": "the row's number within the task",
    "topic": "where the row was stored",
    "broker_id": "the broker",
    "partition": "the partition's id",
    "offset": "the position in the store's index, also where the source returns null",
    "message_id": "the broker's id of the message",
    "append_time": "when the broker acknowledged it; null for a row that an earlier attempt had stored",
}


def document() -> str:
    """Return the text of docs/reference/columns.md. Raise `KeyError` for a column without a text."""
    plain = spark_schema("fail").fields
    more = [field for field in spark_schema("keep", "inlongmsg").fields if field not in plain]
    accepted = accepted_columns()
    parts = [
        INTRODUCTION,
        "## When reading\n",
        _table((field.name, field.dataType.simpleString(), WHEN_READ[field.name]) for field in plain),
        "With `messageFormat=inlongmsg` ([InLong packs](../inlong.md)) and `corruptMessages=keep` more follow:\n",
        _table((field.name, field.dataType.simpleString(), WHEN_READ[field.name]) for field in more),
        "## When writing\n",
        "Other columns are an error that names them. [Writing](../sink.md) explains where rows go.\n",
        _table((name, kinds, WHEN_WRITTEN[name]) for name, kinds in accepted.items()),
        NOTES,
        "## Receipts\n",
        "With [`receipts`](../sink.md#receipts) each committed batch writes a Parquet file with these columns:\n",
        _table((field.name, str(field.type), IN_RECEIPTS[field.name]) for field in RECEIPTS),
    ]
    return "\n".join(parts)


def _table(rows: Iterable[tuple[str, str, str]]) -> str:
    lines = ["| column | type | |", "| --- | --- | --- |"]
    return "\n".join([*lines, *(f"| `{name}` | `{kind}` | {text} |" for name, kind, text in rows)]) + "\n"
