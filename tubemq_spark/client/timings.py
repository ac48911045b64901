# SPDX-License-Identifier: Apache-2.0
"""Timeouts, pauses and settling times of client, source and sink that several modules use, or that tests set.

`ClientSettings.timings` carries them to every part of the client, the source and the sink. Tests replace single values
there. A time that one module uses and nobody sets is a constant there. Times that users may set are options, see
`settings`. Times that TubeMQ's servers prescribe are part of the protocol, see `protocol.flow_rules`.
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

    # cluster: masters and what they list
    heartbeat_period: float = 8.0  # servers forget clients and claims after 30 s
    first_contact_timeout: float = 3.0  # of a session's first request, so that a wrong address fails early
    first_answer_timeout: float = 5.0  # of a request to a peer that has not yet answered as a master
    silent_master_timeout: float = 1.0  # of a request that can wait, to masters that did not answer before
    master_close_timeout: float = 2.0  # a client that closes does not wait longer for its master
    topic_lists_fill_up: float = 5.0  # time in which a topic must appear in the lists of a new session
    deployed_topic_max_pause: float = 2.0  # between two requests that ask whether a missing topic has appeared
    first_outage_warning: float = 5.0  # shorter outages are not logged
    next_outage_warning: float = 60.0  # between two warnings about one outage

    # consumer: claims and fetches
    claim_proof_max_age: float = 1.0  # an older proof of the claim is renewed before messages are delivered
    reader_close_timeout: float = 3.0  # a heartbeat or unregister must not wait long for a broker that is down
    claims_close_timeout: float = 2.0  # the same for the driver's claims: stopping a query must not hang
    range_period: float = (
        20.0  # a longer read goes on in a new range, because brokers run their retention once a minute
    )
    broker_lookup_after: float = 3.0  # time without a connection; a restart takes longer, a short outage less

    # producer: sends
    connect_batching: float = 0.3  # records for any partition wait this long for connections that are being opened
    closed_connection_settling: float = 1.0  # time in which a broker has handled requests of closed connections

    # source: planning
    max_poll_interval: float = 1.0  # between two requests for log ends while a query is idle

    # sink: effectively once
    task_mark_max_age: float = 1.0  # an older proof that no later attempt of the task runs is renewed
    task_settling: float = 3.0  # time in which an earlier attempt has ended; Spark grants a cancelled task 2 s
    broker_away_after: float = 2.0  # silence after which a batch does without a broker


DEFAULT_TIMINGS = Timings()
