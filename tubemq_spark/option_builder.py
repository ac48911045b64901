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
    "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "longMessageTopics", "failOnDataLoss",
    "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxPartitionsPerTask",
    "commitOffsets", "headsIntervalMs", "pushFilters", "corruptMessages", "msgTimeZone", "metadataIntervalMs",
    "messageFormat", "inlongDefaultFormat", "maxUnpackedBytes",
)  # fmt: skip
SINK_ONLY = (
    "topic", "tubemq.producer.maxInFlight", "tubemq.producer.maxInFlightBytes", "failedRows", "deadLetterTopic",
    "showFailedRows", "stampRows", "effectivelyOnce", "effectivelyOnceLocation", "effectivelyOnceTopics",
    "effectivelyOnceMaxOffsets", "effectivelyOnceUncertain", "receipts", "messageFormat", "inlongPackRows",
    "inlongPackBytes", "inlongPackMs", "inlongPackFormat", "inlongPackCompression", "compression",
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
    long_message_topics: str | Sequence[str] | None = None,
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

    That page says what each option means. The values are checked when Spark loads the source.
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
    show_failed_rows: bool | None = None,
    stamp_rows: bool | None = None,
    effectively_once: bool | None = None,
    effectively_once_location: str | None = None,
    effectively_once_topics: str | None = None,
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

    That page says what each option means. The values are checked when Spark loads the sink.
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
