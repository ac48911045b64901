# SPDX-License-Identifier: Apache-2.0
"""Claims that a client holds for one request: where partitions end, and positions of groups in which nobody reads.

The sink with `effectivelyOnce` asks with them. The client registers and unregisters in one write. The master does not
know these groups, so its rules for groups do not apply. Processes of one query may meet at a partition: each may end
the claims of the others, which have served their purpose once they are answered.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tubemq_spark.client import system
from tubemq_spark.client.cluster.master_client import new_client_id
from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.consumer.broker_requests import GroupRequests
from tubemq_spark.client.consumer.claim_acquirer import ClaimTarget, GroupPosition, send_claims
from tubemq_spark.client.consumer.working_group import ends_group
from tubemq_spark.client.retries import Retries
from tubemq_spark.client.runtime import PerProcess
from tubemq_spark.errors import TransportError
from tubemq_spark.protocol.constants import ReadStatus
from tubemq_spark.protocol.metadata import Partition

_log = logging.getLogger(__name__)

_FIRST_PAUSE = (0.02, 0.08)  # seconds; random in this range, so that two clients part
_OUTAGE = "asking where partitions end"
_ROLE = "ends"


class _Registration(NamedTuple):
    """One register in `group`, which moves to `position`. With None it stays; a new group is at the beginning."""

    partition: Partition
    group: str
    position: int | None = None


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
    wanted = [_Registration(partition, ends_group(base)) for partition in partitions]
    return {one.partition: at.end for one, at in _register(session, wanted, retry_for, within).items()}


def exchange_position(
    session: ProducerSession, group: str, partition: Partition, position: int | None, *, within: float
) -> tuple[int, int] | None:
    """Move `group` to `position`; None leaves it. Return where it was, and where it is now: the broker moves a group
    only within the store.

    A new group is at the beginning of the store. Return None if the broker does not answer within so many seconds; the
    group may have moved. Raise `AuthError`, `ServerError`.
    """
    read = _Registration(partition, group)
    wanted = [read] if position is None else [read, _Registration(partition, group, position)]
    found = _register(session, wanted, None, within)
    return (found[read].group, found[wanted[-1]].group) if len(found) == len(wanted) else None


def _register(
    session: ProducerSession, wanted: Sequence[_Registration], retry_for: float | None, within: float | None
) -> dict[_Registration, GroupPosition]:
    """Return the group's position and the end of the store for each registration. A broker handles the registrations at
    one partition in their order.

    `ClaimAcquirer` would do too much: it compares claims and waits for siblings. Here nothing is held for longer than a
    request, so a claim of another process of the query may be ended at any time.
    """
    settings = session.settings
    retry_for = settings.retry_for if retry_for is None else retry_for
    timeout = settings.rpc_timeout
    if within is not None:
        retry_for, timeout = min(retry_for, within), min(timeout, within)
    log = _log if within is None else None
    first = system.randomizer.uniform(*_FIRST_PAUSE)
    retries = Retries(retry_for, settings.clock, _OUTAGE, log, first=first)
    holders: dict[_Registration, str] = {}
    found: dict[_Registration, GroupPosition] = {}
    missing = list(wanted)
    while missing:
        answers, problems = _attempt(session, missing, holders, timeout)
        found |= answers
        missing = [one for one in missing if one not in found]
        if answers:
            retries.progress()
        if not missing:
            break
        unserved = frozenset(one.partition for one in missing)
        problem = problems[missing[0]]
        if retries.failed(f"{problem}; {len(unserved)} partitions are missing"):
            continue
        if within is not None:
            _log.info("no answer about %d partitions: %s", len(unserved), problem)
            return found
        raise TransportError(
            f"{problem}; gave up after {retry_for:g} s, with {len(unserved)} of "
            f"{len({one.partition for one in wanted})} partitions to go. Check that the brokers run, that the driver "
            "and the executors can reach them, and that no other client uses the group",
            unserved=unserved,
        )
    return found


def _attempt(
    session: ProducerSession, wanted: Sequence[_Registration], holders: dict[_Registration, str], timeout: float
) -> tuple[dict[_Registration, GroupPosition], dict[_Registration, str]]:
    """Send one write to each broker. Return the answers, and what went wrong with the other registrations.

    `holders` are the other processes of the query whose claims are in the way. Their claims are released first.
    """
    positions: dict[_Registration, GroupPosition] = {}
    problems: dict[_Registration, str] = {}
    targets: dict[_Registration, ClaimTarget] = {}
    for one in wanted:
        broker = session.known_broker(one.partition.broker_id)
        if broker is None:
            problems[one] = f"the master lists no broker {one.partition.broker_id}, which has {one.partition}"
            continue
        targets[one] = ClaimTarget(
            GroupRequests(session.settings, one.group, session.token),
            broker,
            one.partition,
            _client_id(),
            one.position,
            ReadStatus.NORMAL,
            release_first=holders.pop(one, None),
            release_after=True,
        )
    answers = send_claims(list(targets.values()), timeout)
    for (one, target), (position, holder, error, *_) in zip(targets.items(), answers, strict=True):
        if position is not None:
            positions[one] = position
        elif isinstance(error, TransportError):
            problems[one] = str(error)
        elif error is not None:
            raise error
        else:
            problems[one] = f"{target.register().what}: the client {holder} holds it"
            if holder is not None and holder.startswith(f"spark_{_ROLE}_"):
                holders[one] = holder
    return positions, problems


# One for each process: a claim that a broken connection left must not stop the next attempt.
_client_id = PerProcess(lambda: new_client_id(_ROLE))
