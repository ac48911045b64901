# SPDX-License-Identifier: Apache-2.0
"""A master's HTTP API: topics and the state of brokers (wire: WebAdminTopicDeployHandler, WebBrokerConfHandler).

A change of a topic is stored as configuration first. `admin_reload_broker_configure` applies it to the brokers, which
takes seconds on a real cluster and no time here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tubemq_spark.protocol.constants import BROKER_TLS_PORT, OFFSET_HISTORY
from tubemq_spark.protocol.metadata import TOPIC_NAME
from tubemq_spark.testing.catalog import TopicLayout
from tubemq_spark.testing.web_port import Params, Redirect, WebAnswer, WebError, names_in

if TYPE_CHECKING:
    from tubemq_spark.testing.servers import Servers

_TOKEN_NAME = "confModAuthToken"
_NORMAL, _DELETED, _REMOVED = 0, 1, 2  # topicStatusId


@dataclass(frozen=True)
class TopicChange:
    """The configuration of a topic on one broker that was not applied yet."""

    layout: TopicLayout
    status: int = _NORMAL


class MasterWebApi:
    """Answers the calls to the master of this number, counted from 1."""

    def __init__(self, servers: Servers, number: int) -> None:
        self._servers = servers
        self._catalog = servers.catalog
        self._changes = servers.topic_changes
        self._number = number
        self._methods: dict[str, Callable[[Params], WebAnswer]] = {
            "admin_query_topic_info": self._topics,
            "admin_query_broker_run_status": self._brokers,
            "admin_add_new_topic_record": self._add_topic,
            "admin_add_topic_deploy_info": self._add_topic,
            "admin_modify_topic_info": self._modify_topic,
            "admin_delete_topic_info": self._delete_topic,
            "admin_remove_topic_info": self._remove_topic,
            "admin_reload_broker_configure": self._reload,
            "admin_set_topic_authorize_control": self._control,
            "admin_add_authorized_consumergroup_info": partial(self._set_group, may_consume=True),
            "admin_add_black_consumergroup_info": partial(self._set_group, may_consume=False),
        }

    def __call__(self, params: Params) -> WebAnswer | Redirect:
        active = self._servers.active_master
        if self._servers.master(self._number) is not active:
            return Redirect(active.web.address)
        method = params.get("method", "")
        if method not in self._methods:
            raise WebError("Bad request from client, unsupported method!")
        is_query = method.startswith("admin_query")
        if not is_query and params.get(_TOKEN_NAME) != self._catalog.config.conf_mod_auth_token:
            raise WebError("Bad request from client, illegal access, unauthorized request!")
        return self._methods[method](params)

    # -- queries ---------------------------------------------------------------------------------------------------

    def _topics(self, params: Params) -> WebAnswer:
        names = names_in(params, "topicName")
        topics = {OFFSET_HISTORY, *self._catalog.topics, *(topic for topic, _ in self._changes)}
        rows = [self._topic(name) for name in sorted(topics) if not names or name in names]
        return _data([row for row in rows if row["topicInfo"]])

    def _topic(self, name: str) -> WebAnswer:
        records = [(one, self._record(name, one)) for one in sorted(self._servers.brokers)]
        rows = [self._deployment(name, one, record) for one, record in records if record is not None]
        running = [row["runInfo"] for row in rows if row["runInfo"]["numPartitions"] != "-"]
        return {
            "topicName": name,
            "maxMsgSizeInMB": self._catalog.max_msg_size(name) >> 20,
            "topicInfo": rows,
            "infoCount": len(rows),
            "totalCfgNumPart": sum(row["numPartitions"] * row["numTopicStores"] for row in rows),
            "isSrvAcceptPublish": any(run["acceptPublish"] for run in running),
            "isSrvAcceptSubscribe": any(run["acceptSubscribe"] for run in running),
            "totalRunNumPartCount": sum(run["numPartitions"] * run["numTopicStores"] for run in running),
            "authData": {},
        }

    def _deployment(self, name: str, broker_id: int, record: TopicChange) -> WebAnswer:
        entry, running = self._catalog.brokers[broker_id], self._catalog.layout(name, broker_id)
        status = "online" if entry.online else "offline"
        return {
            "topicName": name,
            "brokerId": broker_id,
            "brokerIp": entry.host,
            "brokerPort": entry.port,
            "topicStatusId": record.status,
            "numTopicStores": record.layout.stores,
            "numPartitions": record.layout.partitions,
            "acceptPublish": record.layout.accept_publish,
            "acceptSubscribe": record.layout.accept_subscribe,
            "deletePolicy": record.layout.delete_policy,
            "runInfo": _run_info(running if entry.online else None, status),
        }

    def _brokers(self, params: Params) -> WebAnswer:
        wanted = names_in(params, "brokerId")
        waiting = {broker_id for _, broker_id in self._changes}
        rows = [
            {
                "brokerId": broker_id,
                "brokerIp": entry.host,
                "brokerPort": entry.port,
                "brokerWebPort": self._servers.broker(broker_id).web.port,
                "manageStatus": "online",
                "brokerTLSPort": entry.tls_port or BROKER_TLS_PORT,
                "enableTLS": entry.tls_port is not None,
                "runStatus": "running" if entry.online else "unRegister",
                "subStatus": "idle",
                "isConfChanged": str(broker_id in waiting).lower(),
                "isBrokerOnline": str(entry.online).lower(),
                "acceptPublish": str(entry.accept_publish).lower(),
                "acceptSubscribe": str(entry.accept_subscribe).lower(),
            }
            for broker_id, entry in sorted(self._catalog.brokers.items())
            if not wanted or str(broker_id) in wanted
        ]
        return _data(rows)

    # -- changes ---------------------------------------------------------------------------------------------------

    def _add_topic(self, params: Params) -> WebAnswer:
        def add(name: str, broker_id: int, record: TopicChange | None) -> TopicChange:
            if record is not None:
                raise WebError(f"Existed record found for brokerId-topicName({broker_id}:{name})!", 402)
            layout = TopicLayout(_count(params, "numPartitions"), _count(params, "numTopicStores"))
            return TopicChange(replace(layout, delete_policy=params.get("deletePolicy", layout.delete_policy)))

        return self._change(params, add)

    def _modify_topic(self, params: Params) -> WebAnswer:
        def modify(name: str, broker_id: int, record: TopicChange | None) -> TopicChange:
            record = _existing(name, broker_id, record)
            if record.status != _NORMAL:
                raise WebError(
                    f"Softly deleted record cannot be changed for brokerId-topicName({broker_id}:{name})!", 406
                )
            layout = replace(
                record.layout,
                partitions=_count(params, "numPartitions", record.layout.partitions),
                stores=_count(params, "numTopicStores", record.layout.stores),
                delete_policy=params.get("deletePolicy", record.layout.delete_policy),
                accept_publish=params.get("acceptPublish", str(record.layout.accept_publish)).lower() == "true",
                accept_subscribe=params.get("acceptSubscribe", str(record.layout.accept_subscribe)).lower() == "true",
            )
            if layout == record.layout:
                raise WebError("Topic deploy configure not changed!", 403)
            return replace(record, layout=layout)

        return self._change(params, modify)

    def _delete_topic(self, params: Params) -> WebAnswer:
        return self._change(params, lambda *place: _closed(*place, status=_DELETED))

    def _remove_topic(self, params: Params) -> WebAnswer:
        def remove(name: str, broker_id: int, record: TopicChange | None) -> TopicChange:
            if _existing(name, broker_id, record).status < _DELETED:
                raise WebError(f"The topic {name} in broker={broker_id} must be deleted before it is removed!", 406)
            return _closed(name, broker_id, record, status=_REMOVED)

        return self._change(params, remove)

    def _change(self, params: Params, change: Callable[[str, int, TopicChange | None], TopicChange]) -> WebAnswer:
        topics, brokers = names_in(params, "topicName"), names_in(params, "brokerId")
        for name in topics:
            if TOPIC_NAME.fullmatch(name) is None:
                raise WebError(f"Illegal value in topicName parameter: {name}")
        if not topics or not brokers:
            raise WebError(f"The parameter {'brokerId' if topics else 'topicName'} is required!")
        rows: list[dict[str, Any]] = []
        for broker_id, name in ((int(one), name) for one in sorted(brokers) for name in sorted(topics)):
            row = {"brokerId": broker_id, "topicName": name, "success": True, "errCode": 200, "errInfo": "Ok!"}
            try:
                if broker_id not in self._servers.brokers:
                    raise WebError(f"Not found broker configure by brokerId({broker_id})", 401)
                self._changes[name, broker_id] = change(name, broker_id, self._record(name, broker_id))
            except WebError as error:
                row |= {"success": False, "errCode": error.code, "errInfo": str(error)}
            rows.append(row)
        return _data(rows)

    def _reload(self, params: Params) -> WebAnswer:
        brokers = sorted(map(int, names_in(params, "brokerId")))
        for name, broker_id in [place for place in self._changes if place[1] in brokers]:
            record = self._changes.pop((name, broker_id))
            if record.status == _REMOVED:
                self._servers.undeploy(name, broker_id)
            else:
                running = self._catalog.layout(name, broker_id) or record.layout
                self._servers.deploy(name, broker_id, record.layout.grown(running.partitions, running.stores))
        return _data([{"brokerId": one, "success": True, "errCode": 200, "errInfo": "Ok!"} for one in brokers])

    def _control(self, params: Params) -> WebAnswer:
        topics = names_in(params, "topicName")
        if params.get("isEnable", "").lower() == "true":
            self._catalog.rules.authorised_topics |= topics
        else:
            self._catalog.rules.authorised_topics -= topics
        return _data([])

    def _set_group(self, params: Params, *, may_consume: bool) -> WebAnswer:
        groups, topics = names_in(params, "groupName"), names_in(params, "topicName")
        self._catalog.rules.may_consume |= {(topic, group): may_consume for topic in topics for group in groups}
        return _data([])

    def _record(self, name: str, broker_id: int) -> TopicChange | None:
        layout = self._catalog.layout(name, broker_id)
        applied = None if layout is None else TopicChange(layout)
        return self._changes.get((name, broker_id), applied)


def _data(rows: list[dict[str, Any]]) -> WebAnswer:
    return {"result": True, "errCode": 0, "errMsg": "OK", "data": rows, "count": len(rows)}


def _run_info(layout: TopicLayout | None, status: str) -> WebAnswer:
    if layout is None:
        return dict.fromkeys(("acceptPublish", "acceptSubscribe", "numPartitions", "brokerManageStatus"), "-")
    return {
        "acceptPublish": layout.accept_publish,
        "acceptSubscribe": layout.accept_subscribe,
        "numPartitions": layout.partitions,
        "numTopicStores": layout.stores,
        "brokerManageStatus": status,
    }


def _existing(name: str, broker_id: int, record: TopicChange | None) -> TopicChange:
    if record is None:
        raise WebError(
            f"Not found the topic {name}'s deploy configure in broker={broker_id}, please confirm the configure first!",
            401,
        )
    return record


def _closed(name: str, broker_id: int, record: TopicChange | None, *, status: int) -> TopicChange:
    record = _existing(name, broker_id, record)
    if record.status > status:
        raise WebError(f"Illegal transfer status for the brokerId-topicName({broker_id}:{name}) record!", 406)
    if record.layout.accept_publish or record.layout.accept_subscribe:
        raise WebError(
            "The values of acceptPublish and acceptSubscribe must be false before change status of "
            f"brokerId-topicName({broker_id}:{name}) record!",
            406,
        )
    return replace(record, status=status)


def _count(params: Params, name: str, default: int = 1) -> int:
    text = params.get(name, str(default))
    if not text.isdecimal() or int(text) < 1:
        raise WebError(f"The parameter {name} must be a number of at least 1!")
    return int(text)
