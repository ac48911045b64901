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

The source has the same columns for every topic. The sink takes some of them, so that you can write what you have read
[without changes](../sink.md#copying-a-topic). `value` is binary: convert it with Spark's functions, such as
`from_json(CAST(value AS STRING), …)`.
"""

FEWER = """\
### Fewer columns

Spark asks a Python source for all columns, whatever the query uses. A schema selects some, in any order. Tasks make
only these, and without `attributes`, `msg_type` and `msg_time` they do not decode attributes:

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

Names and types are those of the tables above. `filters` needs no column. A query may continue from its checkpoint with
other columns. A [copy](#copies) with `broker_id` and `partition` also needs `offset` or `message_id`: otherwise these
two name the target.
"""

NOTES = """\
## Notes

- `offset` is null if several partitions share a store, or with `filters` ([limit 1](../limits.md#limit-1)).
- **The key of a message** is `topic`, `broker_id`, `partition`, `message_id` and `msg_time` together, and for the rows
  of a pack `inlong_index`, too. Use it to drop rows that were written twice. `dropDuplicates` treats nulls as equal; in
  SQL compare `msg_time` with `<=>`, because it may be null.
- Do not drop copies by `topic`, `partition` and `offset`: where `offset` is null, one row of each partition is left.
  `partition` also needs `broker_id`, because each broker numbers its own partitions.
- The broker makes `message_id` of its clock's nanoseconds when it stores a message: a number from 0 to 2^63. These
  numbers rise and fall, and come again after 73 minutes, so they show no order. Of 100 million messages of a partition,
  a thousand a second, about one has the same key as an earlier one. Without `msg_time`, or where it is null, about 2000
  have.
- A message that a producer sent twice is two messages with two keys. Drop it by a key inside the value.
- A partition's id is store * 10000 + its number in the [store](../concepts/positions.md).

### Milliseconds

TubeMQ's `$msgTime$` has minutes. If a producer adds the attribute `spark_msg_millis`, 0 to 59999 milliseconds since the
beginning of that minute, `msg_time` includes them. To write it, select `at AS msg_time` and
`map('spark_msg_millis', date_format(at, 'ssSSS')) AS attributes`, with a timestamp `at`. In Java, call
`message.setAttrKeyVal`. Copies of a topic keep the attribute. If it is missing or invalid, the message has a whole
minute.

`startingTimestamp` and the other times of options stay precise to the minute: add a condition on `msg_time` to begin or
end exactly. Since each message then has its own attributes, reading costs what [attributes cost](../performance.md).
"""

IN_RECEIPTS = {
    "spark_id": "the query, or the write",
    "spark_batch": "the micro-batch; null for a batch write",
    "spark_partition": "the task's partition",
    "spark_row": "the row's number in the task",
    "topic": "where the row was stored",
    "broker_id": "the broker",
    "partition": "the partition's id",
    "offset": "the position, also where the source returns null",
    "message_id": "the broker's id of the message",
    "append_time": "when the broker acknowledged it; null if an earlier attempt stored the row",
}


def document() -> str:
    """Return the text of docs/reference/columns.md. Raise `KeyError` for a column of receipts without a text."""
    parts = [
        INTRODUCTION,
        "## When reading\n",
        _read([column for column in READ if column.needs is None]),
        *(
            f"{setting.text} adds:\n\n{_read([column for column in READ if column.needs == setting])}"
            for setting in dict.fromkeys(column.needs for column in READ if column.needs is not None)
        ),
        FEWER,
        "## When writing\n",
        "Other columns are an error. [Writing](../sink.md) explains where rows go.\n",
        _table((column.name, column.expected, str(column.written)) for column in written("inlongmsg")),
        "### Copies\n",
        f"A row with a value in {_names(ONLY_READ, ' or ')} is a [copy](../sink.md#copying-a-topic). The sink then\n"
        f"ignores {_names(READ_POSITION)}.\n",
        NOTES,
        "## Receipts\n",
        "With [`receipts`](../sink.md#receipts) each committed batch writes a Parquet file with these columns:\n",
        _table((field.name, str(field.type), IN_RECEIPTS[field.name]) for field in RECEIPTS),
    ]
    return "\n".join(parts)


def _read(columns: Iterable[Column]) -> str:
    return _table((column.name, column.kind.spark.simpleString(), str(column.read)) for column in columns)


def _names(names: Iterable[str], between: str = ", ") -> str:
    return between.join(f"`{name}`" for name in names)


def _table(rows: Iterable[tuple[str, str, str]]) -> str:
    return table(["column", "type", "meaning"], ([f"`{name}`", f"`{kind}`", text] for name, kind, text in rows))
