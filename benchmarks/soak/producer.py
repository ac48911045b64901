# SPDX-License-Identifier: Apache-2.0
"""The producer, in a process of its own: numbered messages at a constant rate, no message sent twice.

    python -m benchmarks.soak.producer '{"master": "host:port", "rate": 300, "size": 120, "log": "sent.jsonl", …}'

The connector's own producer repeats failed sends, so an input could have a message twice. This one notes a failed send
as unknown and goes on with the next number. Each line of the log has the outcome of one round. `pause` and `resume` on
standard input stop and continue it; the end of the input ends it.
"""

from __future__ import annotations

import json
import select
import sys
import time
from typing import Any

from benchmarks.soak.ledger import body
from tests.messages import send_call
from tubemq_spark.client.cluster.producer_session import ProducerSession
from tubemq_spark.client.cluster.session_pool import SESSIONS
from tubemq_spark.client.net.rpc import Outcome, ServerRequest, send_requests
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import ProtocolError
from tubemq_spark.protocol.envelope import Response, parse
from tubemq_spark.protocol.metadata import Partition
from tubemq_spark.protocol.pb import BrokerService_pb2 as broker_pb

_ROUND = 0.5  # seconds


class Rounds:
    """Sends the messages of a round to the partitions in turn."""

    def __init__(self, settings: ClientSettings, session: ProducerSession, topic: str, size: int) -> None:
        self._settings = settings
        self._session = session
        self._size = size
        self._next = 0
        self._partitions = sorted(session.cluster.partitions(topic))

    def send(self, count: int) -> tuple[list[int], list[int]]:
        """Return the numbers that were acknowledged, and those whose outcome is unknown."""
        numbers = list(range(self._next, self._next + count))
        self._next += count
        outcomes = send_requests(self._settings, [self._call(number) for number in numbers])
        stored = [number for number, outcome in zip(numbers, outcomes, strict=True) if _is_stored(outcome)]
        return stored, sorted(set(numbers) - set(stored))

    def _call(self, number: int) -> ServerRequest:
        partition: Partition = self._partitions[number % len(self._partitions)]
        session, text = self._session, body(number, self._size)
        broker = session.cluster.brokers[partition.broker_id]
        return send_call(broker, session.client_id, partition, text, authorization=session.broker_authorization())


def _is_stored(outcome: Outcome) -> bool:
    if not isinstance(outcome, Response):
        return False
    try:
        return parse(broker_pb.SendMessageResponseB2P, outcome.data).success
    except ProtocolError:
        return False


def main() -> None:
    given: dict[str, Any] = json.loads(sys.argv[1])
    settings = ClientSettings.from_options({"tubemq.master": given["master"]})
    paused = False
    with SESSIONS().lease(settings) as session, open(given["log"], "a") as log:
        session.add_topics([given["topic"]])
        rounds = Rounds(settings, session, given["topic"], given["size"])
        due, begun, sent = time.monotonic(), time.monotonic(), 0
        while True:
            due = max(due + _ROUND, time.monotonic())
            while (left := due - time.monotonic()) > 0:
                readable, _, _ = select.select([sys.stdin], [], [], left)
                if readable:
                    line = sys.stdin.readline()
                    if not line:
                        return
                    paused = line.strip() == "pause"
                    begun, sent = time.monotonic(), 0
                    print(json.dumps({"paused": paused}), flush=True)
            if not paused:
                count = round((time.monotonic() - begun) * given["rate"]) - sent
                sent += count
                acknowledged, unknown = rounds.send(count)
                line = json.dumps({"acknowledged": acknowledged, "unknown": unknown, "token": session.visit_token})
                print(line, file=log, flush=True)


if __name__ == "__main__":
    main()
