# SPDX-License-Identifier: Apache-2.0
"""Checks `master`, `credentials`, `topic`, `group`: what the masters know and allow.

The checks join the group for a moment, as each reader does: an idle group keeps its positions, and members of an active
one notice nothing. Without a group they use a new name.
"""

from __future__ import annotations

import random
import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tubemq_spark.checks.clocks import check_token_clock, refused_clock
from tubemq_spark.checks.network import MAX_TIMEOUT, Server
from tubemq_spark.checks.result import CheckResult, failed, ok, split_advice, warning
from tubemq_spark.checks.settings import CheckSettings
from tubemq_spark.client.admin_api import AdminApi, matching_topics
from tubemq_spark.client.cluster.consumer_session import ConsumerSession
from tubemq_spark.client.cluster.deployed_topics import layouts_of
from tubemq_spark.client.cluster.producer_session import NotListedError, ProducerSession
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import TransportError, TubeMQError
from tubemq_spark.protocol.errcode import ErrCode, Reaction, reaction_to
from tubemq_spark.protocol.metadata import Broker, TopicOnBroker
from tubemq_spark.source.option_parsers import types_of

S = TypeVar("S", ConsumerSession, ProducerSession)

_CODE = re.compile(r" failed with ([0-9]+) ")
_GROUP_REFUSED = (Reaction.OTHER_MEMBERS, Reaction.FIX_CONFIG, Reaction.FIX_CREDENTIALS)
_CLOSED = (
    "nothing if that is intended; otherwise open the topic for consumers, take the group off the topic's blacklist, or "
    "start the brokers of the topic"
)


@dataclass
class Found:
    """What the masters listed: brokers by id, and the layouts that the group may read. `servers` are those to check."""

    servers: list[Server] = field(default_factory=list)
    brokers: dict[int, Broker] = field(default_factory=dict)
    readable: list[TopicOnBroker] = field(default_factory=list)
    token: int = 0

    @contextmanager
    def noting(self, session: S) -> Iterator[S]:
        """Yield a session; note what the masters have told it, and close it."""
        try:
            yield session
        finally:
            self.brokers.update(session.cluster.brokers)
            self.token = max(self.token, session.visit_token)
            session.close()


def check_cluster(settings: CheckSettings, found: Found) -> list[CheckResult]:
    """Return the results, and note what the masters list. They must have been checked for connections before."""
    given = settings.client
    # Ask once: a check reports what is now.
    client = replace(given, retry_for=0.0, rpc_timeout=min(MAX_TIMEOUT, given.rpc_timeout), master_reachable=True)
    results = list(_check(replace(settings, client=client), found))
    now, signs = client.clock.time(), client.credentials is not None
    clock = check_token_clock(found.token, now, has_credentials=signs, subject=_masters(client))
    if clock is not None and all(one.check != "clock" for one in results):
        results.append(clock)
    return results


def _check(settings: CheckSettings, found: Found) -> Iterator[CheckResult]:
    if settings.pattern is not None:
        settings = yield from _matching(settings, settings.pattern)
    if settings.topics and (yield from _reading(settings, found)):
        return
    if settings.written:
        yield from _writing(settings, found)
    if found.brokers:
        return
    try:
        with found.noting(ProducerSession(settings.client)) as session:  # one without topics, which needs no group
            session.refresh_once()
    except TubeMQError as error:
        result = _of_error(error, settings)
    else:
        result = _lists_brokers(settings, found)
    if not (settings.topics or settings.written):  # which have a result of their own
        yield result


def _matching(settings: CheckSettings, pattern: re.Pattern[str]) -> Generator[CheckResult, None, CheckSettings]:
    """Yield the result of asking for topics by pattern, and return the settings with these topics."""
    try:
        topics = matching_topics(settings.client, pattern, settings.client.rpc_timeout)
    except TubeMQError as error:
        yield failed("topic", pattern.pattern, *split_advice(error, "see the master's log"))
        return settings
    if not topics:
        yield warning("topic", pattern.pattern, "no topic matches option 'subscribePattern'", "create a topic")
    return replace(settings, topics=topics)


def _reading(settings: CheckSettings, found: Found) -> Generator[CheckResult, None, bool]:
    """Yield the results for topics and group. Return True if no other request can succeed."""
    group = settings.group or f"spark_check_{random.getrandbits(48):012x}"
    filters = types_of(settings.topics, settings.filters)
    try:
        with found.noting(ConsumerSession(settings.client, group, settings.topics, filters)) as session:
            layouts = session.deployed()
    except TubeMQError as error:
        result = _of_error(error, settings)
        if result.check == "topic" and len(settings.topics) > 1:
            yield from _unknown_topics(settings, result)
        else:
            yield result
        return result.check in ("master", "credentials", "clock")
    yield _lists_brokers(settings, found)
    if settings.group is not None:
        yield ok("group", settings.group, f"the master admits it to {', '.join(settings.topics)}")
    for topic in settings.topics:
        yield _topic(topic, layouts, found)
    yield from _message_sizes(settings)
    return False


def _message_sizes(settings: CheckSettings) -> Iterator[CheckResult]:
    """Yield a result for each topic that may have messages too long for a broker to deliver from memory, and one if
    the master refuses to tell. Without an answer there is none."""
    unnamed = sorted(set(settings.topics).difference(settings.long_topics))
    if not unnamed:
        return
    with closing(ProducerSession(settings.client, "limits")) as session:
        try:
            told = session.limits(unnamed, is_urgent=False)
        except TransportError:
            return
        except TubeMQError as error:
            problem = f"the master does not tell this client how long messages may be: {split_advice(error, '')[0]}"
            remedy = "if a topic's limit is above the cluster's, name the topic in option 'longMessageTopics'"
            yield warning("message-size", ", ".join(unnamed), problem, remedy)
            return
    shown: Mapping[str, int] = {}
    if any(told.get(topic) is None for topic in unnamed):  # masters before 1.4 tell it only there
        with suppress(TubeMQError):
            timeout = min(settings.client.timings.silent_master_timeout, settings.client.rpc_timeout)
            shown = AdminApi(settings.client.admin_addresses, timeout=timeout).message_limits()
    usual = session.max_message_size
    for topic in unnamed:
        own = told.get(topic)
        if (own or 0) > usual:
            detail = f"messages may have {own} bytes, and {usual} in other topics: they are read from files only"
            yield ok("message-size", topic, detail)
        elif shown.get(topic, 0) > usual:
            detail = (
                f"messages may have {shown[topic]} bytes, and {usual} in other topics: Spark can miss longer ones, "
                "because the master tells that only by its HTTP API"
            )
            yield warning("message-size", topic, detail, f"add {topic} to option 'longMessageTopics'")


def _lists_brokers(settings: CheckSettings, found: Found) -> CheckResult:
    return ok("master", _masters(settings.client), f"it lists {len(found.brokers)} brokers")


def _topic(topic: str, layouts: Mapping[tuple[str, int], TopicOnBroker], found: Found) -> CheckResult:
    listed = [one for one in layouts.values() if one.topic == topic]
    if not listed:
        return _unknown(topic)
    readable = [one for one in listed if one.available and one.broker_id in found.brokers]
    found.readable += readable
    count = sum(one.stores * one.partitions for one in readable)
    if not count:
        brokers = ", ".join(str(one.broker_id) for one in listed)
        detail = f"the master lists it as closed on broker {brokers}, and Spark reads it where a broker serves it"
        return warning("topic", topic, detail, _CLOSED)
    return ok("topic", topic, f"{count} partitions on {len(readable)} brokers")


def _unknown_topics(settings: CheckSettings, result: CheckResult) -> Iterator[CheckResult]:
    """Yield a result for each unknown topic; `result` if the master does not say which."""
    unknown = [topic for topic in settings.topics if layouts_of(settings.client, topic) == {}]
    if not unknown:
        yield result
    for topic in unknown:
        yield result._replace(subject=topic)


def _writing(settings: CheckSettings, found: Found) -> Iterator[CheckResult]:
    with found.noting(ProducerSession(settings.client)) as session:
        for topic in settings.written:
            try:
                session.add_topics([topic])
            except NotListedError:
                remedy = "start the brokers of the topic, or open it for producers"
                closed = failed("topic", topic, "it accepts no messages now", remedy)
                yield _unknown(topic) if layouts_of(settings.client, topic) == {} else closed
            except TubeMQError as error:
                yield _of_error(error, settings)
                return
            else:
                yield ok("topic", topic, f"{len(session.cluster.partitions(topic))} partitions accept messages")


def _unknown(topic: str) -> CheckResult:
    return failed("topic", topic, "the master knows no such topic", "check its name, or create the topic")


def _of_error(error: TubeMQError, settings: CheckSettings) -> CheckResult:
    """Return the result for a refusal of the masters. The code in the error says what the master refused."""
    found = _CODE.search(str(error))
    code = int(found[1]) if found else getattr(error, "code", 0) or None
    problem, remedy = split_advice(error, "see the master's log")
    topics = ", ".join((*settings.topics, *settings.written))
    check, subject = "master", _masters(settings.client)
    if code == ErrCode.CERTIFICATE_FAILURE:
        if "timestamp" in problem:
            return refused_clock(problem, subject)
        check = "credentials"
    elif code == ErrCode.TOPIC_NOT_DEPLOYED:
        check, subject = "topic", topics
    elif code is not None and reaction_to(code) in _GROUP_REFUSED:
        check, subject = "group", settings.group or topics
    elif isinstance(error, TransportError):
        problem = str(error)
        remedy = "check option 'tubemq.master', and that one of the masters runs and is not a standby"
    return failed(check, subject, problem, remedy)


def _masters(client: ClientSettings) -> str:
    return ",".join(map(str, client.masters))
