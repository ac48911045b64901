# SPDX-License-Identifier: Apache-2.0
"""Calls of TubeMQ's HTTP administration API at the master and at brokers."""

from __future__ import annotations

import http.client
import json
import re
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tubemq_spark.client.http_post import post
from tubemq_spark.client.retries import Deadline
from tubemq_spark.client.settings import ClientSettings
from tubemq_spark.errors import AuthError, TransportError, TubeMQError
from tubemq_spark.peer_text import shown
from tubemq_spark.protocol.metadata import Address

_INTERNAL = "__"  # the beginning of the names of the brokers' own topics
_NORMAL = 0  # `topicStatusId` of a topic that is not being deleted (wire: TopicStatus)
_USER = "tubemq_spark"
_TIMEOUT = 10.0  # seconds

Answer = dict[str, Any]


class AdminError(TubeMQError):
    """The server refused a call."""

    cause = "The HTTP API of a master or a broker refused a call, or the address answers as another service does."
    remedy = "Read the server's text. Check the address of the HTTP API, and the token for calls that change something."


@dataclass(frozen=True)
class AdminApi:
    """The HTTP APIs of the masters, of which the active one answers, and of the brokers that it names.

    Calls raise `AdminError` for a refusal, `AuthError` for a wrong token, `TransportError` if no server answers.
    """

    masters: Sequence[Address]
    token: str | None = field(default=None, repr=False)
    timeout: float = _TIMEOUT  # seconds, of one call at one server
    deadline: Deadline | None = None  # of all calls

    @property
    def _time(self) -> float:
        return self.timeout if self.deadline is None else min(self.timeout, self.deadline.left)

    def query(self, method: str, **params: object) -> Answer:
        return self._ask_masters({"method": method, **params})

    def change(self, method: str, **params: object) -> Answer:
        """Make a call that needs the token."""
        if not self.token:
            raise AuthError(
                "changes need the administration token (confModAuthToken in master.ini). Set it with "
                "--token-file, in the variable TUBEMQ_ADMIN_TOKEN or in the table [admin] of the profile"
            )
        users = {"createUser": _USER, "modifyUser": _USER, "confModAuthToken": self.token}
        answer = self._ask_masters({"method": method, **users, **params})
        for row in rows_of(answer):
            if "errInfo" in row:
                row["errInfo"] = self._without_token(str(row["errInfo"]))
        return answer

    def _without_token(self, text: str) -> str:
        """Return the text of a server, which may quote the call."""
        if self.token:
            for form in (self.token, urllib.parse.quote_plus(self.token)):
                text = text.replace(form, "***")
        return text

    def topics(self, name: str | None = None) -> list[Answer]:
        """Return a row for each topic on each broker, without the brokers' own topics; or only those of one topic."""
        answer = self.query("admin_query_topic_info", **({} if name is None else {"topicName": name}))
        with checked_rows():
            found = [dict(row) for one in rows_of(answer) for row in one["topicInfo"]]
            return [row for row in found if name is not None or not str(row["topicName"]).startswith(_INTERNAL)]

    def message_limits(self) -> dict[str, int]:
        """Return how many bytes a message of each topic may have."""
        answer = self.query("admin_query_topic_info")
        with checked_rows():
            return {str(one["topicName"]): int(one["maxMsgSizeInMB"]) << 20 for one in rows_of(answer)}

    def brokers(self) -> dict[int, Answer]:
        """Return the run status of all brokers by id."""
        rows = rows_of(self.query("admin_query_broker_run_status"))
        with checked_rows():
            return {int(row["brokerId"]): row for row in rows}

    def ask_broker(self, status: Answer, method: str, **params: object) -> Answer:
        """Query a broker; `status` is its row of `brokers`."""
        with checked_rows():
            address = Address(str(status["brokerIp"]), int(status["brokerWebPort"]))
        try:
            return self._call(f"http://{address}/broker.htm", {"method": method, **params})
        except _FAILURES as error:
            port = f"the HTTP port {address} of broker {shown(status['brokerId'])}"
            raise TransportError(
                f"{port} does not answer: {self._reason(error)}. Check that the broker runs, and that this machine may "
                "connect to its webPort"
            ) from None

    def _ask_masters(self, params: Mapping[str, object]) -> Answer:
        """Ask one after the other: a standby redirects to the active one."""
        problems = []
        for address in self.masters:
            try:
                return self._call(f"http://{address}/webapi.htm", params)
            except _FAILURES as error:
                problems.append(f"{address}: {self._reason(error)}")
        raise TransportError(
            f"the master's HTTP API does not answer ({'; '.join(problems)}). Name the addresses of all masters with "
            "option 'tubemq.admin.address' (webPort in master.ini): host:port,host:port"
        )

    def _call(self, url: str, params: Mapping[str, object]) -> Answer:
        """Return the answer. Raise one of `_FAILURES`."""
        form = urllib.parse.urlencode({key: _text(value) for key, value in params.items()})
        reply = post(url, form.encode(), self._time)
        try:
            answer = json.loads(reply.decode("utf-8", "replace"))
        except (ValueError, RecursionError):  # the latter for JSON that is nested too deeply
            answer = None
        if not isinstance(answer, dict):
            raise AdminError(f"{url} does not answer as TubeMQ's HTTP API does. Check the address")
        if answer.get("result") is not True:
            problem = str(answer.get("errMsg", "no reason given"))
            if "unauthorized" in problem:
                raise AuthError("the master refused the administration token (confModAuthToken in master.ini)")
            raise AdminError(f"{params['method']} at {url}: {shown(self._without_token(problem))}")
        return answer

    def _reason(self, error: Exception) -> str:
        text = str((isinstance(error, OSError) and error.strerror) or error)
        return shown(self._without_token(text)) or type(error).__name__


def matching_topics(settings: ClientSettings, pattern: re.Pattern[str], timeout: float = _TIMEOUT) -> tuple[str, ...]:
    """Return the topics whose whole names match, without the brokers' own ones. Raises as `AdminApi`."""
    try:
        rows = AdminApi(settings.admin_addresses, timeout=timeout).topics()
        with checked_rows():
            names = {str(row["topicName"]) for row in rows if int(row["topicStatusId"]) == _NORMAL}
    except TubeMQError as error:
        raise type(error)(
            f"option 'subscribePattern' needs the masters' HTTP API, which lists topics: {error}"
        ) from None
    return tuple(sorted(filter(pattern.fullmatch, names)))


def rows_of(answer: Answer) -> list[Answer]:
    """Return the rows of an answer that succeeded."""
    rows: object = answer.get("data", answer.get("dataSet", []))
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


@contextmanager
def checked_rows() -> Iterator[None]:
    """Turn the errors of code that takes values out of rows into an `AdminError`."""
    try:
        yield
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise AdminError(
            f"the HTTP API answers with rows that are not TubeMQ's ({type(error).__name__}: {shown(error)}). Check the "
            "address"
        ) from None


def check_rows(answer: Answer, what: str) -> None:
    """Raise `AdminError` if one of the rows, each for a topic on a broker, says that the change failed."""
    problems = {str(row.get("errInfo", "")) for row in rows_of(answer) if row.get("success", True) is not True}
    if problems:
        raise AdminError(f"{what}: the master refused it: {shown('; '.join(sorted(problems)))}")


def joined(values: Iterable[object]) -> str:
    return ",".join(map(str, values))


_FAILURES = OSError, http.client.HTTPException, ValueError  # the last one for impossible hosts and lengths


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
