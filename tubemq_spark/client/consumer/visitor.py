# SPDX-License-Identifier: Apache-2.0
"""Visits: a planner seeks and fetches at single positions of partitions, all in one write for each broker.

A visitor keeps its claims, because the next visit needs them again. They expire soon after the last visit, and another
visitor of the same group may end them before that: a visit has served its purpose once it is answered. So a claim that
a killed visitor left is in nobody's way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.cluster.master_client import new_client_id
from tubemq_spark.client.consumer.broker_requests import Exchange, GroupRequests, unwrap_seek
from tubemq_spark.client.consumer.working_group import look_group
from tubemq_spark.client.net.rpc import ServerRequest, send_requests
from tubemq_spark.errors import TransportError, TubeMQError
from tubemq_spark.protocol.constants import READ_EVERYTHING
from tubemq_spark.protocol.envelope import Response
from tubemq_spark.protocol.metadata import Broker, Partition

_log = logging.getLogger(__name__)

_ROLE = "look"
_VISITORS = f"spark_{_ROLE}_"  # their client ids begin so
_TRIES_AT_ONCE = 5  # the next visitor of a crowd may come first


class Visitor:
    """Visits partitions in a look group. Not thread-safe."""

    def __init__(
        self,
        requests: GroupRequests,
        broker_of: Callable[[Partition], Broker],
        client_id: str | None = None,
        filters: Sequence[str] = (),
    ) -> None:
        """`client_id` is a new one by default. Fetches return messages of the types `filters`, as for a claim."""
        self.settings = requests.settings
        self.group = requests.group
        self._requests = requests
        self._broker_of = broker_of
        self._client_id = client_id or new_client_id(_ROLE, self.settings.clock)
        self._filters = filters
        self.failures = 0  # visits that failed; not those that met another visitor, because their broker has answered
        self._visited: dict[Partition, None] = {}
        self._in_the_way: dict[Partition, str] = {}  # the visitor that holds a partition

    def seek(self, partition: Partition, position: int, policy: int = READ_EVERYTHING) -> ServerRequest:
        """Return a seek. `policy` is what the fetches behind it may read."""
        place = self._broker_of(partition), partition, self._client_id
        return self._requests.register(*place, position, filters=self._filters, policy=policy)

    def fetch(self, partition: Partition, *, escape: bool) -> ServerRequest:
        """Return a fetch from the cursor; with `escape` the broker does not count it against the group's rate limit."""
        return self._requests.fetch(self._broker_of(partition), partition, self._client_id, escape=escape)

    def exchange(self, requests: Mapping[Partition, Sequence[ServerRequest]]) -> dict[Partition, list[Exchange]]:
        """Send the requests of each partition, which begin with a seek, and return each of them with its outcome.

        Where another visitor holds the partition, end its claim and send them again at once: after a pause, one more
        visitor may hold it. The caller passes each `TransportError` of `unwrap_seek` to `failed`, and tries again
        later.
        """
        answers = self._send(requests)
        for _ in range(_TRIES_AT_ONCE):
            met = [partition for partition, (seek, *_) in answers.items() if self._met_visitor(partition, seek)]
            if not met:
                break
            answers |= self._send({partition: requests[partition] for partition in met})
        return answers

    def _met_visitor(self, partition: Partition, seek: Exchange) -> bool:
        """Return whether another visitor holds the partition. Then its claim is ended with the next requests."""
        outcome = seek[1]
        if isinstance(outcome, Response) and _VISITORS.encode() in outcome.data:  # most replies name nobody
            try:
                unwrap_seek(seek)
            except TubeMQError as error:
                if isinstance(error, TransportError) and error.holder.startswith(_VISITORS):
                    self._in_the_way[partition] = error.holder
                    return True
        return False

    def _send(self, requests: Mapping[Partition, Sequence[ServerRequest]]) -> dict[Partition, list[Exchange]]:
        sent: list[ServerRequest] = []
        releases: list[ServerRequest] = []
        for partition, several in requests.items():
            if partition in self._in_the_way:
                releases.append(self._release(partition, self._in_the_way.pop(partition)))
            sent += several
            self._visited[partition] = None
        outcomes = iter(send_requests(self.settings, [*releases, *sent])[len(releases) :])
        return {partition: [(one, next(outcomes)) for one in several] for partition, several in requests.items()}

    def failed(self, partition: Partition, error: TransportError) -> None:
        """Record why a visit failed. If another visitor holds the partition, the next visit ends that claim first."""
        _log.info("%s", error)
        if error.holder.startswith(_VISITORS):
            self._in_the_way[partition] = error.holder
        else:
            self.failures += 1

    def close(self) -> None:
        """Release the claims. This raises nothing and does not wait for long."""
        timings = self.settings.timings
        requests = [self._release(partition, self._client_id) for partition in self._visited]
        self._visited.clear()
        send_requests(self.settings, requests, min(timings.claims_close_timeout, self.settings.rpc_timeout))

    def _release(self, partition: Partition, client_id: str) -> ServerRequest:
        return self._requests.unregister(self._broker_of(partition), partition, client_id)


def visitor_for(session: ConsumerSession) -> Visitor:
    """Return a visitor in the look group of the session's group."""
    return Visitor(GroupRequests(session.settings, look_group(session.group), session.token), session.broker)
