"""Lines to paste into a PySpark shell."""

from __future__ import annotations


def reading(master: str, topic: str) -> str:
    return (
        f'spark.readStream.format("tubemq").option("tubemq.master", "{master}").option("tubemq.group", "my_group")'
        f'.option("subscribe", "{topic}").option("startingOffsets", "earliest").load()'
        '.selectExpr("CAST(value AS STRING) AS value", "partition", "message_id").writeStream.format("console").start()'
    )


def writing(master: str, topic: str) -> str:
    return (
        'spark.range(10).selectExpr("CAST(id AS STRING) AS value").write.format("tubemq").mode("append")'
        f'.option("tubemq.master", "{master}").option("topic", "{topic}").save()'
    )
