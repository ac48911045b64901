# SPDX-License-Identifier: Apache-2.0
"""Server settings, named as in `master.ini` and `broker.ini` but in snake case, with times in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from tubemq_spark.errors import ConfigError
from tubemq_spark.protocol.constants import Framing


class Release(str, Enum):
    """The TubeMQ release to behave like where releases differ."""

    V1_2 = "1.2"
    V2_5 = "2.5"

    @property
    def framing(self) -> Framing:
        """The framing of this release unless its RPC classes were exchanged."""
        return Framing.PREFIXED if self is Release.V1_2 else Framing.STANDARD


E = TypeVar("E", bound=Enum)


def parse_enum(kind: type[E], argument: str, value: object) -> E:
    """Return the member of `kind` that is `value` or has it; `ConfigError` names the argument for any other value."""
    try:
        return kind(value)
    except ValueError:
        names = " or ".join(repr(member.value) for member in kind)
        raise ConfigError(f"{argument} is {value!r}; expected {names}") from None


@dataclass(frozen=True)
class ServerConfig:
    """The settings of all servers of an embedded cluster. Times are seconds on its clock, sizes are bytes."""

    release: Release = Release.V2_5

    # master.ini
    consumer_balance_period: float = 1.0
    first_balance_delay: float = 0.0  # before the first balance period
    consumer_heartbeat_timeout: float = 30.0
    producer_heartbeat_timeout: float = 30.0
    broker_heartbeat_timeout: float = 25.0
    start_produce_authenticate: bool = False
    start_consume_authenticate: bool = False
    start_visit_token_check: bool = False
    auth_valid_time_stamp_period: float = 20.0
    visit_token_valid_period: float = 300.0
    max_meta_force_update_period: float = 180.0
    max_msg_size: int = 1024 * 1024
    conf_mod_auth_token: str = "ASDFGHJKL"  # of HTTP calls that change something

    # broker.ini
    consumer_reg_timeout: float = 35.0
    transfer_size: int = 512 * 1024
    max_segment_size: int = 1024 * 1024 * 1024
    max_index_segment_entries: int = 786_432
    mem_cache_msg_size: int = 1_572_864  # of one of two blocks; each has half of the topic's setting
    mem_cache_msg_count: int = 5_120
    mem_cache_flush_interval: float = 20.0
    offset_flush_interval: float = 5.0  # between two writes of confirmed positions to the table
    offset_file_interval: float = 6.0  # and of the table to the file, in release 2.1 and later
    visit_token_check_in_valid_time: float = 120.0  # for which a broker accepts any visit token after it registered
    group_offset_scan_dur: float = 60.0  # between two records in the topic __offset_history__
    group_offset_expiry: float = 20 * 24 * 3600.0  # in release 2.1 and later

    # Settings of the embedded server only: where brokers start in the wave of message ids (ids rise until 2199 s and
    # fall until 4398 s), and the memory that a topic may take on one broker.
    message_id_phase: float = 300.0
    topic_max_bytes: int = 256 * 1024 * 1024
