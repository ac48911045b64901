# SPDX-License-Identifier: Apache-2.0
"""A broker's HTTP API: the positions of groups, and the clients that hold partitions (wire: BrokerAdminServlet)."""

from __future__ import annotations

from tubemq_spark.protocol.constants import NO_POSITION
from tubemq_spark.testing.broker.group_offsets import Key
from tubemq_spark.testing.broker.service import BrokerService
from tubemq_spark.testing.catalog import Catalog
from tubemq_spark.testing.web_port import Params, WebAnswer, WebError, names_in


class BrokerWebApi:
    """Answers the calls to one broker; all of them are queries."""

    def __init__(self, service: BrokerService, catalog: Catalog) -> None:
        self._service = service
        self._catalog = catalog
        self._methods = {
            "admin_query_offset": self._offsets,
            "admin_query_broker_all_consumer_info": self._consumers,
        }

    def __call__(self, params: Params) -> WebAnswer:
        method = params.get("method", "")
        if method not in self._methods:
            raise WebError(f"Unsupported method {method}")
        self._service.tick()
        return self._methods[method](params)

    def _offsets(self, params: Params) -> WebAnswer:
        """Return the group's confirmed positions and the stores' ends. A group without a record has no entry."""
        groups, topics = names_in(params, "groupName"), names_in(params, "topicName")
        keys = [key for key in self._service.offsets.recorded() if not groups or key.group in groups]
        found = []
        for group in sorted({key.group for key in keys}):
            own = {key for key in keys if key.group == group and (not topics or key.topic in topics)}
            deployed = sorted({key.topic for key in own if self._catalog.layout(key.topic, self._service.broker_id)})
            infos = [self._topic_offsets(group, topic, own) for topic in deployed]
            if infos:
                found.append({"groupName": group, "subInfo": infos, "topicCount": len(infos)})
        return _data_set(found)

    def _topic_offsets(self, group: str, topic: str, own: set[Key]) -> WebAnswer:
        layout = self._catalog.layout(topic, self._service.broker_id)
        rows = []
        for number in layout.partition_ids if layout else ():
            _, end = self._service.stores.extent(topic, number)
            key = Key(group, topic, number)
            confirmed = self._service.offsets.confirmed(key) if key in own else None
            rows.append(
                {
                    "partitionId": number,
                    "curOffset": NO_POSITION if confirmed is None else confirmed,
                    "flightOffset": NO_POSITION if confirmed is None else self._service.offsets.in_flight(key),
                    "offsetLag": NO_POSITION if confirmed is None else end - confirmed,
                    "offsetMax": end,
                }
            )
        return {"topicName": topic, "offsets": rows, "partCount": len(rows)}

    def _consumers(self, params: Params) -> WebAnswer:
        """Return the claims of the group, or of all groups."""
        groups = names_in(params, "groupName")
        rows: list[WebAnswer] = []
        for key in sorted(key for key in self._service.claims if not groups or key.group in groups):
            low, high = self._service.stores.extent(key.topic, key.partition_id)
            rows.append(
                {
                    "index": len(rows) + 1,
                    "groupName": key.group,
                    "topicName": key.topic,
                    "partitionId": key.partition_id,
                    "consumerId": self._service.claims[key].client_id,
                    "isRegOk": True,
                    "tmpOffset": self._service.offsets.in_flight(key),
                    "minOffset": low,
                    "maxOffset": high,
                    "zkOffset": self._service.offsets.confirmed(key),
                }
            )
        return _data_set(rows)


def _data_set(rows: list[WebAnswer]) -> WebAnswer:
    return {"result": True, "errCode": 0, "errMsg": "Success!", "dataSet": rows, "totalCnt": len(rows)}
