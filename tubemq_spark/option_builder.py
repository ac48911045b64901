# SPDX-License-Identifier: Apache-2.0
"""Builds the options of source and sink: keyword arguments with types, which editors complete and mypy checks.

    spark.readStream.format("tubemq").options(**source_options(master="…", group="…", subscribe="…")).load()

Written by scripts/generate_docs.py from the options' declarations: change them there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

__all__ = ["sink_options", "source_options"]

# Source and sink accept each other's options, and do not import each other.
SOURCE_ONLY = (
    "subscribe", "subscribePattern", "assign", "tubemq.group", "tubemq.claim.timeoutMs", "filters",
    "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy",
    "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "failOnDataLoss", "maxOffsetsPerTrigger",
    "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxPartitionsPerTask", "commitOffsets",
    "headsIntervalMs", "pushFilters", "corruptMessages", "msgTimeZone", "metadataIntervalMs", "messageFormat",
    "inlongDefaultFormat", "maxUnpackedBytes",
)  # fmt: skip
SINK_ONLY = (
    "topic", "tubemq.producer.maxInFlight", "tubemq.producer.maxInFlightBytes", "failedRows", "deadLetterTopic",
    "stampRows", "effectivelyOnce", "effectivelyOnceGroup", "effectivelyOnceMaxOffsets", "effectivelyOnceUncertain",
    "receipts", "messageFormat", "inlongPackRows", "inlongPackBytes", "inlongPackMs", "inlongPackFormat",
    "inlongPackCompression", "compression",
)  # fmt: skip
_CONNECTION = (
    "tubemq.master", "tubemq.user", "tubemq.password", "tubemq.passwordFile", "tubemq.rpc.timeoutMs",
    "tubemq.rpc.framing", "tubemq.retry.maxElapsedMs", "tubemq.connections.idleMs", "tubemq.connections.shared",
    "tubemq.brokers.addresses", "tubemq.admin.address", "tubemq.tls.enabled", "tubemq.tls.ca", "tubemq.tls.cert",
    "tubemq.tls.key", "tubemq.tls.keyPassword", "tubemq.tls.verifyHostname",
)  # fmt: skip


def source_options(
    *,
    master: str | Sequence[str],
    group: str,
    user: str | None = None,
    password: str | None = None,
    password_file: str | None = None,
    rpc_timeout_ms: int | None = None,
    rpc_framing: Literal["auto", "standard", "prefixed"] | None = None,
    retry_max_elapsed_ms: int | None = None,
    connections_idle_ms: int | None = None,
    connections_shared: bool | None = None,
    brokers_addresses: str | Sequence[str] | None = None,
    admin_address: str | None = None,
    tls_enabled: bool | None = None,
    tls_ca: str | None = None,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    tls_key_password: str | None = None,
    tls_verify_hostname: bool | None = None,
    subscribe: str | Sequence[str] | None = None,
    subscribe_pattern: str | None = None,
    assign: str | Mapping[str, Sequence[str]] | None = None,
    claim_timeout_ms: int | None = None,
    filters: str | Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    starting_offsets: Literal["earliest", "latest", "group"] | Mapping[str, str | Mapping[str, int]] | None = None,
    starting_timestamp: str | int | datetime | None = None,
    starting_offsets_by_timestamp: Mapping[str, Mapping[str, int | str]] | None = None,
    starting_offsets_by_timestamp_strategy: Literal["error", "latest"] | None = None,
    ending_offsets: Literal["latest"] | Mapping[str, str | Mapping[str, int]] | None = None,
    ending_timestamp: str | int | datetime | None = None,
    ending_offsets_by_timestamp: Mapping[str, Mapping[str, int | str]] | None = None,
    fail_on_data_loss: bool | None = None,
    max_offsets_per_trigger: int | None = None,
    max_bytes_per_trigger: int | None = None,
    min_offsets_per_trigger: int | None = None,
    max_trigger_delay: str | int | None = None,
    max_partitions_per_task: int | None = None,
    commit_offsets: bool | None = None,
    heads_interval_ms: int | None = None,
    push_filters: bool | None = None,
    corrupt_messages: Literal["fail", "skip", "keep"] | None = None,
    msg_time_zone: str | None = None,
    metadata_interval_ms: int | None = None,
    message_format: Literal["raw", "inlongmsg", "inlong"] | None = None,
    inlong_default_format: Literal["inlongmsg", "raw"] | None = None,
    max_unpacked_bytes: int | None = None,
) -> dict[str, str]:
    """Return the given options of a read or a stream: texts, by their names in docs/options.md.

    The values are checked when Spark loads the source.

    Args:
        master: the masters; the default port is 8715, or 8716 with TLS
        group: the consumer group: it claims the partitions and receives the commits; it must not be another query's
            group with `_read`, `_batch` or `_look` behind it, because that query reads in such groups
        user: the user of the simple authenticator
        password: the user's password
        password_file: a file with the password in its first line
        rpc_timeout_ms: timeout of one request. Default: 10000
        rpc_framing: the framing of requests: `prefixed` for TubeMQ 1.1 and 1.2, `standard` for others; `auto` detects
            it. Default: auto
        retry_max_elapsed_ms: how long one operation is retried before its task fails. Default: 60000
        connections_idle_ms: an idle connection is closed after this time. Default: 180000
        connections_shared: true: the tasks of a worker process reuse each other's connections; false: each task opens
            connections of its own and closes them at its end. Default: true
        brokers_addresses: where this client reaches a broker whose own address, which the master lists, is not
            reachable from here: behind NAT, in containers, with forwarded ports
        admin_address: the HTTP API of the masters (`webPort` in master.ini), which `subscribePattern` needs; plain
            HTTP, also with TLS. The default port is 8080. Default: the hosts of `tubemq.master`, port 8080
        tls_enabled: true: use TLS 1.2 or later to the masters and all brokers, which have separate ports for it.
            Default: false
        tls_ca: the certificates of the authorities that may sign a server's, on the driver and every executor; by
            default those that the system trusts
        tls_cert: this client's certificate and its intermediate certificates, for servers that ask for one (two-way
            TLS)
        tls_key: the private key of `tubemq.tls.cert`; it may be in the same file
        tls_key_password: the password of `tubemq.tls.key`, if the key is encrypted
        tls_verify_hostname: true: a server's certificate must name the host that the client connects to; an authority
            must have signed it in either case. Default: true
        subscribe: the topics to read, with all their partitions
        subscribe_pattern: instead of `subscribe`: all topics whose whole names match, also those that are created while
            a stream runs, which are read from their beginning; needs the masters' HTTP API, see `tubemq.admin.address`
        assign: instead of `subscribe`: only these partitions
        claim_timeout_ms: how long to wait for a partition that another consumer of the group holds. Default: 45000
        filters: read only messages of these types, which are values of column `msg_type`; the broker filters by a hash
            of the type, the reader by the type itself
        starting_offsets: where a new query begins; `group` is the group's position, or the earliest for a new group;
            positions may be -2 (earliest) and -1 (latest), and a topic may have one of the words instead of positions;
            a batch read cannot begin at `latest`. Default: stream `latest`, batch `earliest`
        starting_timestamp: begin at the first message whose `$msgTime$` is not earlier, to the minute; wins over the
            other options that say where to begin; a time without a zone is in the zone of `msgTimeZone`, whatever the
            session's time zone is
        starting_offsets_by_timestamp: as `startingTimestamp`, with a time for each partition; wins over
            `startingOffsets`
        starting_offsets_by_timestamp_strategy: what to do if no message of a partition is late enough: fail, or begin
            at its end. Default: `error`; with `startingTimestamp` `latest`, and a line in the log if that is so for all
            partitions
        ending_offsets: batch only: where to end; a topic may have `latest` instead of positions. Default: `latest`
        ending_timestamp: batch only: end before the first message whose `$msgTime$` is not earlier; wins over the other
            options that say where to end; a time without a zone is in the zone of `msgTimeZone`, whatever the session's
            time zone is
        ending_offsets_by_timestamp: batch only: as `endingTimestamp`, with a time for each partition; wins over
            `endingOffsets`
        fail_on_data_loss: whether to fail when messages that should be read are gone; with false, the loss is logged
            and reading goes on. Default: true
        max_offsets_per_trigger: the maximum to read in one micro-batch, in index entries of the stores (Spark 4.2 and
            later)
        max_bytes_per_trigger: the number of bytes to read in one micro-batch, estimated before it is read: messages as
            the brokers store them, with attributes, and compressed if they are; those of other partitions of a store
            and other types count too. The estimate is the mean size of the next messages of each partition (one fetch),
            or of all that wait behind them, whichever is greater. So a micro-batch has at most that many bytes if sizes
            are even, and more only where long messages stand behind many short ones; it has one message at least. If
            `maxOffsetsPerTrigger` is set too, the smaller limit applies (Spark 4.2 and later)
        min_offsets_per_trigger: wait until there are that many new entries, but not longer than `maxTriggerDelay`
            (Spark 4.2 and later)
        max_trigger_delay: how long `minOffsetsPerTrigger` may delay a micro-batch. Default: `15m`
        max_partitions_per_task: how many partitions with at most 4000 new index entries may share one Spark task;
            without the option, at most 64 tasks share all of them. Default: none
        commit_offsets: whether the group's position follows the committed micro-batches; with false, the query does not
            move the group. Default: true
        heads_interval_ms: the minimum time between two requests for the log ends. While nothing arrives, it grows to a
            tenth of the time without new messages, up to 1000: that is the longest time that the first message after an
            idle time waits. With 0, the brokers are asked whenever Spark asks. Default: 100
        push_filters: batch only: read only what the query's conditions need (requires
            spark.sql.python.filterPushdown.enabled=true). Default: false
        corrupt_messages: messages with a wrong check sum, attribute header or compressed body: `keep` returns their
            bytes as received and adds the column `corrupt`. Default: fail
        msg_time_zone: the zone of the producers' `$msgTime$`, and of `startingTimestamp` and `endingTimestamp` if they
            name none. Default: `UTC`
        metadata_interval_ms: how often to look for new partitions and brokers. Default: 30000
        message_format: `inlongmsg`: messages are packs of InLong's DataProxy (V0); each message inside becomes a row
            with more columns, and a message that is not a pack counts as corrupt. `inlong`: the same for all formats of
            DataProxy; the attributes of each message say whether it is a plain body, InLongMsg (V0) or protobuf (V1).
            Default: raw
        inlong_default_format: for `messageFormat=inlong`: what a message is whose attributes `version` and `msgEnType`
            are missing. InLong's readers take it for InLongMsg; `raw` is a plain body, which DataProxy 1.2 and 1.3 sent
            without attributes. Default: inlongmsg
        max_unpacked_bytes: the maximum size of one message after decompression, and with `messageFormat=inlongmsg` or
            `inlong` of the messages of a pack with their attributes; a longer one counts as corrupt. Default: 67108864
    """
    return _texts(locals(), (*_CONNECTION, *SOURCE_ONLY))


def sink_options(
    *,
    master: str | Sequence[str],
    user: str | None = None,
    password: str | None = None,
    password_file: str | None = None,
    rpc_timeout_ms: int | None = None,
    rpc_framing: Literal["auto", "standard", "prefixed"] | None = None,
    retry_max_elapsed_ms: int | None = None,
    connections_idle_ms: int | None = None,
    connections_shared: bool | None = None,
    brokers_addresses: str | Sequence[str] | None = None,
    admin_address: str | None = None,
    tls_enabled: bool | None = None,
    tls_ca: str | None = None,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    tls_key_password: str | None = None,
    tls_verify_hostname: bool | None = None,
    topic: str | None = None,
    producer_max_in_flight: int | None = None,
    producer_max_in_flight_bytes: int | None = None,
    failed_rows: Literal["fail", "drop", "deadLetter"] | None = None,
    dead_letter_topic: str | None = None,
    stamp_rows: bool | None = None,
    effectively_once: bool | None = None,
    effectively_once_group: str | None = None,
    effectively_once_max_offsets: int | None = None,
    effectively_once_uncertain: Literal["fail", "sendAgain"] | None = None,
    receipts: str | None = None,
    message_format: Literal["raw", "inlongmsg"] | None = None,
    inlong_pack_rows: int | None = None,
    inlong_pack_bytes: int | None = None,
    inlong_pack_ms: int | None = None,
    inlong_pack_format: Literal["inlongmsg", "protobuf"] | None = None,
    inlong_pack_compression: Literal["none", "gzip", "snappy"] | None = None,
    compression: Literal["none", "gzip", "zstd", "snappy", "lz4"] | None = None,
) -> dict[str, str]:
    """Return the given options of a write or a streaming write: texts, by their names in docs/options.md.

    The values are checked when Spark loads the sink.

    Args:
        master: the masters; the default port is 8715, or 8716 with TLS
        user: the user of the simple authenticator
        password: the user's password
        password_file: a file with the password in its first line
        rpc_timeout_ms: timeout of one request. Default: 10000
        rpc_framing: the framing of requests: `prefixed` for TubeMQ 1.1 and 1.2, `standard` for others; `auto` detects
            it. Default: auto
        retry_max_elapsed_ms: how long one operation is retried before its task fails. Default: 60000
        connections_idle_ms: an idle connection is closed after this time. Default: 180000
        connections_shared: true: the tasks of a worker process reuse each other's connections; false: each task opens
            connections of its own and closes them at its end. Default: true
        brokers_addresses: where this client reaches a broker whose own address, which the master lists, is not
            reachable from here: behind NAT, in containers, with forwarded ports
        admin_address: the HTTP API of the masters (`webPort` in master.ini), which `subscribePattern` needs; plain
            HTTP, also with TLS. The default port is 8080. Default: the hosts of `tubemq.master`, port 8080
        tls_enabled: true: use TLS 1.2 or later to the masters and all brokers, which have separate ports for it.
            Default: false
        tls_ca: the certificates of the authorities that may sign a server's, on the driver and every executor; by
            default those that the system trusts
        tls_cert: this client's certificate and its intermediate certificates, for servers that ask for one (two-way
            TLS)
        tls_key: the private key of `tubemq.tls.cert`; it may be in the same file
        tls_key_password: the password of `tubemq.tls.key`, if the key is encrypted
        tls_verify_hostname: true: a server's certificate must name the host that the client connects to; an authority
            must have signed it in either case. Default: true
        topic: the topic of all rows; it wins over the column `topic`
        producer_max_in_flight: unanswered sends per connection. Default: 1000
        producer_max_in_flight_bytes: how many bytes the unacknowledged messages of a task may have, each counted with
            500 more; a task with more waits. Default: 67108864
        failed_rows: what happens to rows that can never be sent (too long, unknown topic, bad attribute): they fail the
            task, are dropped, counted and logged, or go to `deadLetterTopic`. Default: fail
        dead_letter_topic: the topic of such rows with `failedRows=deadLetter`
        stamp_rows: each message carries the row that it was made from, in the attributes `spark_id` (query or write),
            `spark_batch`, `spark_partition` and `spark_row`. Default: false
        effectively_once: for streams: a batch or task that is attempted again sends only the rows that are not stored
            yet; rows are stamped, and carry `spark_digest` as well. Default: false
        effectively_once_group: the prefix of the consumer groups (`…_0`, `…_1`, `…_plan`, `…_look_…`, `…_task_…`) that
            keep bookmarks and marks of the query at the brokers; no other query may use it, and it must not change.
            Default: derived from option `checkpointLocation`
        effectively_once_max_offsets: how many messages a task reads at most to find those that an earlier attempt has
            stored. Default: 10000000
        effectively_once_uncertain: what happens if it is unknown what an earlier attempt has stored: the task fails, or
            it sends rows again, which may store some twice. Default: fail
        receipts: the folder of the receipts: one Parquet file per batch says where each row is stored
        message_format: `inlongmsg`: each row becomes an InLong pack with one message, and needs the columns
            `inlong_group` and `inlong_stream`. Default: raw
        inlong_pack_rows: for `messageFormat=inlongmsg`: how many rows a pack has at most; with more than 1, rows with
            the same columns share a pack, and `stampRows`, `effectivelyOnce` and `receipts` cannot be used. Default: 1
        inlong_pack_bytes: for `inlongPackRows`: how many bytes a pack has at most before its compression; never more
            than the topic allows. Default: 100000
        inlong_pack_ms: for `inlongPackRows`: a pack whose first row has waited for so long is sent when the task gets
            its next rows. Default: 1000
        inlong_pack_format: for `messageFormat=inlongmsg`: the format of the packs: InLongMsg (V0), or the protobuf of
            DataProxy's `MessageObjs` (V1), which the source reads with `messageFormat=inlong`. Default: inlongmsg
        inlong_pack_compression: for `messageFormat=inlongmsg`: how the bodies in a pack are compressed, or the whole
            pack in protobuf; InLong's own readers read both; gzip is for protobuf only. Default: none
        compression: how each body is compressed; the source decompresses it, other readers see the attribute
            `spark_compression` and a gzip member, a zstd frame, a raw snappy block or an lz4 frame. Default: none
    """
    return _texts(locals(), (*_CONNECTION, *SINK_ONLY))


def _texts(given: Mapping[str, object], names: Sequence[str]) -> dict[str, str]:
    words = {re.sub("[A-Z.]", r"_\g<0>", name.removeprefix("tubemq.")): name for name in names}
    keywords = {text.replace(".", "").lower(): name for text, name in words.items()}
    return {keywords[keyword]: _text(value) for keyword, value in given.items() if value is not None}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return json.dumps({name: one if isinstance(one, (Mapping, str)) else list(one) for name, one in value.items()})
    return str(value) if isinstance(value, (str, int, float)) or not isinstance(value, Sequence) else ",".join(value)
