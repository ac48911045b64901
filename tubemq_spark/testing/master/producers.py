# SPDX-License-Identifier: Apache-2.0
"""Producers at a master: register, heartbeat, close (wire: TMaster, ProducerInfoHolder)."""

from __future__ import annotations

from tubemq_spark.protocol.constants import DEFAULT_MAX_MESSAGE_SIZE, UNKNOWN_ID
from tubemq_spark.protocol.pb import MasterService_pb2 as master_pb
from tubemq_spark.testing.authentication import AccessCheck
from tubemq_spark.testing.catalog import Catalog
from tubemq_spark.testing.master.heartbeats import Heartbeats
from tubemq_spark.testing.master.metadata_lists import MetadataLists
from tubemq_spark.testing.request_checks import Field, producer_topics

_Request = master_pb.RegisterRequestP2M | master_pb.HeartRequestP2M
_Reply = master_pb.RegisterResponseM2P | master_pb.HeartResponseM2P
_NO_SETTINGS, _OWN_SIZE = UNKNOWN_ID, 1  # ids of the cluster's settings without a default flow rule


class Producers:
    """The requests of producers. The master checks its role last, in both releases."""

    def __init__(self, access: AccessCheck, lists: MetadataLists, catalog: Catalog) -> None:
        self._access = access
        self._lists = lists
        self._catalog = catalog
        self._heartbeats = Heartbeats(catalog.clock, catalog.config.producer_heartbeat_timeout)

    def register(self, request: master_pb.RegisterRequestP2M, reply: master_pb.RegisterResponseM2P, tls: bool) -> None:
        """Return the brokers; topics come with the first heartbeat."""
        client_id, _ = self._check(request)
        self._heartbeats.start(client_id)
        reply.brokerCheckSum, texts = self._lists.brokers(tls)
        reply.brokerInfos.extend(texts)
        self._authorize(request, reply)

    def heartbeat(self, request: master_pb.HeartRequestP2M, reply: master_pb.HeartResponseM2P, tls: bool) -> None:
        """Return the topics, and the brokers if their list changed. 411 for an unknown producer."""
        client_id, topics = self._check(request)
        self._heartbeats.beat(client_id)
        reply.brokerCheckSum, texts = self._lists.brokers(tls)
        if reply.brokerCheckSum != request.brokerCheckSum:
            reply.brokerInfos.extend(texts)
        reply.topicInfos.extend(self._lists.producer_topics(topics))
        self._authorize(request, reply)

    def close(self, request: master_pb.CloseRequestP2M, reply: master_pb.CloseResponseM2P) -> None:
        """Succeed for unknown producers too."""
        self._access.check_credentials(request.authInfo, produce=True)
        client_id = self._access.text(Field.CLIENT_ID, request.clientId)
        self._access.check_active(client_id)
        self._heartbeats.stop(client_id)

    def tick(self) -> None:
        self._heartbeats.scan()

    def forget(self) -> None:
        self._heartbeats.clear()

    def _check(self, request: _Request) -> tuple[str, tuple[str, ...]]:
        self._access.check_credentials(request.authInfo, produce=True)
        client_id = self._access.text(Field.CLIENT_ID, request.clientId)
        self._access.text(Field.HOST_NAME, request.hostName)
        topics = producer_topics(request.topicList)
        self._access.check_active(client_id)
        return client_id, topics

    def _authorize(self, request: _Request, reply: _Reply) -> None:
        """Add the token and the cluster's settings; the reply has them even if the producer did not ask.

        The size is missing when the producer knows these settings, or knows none and they were never changed.
        """
        reply.authorizedInfo.CopyFrom(self._access.authorized())
        reply.appdConfig.configId = self._settings_id()
        if request.appdConfig.configId != reply.appdConfig.configId:
            reply.appdConfig.maxMsgSize = self._catalog.config.max_msg_size

    def _settings_id(self) -> int:
        """Return the id of the cluster's settings, of which the default flow rule is one."""
        if self._catalog.default_flow is not None:
            return self._catalog.default_flow.rule_id
        return _NO_SETTINGS if self._catalog.config.max_msg_size == DEFAULT_MAX_MESSAGE_SIZE else _OWN_SIZE
