"""TubeMQ's servers over the network: connections, metadata, claims, reading, producing. No Spark in this package."""

from __future__ import annotations

import sys


def forget_servers() -> None:
    """Lets go what this process keeps of servers for its next use of them: producers and connections that are idle, and
    which framing an address answered to. What is in use stays.

    For tests, at the end of each and before its servers close: producers say good-bye to their masters. Otherwise they
    send heartbeats to nobody, and another server on a reused port is taken for the one before. Never needed in
    production. It does nothing in processes other than this one, such as Spark's Python workers.
    """
    if f"{__name__}.net.connection" not in sys.modules:
        return  # nothing was used here, so that nothing needs to be imported either
    from tubemq_spark.client.cluster.moved_brokers import MOVED_BROKERS
    from tubemq_spark.client.cluster.session_pool import SESSIONS
    from tubemq_spark.client.consumer.task_tokens import TASK_TOKENS
    from tubemq_spark.client.net.connection import forget_framings
    from tubemq_spark.client.net.pool import POOL
    from tubemq_spark.client.outage_log import OUTAGES

    SESSIONS.close()  # over connections that go back to the pool
    POOL.close()
    forget_framings()
    OUTAGES.forget()  # another server may get the port
    TASK_TOKENS.forget()
    MOVED_BROKERS.forget()
