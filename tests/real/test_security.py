# SPDX-License-Identifier: Apache-2.0
"""Real servers with all switches for authentication and authorisation on: what is refused ends with one sentence that
says what to do."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from tests.clocks import SkippingClock
from tests.clusters.servers import needs_tools
from tests.real.cluster import RealTubeMQ
from tests.real.topics import FLUSH_SOON, TopicSpec
from tests.without_spark.checkpoints import new_checkpoint
from tests.without_spark.jobs import Jobs, MessageKey
from tests.without_spark.query import Query, settings, write
from tests.without_spark.sink import read_back
from tubemq_spark.client import forget_servers
from tubemq_spark.client.cluster.session_pool import SESSIONS
from tubemq_spark.errors import AuthError, TubeMQError
from tubemq_spark.protocol.auth import Credentials

pytestmark = [pytest.mark.real, pytest.mark.thorough, pytest.mark.timeout(300)]

USER = {"credentials": Credentials("ann", "secret"), "retry_for": 10.0}
VISIT = {"visitName": "visitor", "visitPassword": "opens"}
# The master replaces the token after 4/5 of this time, and 3 minutes are the least that it accepts.
TOKENS = {"startVisitTokenCheck": "true", "visitTokenValidPeriodMs": "180000"}
ROWS = [b"row %d" % number for number in range(50)]
_numbers = count()


@pytest.fixture(scope="module")
def tubemq() -> Iterator[RealTubeMQ]:
    switches = ["Produce", "Consume"]
    master = {f"start{role}{check}": "true" for role in switches for check in ("Authenticate", "Authorize")}
    with needs_tools():
        cluster = RealTubeMQ(
            topics={"pair": TopicSpec(partitions=2), "long": TopicSpec(partitions=2, settings=FLUSH_SOON)},
            master_options={**master, **TOKENS, "needBrokerVisitAuth": "true", **VISIT},
            broker_options={"visitMasterAuth": "true", "visitTokenCheckInValidTimeMs": "60000", **VISIT},
        )
    with cluster:
        yield cluster
        forget_servers()


@pytest.fixture(autouse=True)
def _new_process() -> Iterator[None]:
    forget_servers()
    yield
    forget_servers()


@pytest.fixture
def group() -> str:
    return f"group_{next(_numbers)}"


def read(tubemq: RealTubeMQ, group: str, **client: Any) -> Counter[bytes]:
    query = Query(tubemq, "pair", group=group, **{**USER, **client})  # type: ignore[arg-type]  # its address is asked for
    query.run()
    return Counter(row.body for given in query.rows.values() for row in given)


def send(tubemq: RealTubeMQ, **client: Any) -> int:
    return write(tubemq, ROWS, **{**USER, **client})  # type: ignore[arg-type]


def assert_one_sentence(error: TubeMQError, advice: str) -> None:
    """Check that the text is one line that ends with the advice, and repeats nothing."""
    text = str(error)
    print(text)
    assert "\n" not in text
    assert re.search(f"; {advice}$", text), text
    assert text.count(advice) == 1, text


def test_a_user_reads_and_writes(tubemq: RealTubeMQ, group: str) -> None:
    assert send(tubemq) == len(ROWS)
    assert read(tubemq, group).keys() == set(ROWS)


CREDENTIALS = "check options 'tubemq.user' and 'tubemq.password', and the clock of this machine"


@pytest.mark.parametrize("call", ["read", "write"])
@pytest.mark.parametrize("case", ["no user", "clock 30 s early", "clock 30 s late"])
def test_refused_credentials_are_explained(tubemq: RealTubeMQ, group: str, case: str, call: str) -> None:
    clock = SkippingClock()
    clock.advance({"clock 30 s early": -30, "clock 30 s late": 30}.get(case, 0))
    client: dict[str, Any] = {"credentials": None} if case == "no user" else {"clock": clock}
    with pytest.raises(AuthError) as caught:
        read(tubemq, group, **client) if call == "read" else send(tubemq, **client)
    assert_one_sentence(caught.value, CREDENTIALS)


def authorise(tubemq: RealTubeMQ, group: str, topic: str = "pair") -> None:
    tubemq.admin(method="admin_add_authorized_consumergroup_info", topicName=topic, groupName=group)


def revoke(tubemq: RealTubeMQ, group: str) -> None:
    tubemq.admin(method="admin_delete_allowed_consumer_group_info", topicName="pair", groupName=group)


def blacklist(tubemq: RealTubeMQ, group: str) -> None:
    tubemq.admin(method="admin_add_black_consumergroup_info", topicName="pair", groupName=group)


@pytest.fixture
def authorised(tubemq: RealTubeMQ) -> Iterator[None]:
    """Only named groups may read the topic."""
    tubemq.admin(method="admin_set_topic_authorize_control", topicName="pair", isEnable=True)
    yield
    tubemq.admin(method="admin_set_topic_authorize_control", topicName="pair", isEnable=False)


GROUP = "authorise the group for the topic on the cluster"


# TubeMQ checks groups and filters of topics that require authorisation only.
@pytest.mark.usefixtures("authorised")
@pytest.mark.parametrize("change", [None, revoke, blacklist])
def test_a_group_that_may_not_read_is_explained(
    tubemq: RealTubeMQ, group: str, change: Callable[[RealTubeMQ, str], None] | None
) -> None:
    send(tubemq)
    query = Query(tubemq, "pair", group=group, **USER)  # type: ignore[arg-type]
    if change is not None:
        authorise(tubemq, group)
        query.run()
        change(tubemq, group)
    forget_servers()
    with pytest.raises(AuthError) as caught:
        query.run()
    assert_one_sentence(caught.value, GROUP)


FILTERS = (
    "set option 'filters' to message types that the group may read, or authorise the group for these types on the "
    "cluster"
)


@pytest.mark.usefixtures("authorised")
@pytest.mark.parametrize("types", [["blue"], ["red", "blue"], []], ids=["another", "one more", "none"])
def test_a_filter_that_is_not_allowed_is_explained(tubemq: RealTubeMQ, group: str, types: list[str]) -> None:
    tubemq.admin(
        method="admin_add_group_csmctrl_info",
        topicName="pair",
        groupName=group,
        consumeEnable=True,
        filterEnable=True,
        filterConds="red",
        condStatus=2,
    )
    query = Query(tubemq, "pair", group=group, **USER)  # type: ignore[arg-type]
    query.filter("pair", "red")
    query.run()
    forget_servers()
    query.filter("pair", *types)
    with pytest.raises(AuthError) as caught:
        query.run()
    assert_one_sentence(caught.value, FILTERS)


class JobsOfAUser(Jobs):
    """The stored messages are read with the user's rights."""

    pause = 1.0

    def stored(self) -> set[MessageKey]:
        rows = read_back(self._cluster, self._topic, tubemq_group="ledger", **LOGIN)
        return {(row["broker_id"], row["partition"], row["message_id"], row["value"]) for row in rows}


LOGIN = {"tubemq_user": "ann", "tubemq_password": "secret"}
ROTATIONS = 3 if os.environ.get("TUBEMQ_FULL_TIMES") else 1  # 144 s each, at least


@pytest.mark.timeout(300 + 200 * ROTATIONS)
def test_queries_go_on_while_tokens_rotate(tubemq: RealTubeMQ) -> None:
    """Only the groups of the two queries and of the ledger may read the topic, as far as the master knows them."""
    for group in ["ledger", "copies"]:
        authorise(tubemq, group, "long")
    tubemq.admin(method="admin_set_topic_authorize_control", topicName="long", isEnable=True)
    options = {"tubemq.group": "copies", "effectivelyOnce": "true", "checkpointLocation": new_checkpoint()}
    login = {name.replace("_", "."): value for name, value in LOGIN.items()}
    client = settings(tubemq, **USER)  # type: ignore[arg-type]  # its address is asked for
    with (
        JobsOfAUser(tubemq, "long", **login, **options) as jobs,  # type: ignore[arg-type]
        SESSIONS().lease(client) as session,
    ):
        session.add_topics(["long"])  # registers it, so that its heartbeats bring the tokens
        tokens = {session.visit_token}
        while len(tokens) <= ROTATIONS:
            jobs.pass_time(1.0)
            tokens.add(session.visit_token)
        jobs.wait_for_more(400)
        jobs.finish()
        jobs.check()
        stored = Counter(body for *_, body in jobs.stored())
    print(f"{len(tokens) - 1} rotations: {jobs.summary()}")
    assert jobs.failures == []
    assert stored == Counter(jobs.written)
