# SPDX-License-Identifier: Apache-2.0
"""Timeouts, pauses and settling times of client, source and sink that are not options.

`ClientSettings.timings` carries them to every part of the client, the source and the sink. Tests replace single values
there. Times that users may set are options, see `settings`. Times that TubeMQ's servers prescribe are part of the
protocol, see `protocol.flow_rules`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timings:
    """Seconds, unless the name says otherwise."""

    # net: connections
    tls_handshake_timeout: float = 5.0  # a port without TLS never answers a client that begins TLS
    min_connect_step: float = 0.1  # the steps of one connection attempt share its timeout; each gets at least this much
    second_framing_after: float = 0.3  # silence after which the other framing is tried beside the first one
    slow_peer_grace: float = 1.0  # a peer that sends slowly is not judged before this time has passed
    background_connect_timeout: float = 3.0  # of a connection that a producer opens in the background

    # cluster: masters and what they list
    heartbeat_period: float = 8.0  # servers forget clients and claims after 30 s
    first_contact_timeout: float = 3.0  # of a session's first request, so that a wrong address fails early
    silent_master_timeout: float = 1.0  # of a request that can wait, to masters that did not answer before
    known_topics_timeout: float = 3.0  # of asking the master for topics whose partitions the driver knows
    master_close_timeout: float = 2.0  # a client that closes does not wait longer for its master
    topic_lists_fill_up: float = 5.0  # time in which a topic must appear in the lists of a new session
    deployed_topic_max_pause: float = 2.0  # between two requests that ask whether a missing topic has appeared
    deployed_topic_answer_timeout: float = 3.0  # of the master, which answered just now, and of a broker
    topic_partitions_fresh: float = 30.0  # time for which the list of all partitions of a topic is reused
    topic_partitions_retry: float = 2.0  # time for which asking for that list may be repeated
    moved_broker_ask_again: float = 10.0  # between two requests of one process for a broker's new address
    first_outage_warning: float = 5.0  # shorter outages are not logged
    next_outage_warning: float = 60.0  # between two warnings about one outage
    outage_forgotten: float = 120.0  # time without a failure after which a failure begins another outage

    # consumer: claims and fetches
    claim_proof_max_age: float = 1.0  # an older proof of the claim is renewed before messages are delivered
    refused_fetch_pause: float = 0.2  # before the next fetch from a broker that is closed or slow
    flush_poll: float = 0.5  # between two requests that ask whether a broker has written messages to its files
    reader_close_timeout: float = 3.0  # a heartbeat or unregister must not wait long for a broker that is down
    claims_close_timeout: float = 2.0  # the same for the driver's claims: stopping a query must not hang
    broker_lookup_after: float = 3.0  # time without a connection; a restart takes longer, a short outage less
    claim_first_pause: float = 0.02  # before the next attempt to claim a partition that another client holds
    claim_max_pause: float = 0.5
    claim_wait_first_log: float = 10.0  # time after which waiting for a sibling is logged
    claim_wait_next_log: float = 60.0
    claim_again_after: float = 3600.0  # the driver repeats its claims, because servers drop groups that are idle
    all_partitions_check: float = 60.0  # between two checks of the group's position in all partitions of a store
    bookmark_first_pause: tuple[float, float] = (0.02, 0.08)  # random in this range, so that two clients part

    # producer: sends
    connect_batching: float = 0.3  # records for any partition wait this long for connections that are being opened
    producer_poll: float = 0.02  # between two looks at conditions that no socket signals
    bytes_sent_poll: float = 0.2  # between two looks at how many bytes have left the socket
    idle_producer_counts: float = 1.0  # of the time in which nobody polls the producer, this much counts as waiting
    min_lookup_time: float = 3.0  # least time for finding out whether an unresolved send was stored
    closed_connection_settling: float = 1.0  # time in which a broker has handled requests of closed connections
    authorization_fresh: float = 5.0  # time for which a signed authorisation is reused; servers accept 20 s
    metadata_refresh: float = 1.0  # between two requests of one producer to the master
    unknown_target_fresh: float = 2.0  # time for which an unknown topic or partition is not asked for again
    session_inquiry: float = 1.0  # between two requests of all producers of a session to the master

    # source: planning
    new_master_lists_fill_up: float = 20.0  # a new master needs up to 13 s to list all topics (measured)
    hidden_partition_poll: float = 0.5  # between two requests while a partition is missing in the lists
    new_partitions_listed: float = 40.0  # masters list them to consumers at the next balance, every 30 s by default
    new_partition_timeout: float = 2.0  # of a broker that must serve a partition it listed just now
    max_poll_interval: float = 1.0  # between two requests for log ends while a query is idle

    # sink: effectively once
    task_mark_max_age: float = 1.0  # an older proof that no later attempt of the task runs is renewed
    task_settling: float = 3.0  # time in which an earlier attempt has ended; Spark grants a cancelled task 2 s
    broker_away_after: float = 2.0  # silence after which a batch does without a broker
    scan_retry: float = 5.0  # time for retrying a scan within a task, while other rows wait


DEFAULT_TIMINGS = Timings()
