# SPDX-License-Identifier: Apache-2.0
"""Claims that a client holds for one request: where partitions end, and positions of groups in which nobody reads.

The sink with `effectivelyOnce` asks with them. The client registers and unregisters in one write. The master does not
know these groups, so its rules for groups do not apply. Processes of one query may meet at a partition: each may end
the claims of the others, which have served their purpose once they are answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from tubemq_spark.client import system
from tubemq_spark.client.cluster.master_client import new_client_id
from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.consumer.broker_requests import GroupRequests
from tubemq_spark.client.consumer.claim_acquirer import ClaimTarget, GroupPosition, claim_answers, claim_requests
from tubemq_spark.client.consumer.conversations import Begin, Conversation, DirectChannel, Wait, hold
from tubemq_spark.client.consumer.working_group import ends_group
from tubemq_spark.client.runtime import PerProcess
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.metadata import Partition

T = TypeVar("T")

_FIRST_PAUSE = (0.02, 0.08)  # seconds; random in this range, so that two clients part
_ROLE = "ends"


def read_ends(
    session: ProducerSession,
    base: str,
    partitions: Iterable[Partition],
    retry_for: float | None = None,
    *,
    within: float | None = None,
) -> dict[Partition, int]:
    """Return the present end of each of `partitions`: the position of the next message, in bytes of the index.

    `base` is what the names of the query's groups begin with. With `within`, partitions whose brokers do not answer in
    so many seconds are left out.

    Raise `TransportError` with the `unserved` partitions if a broker stays away for longer than `retry_for` seconds
    (default: those of the settings); `AuthError`, `ServerError`.
    """
    group = ends_group(base)
    found = _hold(session, {one: partial(registering, session, group, one) for one in partitions}, retry_for, within)
    return {one: at.end for one, (at,) in found.items()}


def exchange_position(
    session: ProducerSession, group: str, partition: Partition, position: int | None, *, within: float
) -> tuple[int, int] | None:
    """Move `group` to `position`; None leaves it. Return where it was, and where it is now: the broker moves a group
    only within the store.

    A new group is at the beginning of the store. Return None if the broker does not answer within so many seconds; the
    group may have moved. Raise `AuthError`, `ServerError`.
    """
    moves = [None] if position is None else [None, position]
    found = _hold(session, {partition: partial(registering, session, group, partition, moves)}, None, within)
    return (found[partition][0].group, found[partition][-1].group) if found else None


def registering(
    session: ProducerSession, group: str, partition: Partition, moves: Sequence[int | None] = (None,)
) -> Conversation[list[GroupPosition]]:
    """Register in `group` for each of the moves, which lead it to a position; with None it stays, and a new group is at
    the beginning. Return where it is after each of them, with the end of the store.

    A register that was answered is not repeated. `claiming` would do too much: it compares claims and waits for
    siblings. Here nothing is held for longer than a request, so a claim of another process of the query may be ended at
    any time.
    """
    found: list[GroupPosition] = []
    holder: str | None = None  # another process of the query, whose claim is in the way: it is released first
    while len(found) < len(moves):
        broker = session.known_broker(partition.broker_id)
        if broker is None:
            problem = f"the master lists no broker {partition.broker_id}, which has {partition}"
        else:
            requests = GroupRequests(session.settings, group, session.token)
            targets = [
                ClaimTarget(requests, broker, partition, _client_id(), position, release_after=True)
                for position in moves[len(found) :]
            ]
            targets[0] = replace(targets[0], release_first=holder)
            holder, problem = None, ""
            for answer in claim_answers(targets, (yield claim_requests(targets))):
                if problem:
                    continue
                if answer.position is not None:
                    found.append(answer.position)
                elif answer.error is None:
                    problem = f"{targets[0].register().what}: the client {answer.holder} holds it"
                    holder = answer.holder if (answer.holder or "").startswith(f"spark_{_ROLE}_") else None
                elif isinstance(answer.error, TransportError):
                    problem = str(answer.error)
                else:
                    raise answer.error
        if problem and not (yield Wait(problem)):
            raise TransportError(problem)
    return found


def _hold(
    session: ProducerSession, conversations: Mapping[Partition, Begin[T]], retry_for: float | None, within: float | None
) -> dict[Partition, T]:
    """Hold the conversations. With `within`, leave out those that have no result in so many seconds."""
    settings = session.settings
    retry_for, timeout = settings.retry_for if retry_for is None else retry_for, settings.rpc_timeout
    if within is not None:
        retry_for, timeout = min(retry_for, within), min(timeout, within)
    return hold(
        DirectChannel(settings, timeout),
        conversations,
        "asking where partitions end",
        retry_for=retry_for,
        first_pause=system.randomizer.uniform(*_FIRST_PAUSE),
        leave_out=within is not None,
    )


# One for each process: a claim that a broken connection left must not stop the next attempt.
_client_id = PerProcess(lambda: new_client_id(_ROLE))
