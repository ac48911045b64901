# SPDX-License-Identifier: Apache-2.0
"""The text of docs/reference/columns.md: the columns of source and sink, from their table, and those of receipts."""

from __future__ import annotations

from collections.abc import Iterable

from scripts.markdown import table
from tubemq_spark.columns import ONLY_READ, READ, READ_POSITION, Column, written
from tubemq_spark.sink.receipts import SCHEMA as RECEIPTS

INTRODUCTION = """\
# Columns

<!-- Written by scripts/generate_docs.py from tubemq_spark/columns.py: change them there. -->

The source has the same columns for every topic. The sink takes some of them, so that a DataFrame that was read can be
written [without changes](../sink.md#copying-a-topic). What is inside `value` is yours: convert it with Spark's
functions, such as `from_json(CAST(value AS STRING), …)`.
"""

FEWER = """\
### Fewer columns

Spark asks a Python source for all columns, whatever the query uses. A schema selects some, in any order, for streams
and batch reads. Tasks make only these and send only these to the JVM. Without `attributes`, `msg_type` and `msg_time`,
they do not even decode the attributes:

```python
values = (
    spark.readStream.format("tubemq")
    .schema("value BINARY, topic STRING")
    .option("tubemq.master", "master:8715")
    .option("tubemq.group", "my_group")
    .option("subscribe", "my_topic")
    .load()
)
```

Names and types are those of the tables above; others are an error that lists them, when the query starts. Options do
not depend on the columns: `filters` needs no `msg_type`. A query may continue from its checkpoint with other columns.
A [copy](../sink.md#copying-a-topic) with `broker_id` and `partition` needs a column that only the source has, such as
`offset`: otherwise these two name the target.
"""

NOTES = """\
## Notes

- `value` is binary: `CAST(value AS STRING)` makes a text of it.
- `offset` is null if several partitions share a store, or with `filters`, because the protocol does not show the
  position of a single message; also in the rest of a micro-batch after more than 16 positions without a message of the
  partition. It is never a guess. See [Positions and stores](../concepts/positions.md).
- `topic`, `broker_id`, `partition`, `message_id` and `msg_time` name a message together; `inlong_index` names a row of
  its pack. Use them to drop copies that a sink stored. Without `msg_time` they do not suffice: brokers make
  `message_id` of nanoseconds that begin again every 73 minutes, so of 10 million messages of a partition about 20 have
  the id of an earlier one.
  All five are the same in about one of 100 million messages, if these come at a thousand a second.
- A store is one sequence of a topic's messages on one broker. A partition's id is store * 10000 + its number in the
  store.

### Milliseconds

TubeMQ's own `$msgTime$` has minutes. A producer may add the attribute `spark_msg_millis`: 0 to 59999, the milliseconds
since the beginning of that minute. Then `msg_time` includes them. The sink writes it as any other attribute: with a
timestamp `at`, select `at AS msg_time` and `map('spark_msg_millis', date_format(at, 'ssSSS')) AS attributes`. In Java,
`message.setAttrKeyVal` does. A copy of a topic keeps the attribute. Messages without it, or with another text in it,
have whole minutes, also in the same topic.

Times of options (`startingTimestamp` and others) still find messages by their minute: add a condition on `msg_time` to
begin or end exactly. As nearly each message then has attributes of its own, reading costs what
[attributes cost](../performance.md).
"""

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
    """Return the text of docs/reference/columns.md. Raise `KeyError` for a column of receipts without a text."""
    parts = [
        INTRODUCTION,
        "## When reading\n",
        _read([column for column in READ if column.needs is None]),
        *(
            f"With {setting.text} more follow:\n\n{_read([column for column in READ if column.needs == setting])}"
            for setting in dict.fromkeys(column.needs for column in READ if column.needs is not None)
        ),
        FEWER,
        "## When writing\n",
        "Other columns are an error that names them. [Writing](../sink.md) explains where rows go.\n",
        _table((column.name, column.expected, str(column.written)) for column in written("inlongmsg")),
        "### Copies\n",
        f"Only rows that were read have {_names(ONLY_READ)}. A row with one of these is a\n"
        "[copy](../sink.md#copying-a-topic). The sink ignores the columns that say where it was read:\n"
        f"{_names(READ_POSITION)}.\n",
        NOTES,
        "## Receipts\n",
        "With [`receipts`](../sink.md#receipts) each committed batch writes a Parquet file with these columns:\n",
        _table((field.name, str(field.type), IN_RECEIPTS[field.name]) for field in RECEIPTS),
    ]
    return "\n".join(parts)


def _read(columns: Iterable[Column]) -> str:
    return _table((column.name, column.kind.spark.simpleString(), str(column.read)) for column in columns)


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(rows: Iterable[tuple[str, str, str]]) -> str:
    return table(["column", "type", "meaning"], ([f"`{name}`", f"`{kind}`", text] for name, kind, text in rows))
