# SPDX-License-Identifier: Apache-2.0
"""A broker: claims, group offsets, stores, and one method for each request (wire: BrokerServiceServer).

Releases 1.2 and 2.5 behave alike here unless a method's docstring names the difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tubemq_spark.protocol.constants import (
    MESSAGE_SIZE_SLACK,
    NO_CHECK_SUM,
    OFFSET_HISTORY,
    Method,
    OpType,
    ServiceType,
)
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.message import ATTRIBUTES_FLAG, check_sum
from tubemq_spark.protocol.metadata import partition_info
from tubemq_spark.protocol.pb import BrokerService_pb2 as pb
from tubemq_spark.testing.authentication import BrokerAccess
from tubemq_spark.testing.broker.flow_control import ReadQuota, parse_data_limits
from tubemq_spark.testing.broker.group_offsets import GroupOffsets, Key
from tubemq_spark.testing.broker.offset_history import history_messages
from tubemq_spark.testing.broker.store import NO_CODE, Store
from tubemq_spark.testing.broker.topic_stores import TopicStores
from tubemq_spark.testing.catalog import Catalog, TopicLayout
from tubemq_spark.testing.clock import Clock, Period
from tubemq_spark.testing.config import Release
from tubemq_spark.testing.dispatch import DeclinedError, Handler, Service, bad_request, optional
from tubemq_spark.testing.java import filter_code, is_blank, trim
from tubemq_spark.testing.request_checks import Field, parse_partition_info, required_text

_SECOND = 1_000_000_000
_WAVE = 1 << 42  # nanoseconds
_RESTART = _SECOND * 6 // 5  # nanoseconds, the least that a process needs to start
_DEFAULT_READ_POLICY = 300
_TICK = 1.0  # seconds between two runs of the timers; the broker scans for expired claims as often


@dataclass
class Claim:
    """The client that reads a partition for a group, and how it reads."""

    client_id: str
    codes: frozenset[int] | None  # of its filters
    qry_priority_id: int
    expires_at: float
    quota: ReadQuota


class MessageIds:
    """A generator of message ids, none of which comes twice from one process (wire: IdWorker).

    An id is nanoseconds of the broker's monotonic clock, shifted left by 22 bits in a signed 64-bit number, without the
    sign. So ids rise for 36.6 minutes and then fall for as long.
    """

    def __init__(self, clock: Clock, phase: float) -> None:
        """`phase` is the number of seconds of the wave that have passed."""
        self._clock = clock
        self._offset = int((phase - clock.now()) * _SECOND)
        self._last = -1

    def next(self) -> int:
        self._last = max(self._last + 1, int(self._clock.now() * _SECOND) + self._offset)
        nanoseconds = self._last % _WAVE
        return min(nanoseconds, _WAVE - nanoseconds) << 22

    def restart(self) -> None:
        """Continue as a new process on the same machine does."""
        self._offset += _RESTART


class BrokerService(Service):
    """One broker of the cluster. Its files survive a crash, its memory does not."""

    def __init__(self, broker_id: int, host: str, catalog: Catalog) -> None:
        config, clock = catalog.config, catalog.clock
        self.broker_id = broker_id
        self.host = host
        self.stores = TopicStores(broker_id, catalog)
        self.offsets = GroupOffsets(config, clock)
        self.claims: dict[Key, Claim] = {}
        self.access = BrokerAccess(catalog)
        self._catalog = catalog
        self._config = config
        self._clock = clock
        self._tick_due = Period(clock, _TICK)
        self._history_due = Period(clock, config.group_offset_scan_dur)
        self._message_ids = MessageIds(clock, config.message_id_phase)
        handlers: dict[Method, Handler] = {
            Method.PARTITION_REGISTER: self._register_or_unregister,
            Method.PARTITION_HEARTBEAT: self._heartbeat,
            Method.GET_MESSAGE: self._read,
            Method.COMMIT_OFFSET: self._commit,
            Method.SEND_MESSAGE: self._send,
        }
        # The broker publishes one object under both service types, so either type reaches all methods.
        service_types = ServiceType.BROKER_READ, ServiceType.BROKER_WRITE
        super().__init__(f"broker {broker_id}", service_types, handlers, handlers)

    def delay_next_get(self, gets: int) -> None:
        self.offsets.delay_next_get(gets)

    def crash(self) -> None:
        """Lose what is in memory: unflushed messages, positions that were not written, claims."""
        self.stores.each(Store.crash)
        self.claims.clear()
        self.offsets.restart()
        self._message_ids.restart()

    def lose_disk(self) -> None:
        """Lose all files of a broker that does not run."""
        self.stores.clear()
        self.offsets.lose_file()

    def stop(self) -> None:
        """Shut down cleanly: lose nothing, and confirm what readers have in flight."""
        self.stores.each(Store.flush)
        self.claims.clear()
        self.offsets.stop()
        self.offsets.restart()
        self._message_ids.restart()

    def tick(self) -> None:
        if not self._tick_due.is_due():
            return
        now = self._clock.now()
        for key in [key for key, claim in self.claims.items() if claim.expires_at <= now]:
            del self.claims[key]
            self.offsets.commit(key, False)
        self.stores.each(Store.tick)
        self.offsets.tick()
        if self._history_due.is_due():
            self._record_history()

    def _record_history(self) -> None:
        store = self.stores.open(*self.stores.layout(OFFSET_HISTORY), 0)
        now = self._clock.wall_ms()
        for one in history_messages(self.broker_id, self._config.release, now, self.offsets, self.stores):
            ids = self._message_ids.next(), check_sum(one.payload)
            store.append(one.partition_id, one.code, *ids, ATTRIBUTES_FLAG, one.payload)

    # -- sends ---------------------------------------------------------------------------------------------------

    def _send(self, request: pb.SendMessageRequestP2B, reply: pb.SendMessageResponseB2P) -> None:
        """Append one message. The reply names its id (also as `errMsg`) and its position."""
        self.access.check(request.authInfo, produce=True)
        self.append(request, reply)

    def append(self, request: pb.SendMessageRequestP2B, reply: pb.SendMessageResponseB2P) -> None:
        """Store a message and fill `reply`; `DeclinedError` for a wrong one."""
        self._text(Field.CLIENT_ID, request.clientId)
        partition_id = request.partitionId
        topic, layout = self.stores.layout_with(partition_id, request.topicName, produces=True)
        payload = request.data
        if not payload:
            raise bad_request("data length is zero!")
        limit = (layout.max_msg_size or self._config.max_msg_size) + MESSAGE_SIZE_SLACK
        if len(payload) > limit:
            raise bad_request(
                f"data length over max length, allowed max length is {limit}, data length is {len(payload)}"
            )
        check = check_sum(payload)
        if request.checkSum not in (NO_CHECK_SUM, check):
            raise DeclinedError(
                ErrCode.FORBIDDEN,
                f"Checksum msg data failure: {request.checkSum} of {topic} not equal to the data's checksum of {check}",
            )
        code = NO_CODE if is_blank(request.msgType) else filter_code(trim(request.msgType))
        store = self.stores.open(topic, layout, partition_id)
        message_id = self._message_ids.next()
        position = store.append(partition_id, code, message_id, check, request.flag, payload)
        reply.errMsg = str(message_id)
        reply.requireAuth = False
        reply.messageId = message_id
        reply.appendTime = self._clock.wall_ms()
        reply.appendOffset = position

    # -- claims --------------------------------------------------------------------------------------------------

    def _register_or_unregister(self, request: pb.RegisterRequestC2B, reply: pb.RegisterResponseB2C) -> None:
        """Take or release the claim on a partition; `opType` says which of the two."""
        self.access.check(request.authInfo, produce=False)
        client_id = self._text(Field.CLIENT_ID, request.clientId)
        topic, layout = self.stores.layout(request.topicName)
        key = Key(self._text(Field.GROUP_NAME, request.groupName), topic, request.partitionId)
        if request.opType == OpType.REGISTER:
            self._register(request, client_id, key, layout, reply)
        elif request.opType == OpType.UNREGISTER:
            self._unregister(request, client_id, key)
        else:
            raise bad_request(f"Invalid request:{request.opType}")

    def _register(
        self,
        request: pb.RegisterRequestC2B,
        client_id: str,
        key: Key,
        layout: TopicLayout,
        reply: pb.RegisterResponseB2C,
    ) -> None:
        """Take the claim. The reply has the group's confirmed position and the end of the store.

        A claim of another client answers 410. An expired one does so for the last time: it is removed, and the caller
        must register again.
        """
        now = self._clock.now()
        holder = self.claims.get(key)
        if holder is not None and holder.client_id != client_id:
            if now < holder.expires_at:
                text = f"Partition {self.broker_id}#{key} has been registered by {holder.client_id}"
            else:
                del self.claims[key]
                text = f"Remove Invalid Consumer Register {holder.client_id}#{key}"
            raise DeclinedError(ErrCode.PARTITION_OCCUPIED, f"[Duplicated Register] {text}")
        filters = {trim(text) for text in request.filterCondStr if not is_blank(text)}
        claim = Claim(
            client_id,
            frozenset(map(filter_code, filters)) or None,
            optional(request, "qryPriorityId"),
            now + self._config.consumer_reg_timeout,
            ReadQuota(self._clock, self._config.transfer_size),
        )
        # The broker takes the claim before it checks the partition: a register that fails leaves its claim behind.
        self.claims[key] = claim
        if not layout.has_partition(key.partition_id):
            raise DeclinedError(
                ErrCode.INTERNAL_SERVER_ERROR,
                f"Register broker failure!, exception is Wrong partition value {key.partition_id},"
                f"valid partitions in (0,{layout.partitions - 1})",
            )
        store = self.stores.open(key.topic, layout, key.partition_id)
        asked = optional(request, "currOffset", -1)
        reply.currOffset = self.offsets.load(key, store, request.readStatus, asked)
        reply.maxOffset = self._visible_max(claim, store)

    def _unregister(self, request: pb.RegisterRequestC2B, client_id: str, key: Key) -> None:
        """Release the claim. `readStatus` 0 confirms what is in flight, anything else drops it."""
        claim = self.claims.get(key)
        if claim is None:
            raise DeclinedError(ErrCode.HB_NO_NODE, f"UnRegistered Consumer {client_id}, you have to register firstly!")
        if claim.client_id != client_id:
            raise DeclinedError(
                ErrCode.DUPLICATE_PARTITION,
                f"[Duplicated Request]Partition {key} has been consumed by {claim.client_id};"
                f"Current consumer {client_id}, broker={self.host}",
            )
        self.offsets.commit(key, request.readStatus == 0)
        del self.claims[key]

    def _heartbeat(self, request: pb.HeartBeatRequestC2B, reply: pb.HeartBeatResponseB2C) -> None:
        """Keep the client's claims alive. `failureInfo` lists those that it does not hold."""
        self.access.check(request.authInfo, produce=False)
        client_id = self._text(Field.CLIENT_ID, request.clientId)
        group = self._text(Field.GROUP_NAME, request.groupName)
        for broker, partition in [parse_partition_info(text) for text in request.partitionInfo]:
            claim = self.claims.get(Key(group, partition.topic, partition.partition_id))
            info = partition_info(broker, partition)
            if claim is None:
                reply.failureInfo.append(f"{ErrCode.HB_NO_NODE.value}:{info}")
            elif claim.client_id != client_id:
                reply.failureInfo.append(f"{ErrCode.DUPLICATE_PARTITION.value}:{info}")
            else:
                claim.expires_at = self._clock.now() + self._config.consumer_reg_timeout
                claim.qry_priority_id = optional(request, "qryPriorityId")
        reply.requireAuth = False
        reply.hasPartFailure = bool(reply.failureInfo)

    # -- reads ---------------------------------------------------------------------------------------------------

    def _read(self, request: pb.GetMessageRequestC2B, reply: pb.GetMessageResponseB2C) -> Sequence[bytes]:
        """Fetch messages at the group's cursor. 404: none now; 452: over the rate limit.

        The store holds the messages encoded. They are the reply's last field, so they follow it as they are.
        """
        reply.escFlowCtrl, reply.currDataDlt, reply.minLimitTime = False, -1, 0
        client_id = self._text(Field.CLIENT_ID, request.clientId)
        group = self._text(Field.GROUP_NAME, request.groupName)
        topic, layout = self.stores.layout(request.topicName)
        key = Key(group, topic, request.partitionId)
        claim = self.claims.get(key)
        if claim is None:
            raise DeclinedError(ErrCode.HB_NO_NODE, f"UnRegistered Consumer:{client_id}, you have to register firstly!")
        if claim.client_id != client_id:
            raise DeclinedError(
                ErrCode.DUPLICATE_PARTITION,
                f"[Duplicated Request] Partition={key} of Broker={self.broker_id} has been consumed by "
                f"{claim.client_id};Current consumer {client_id}",
            )
        claim.expires_at = self._clock.now() + self._config.consumer_reg_timeout
        if not layout.has_partition(key.partition_id):
            raise DeclinedError(
                ErrCode.INTERNAL_SERVER_ERROR,
                f"Get the store of topic {topic} in partition {key.partition_id} failure!",
            )
        store = self.stores.open(topic, layout, key.partition_id)
        delay = self.offsets.begin_get(key)
        manual = request.manualCommitOffset
        position = self.offsets.next_read(key, store, manual, request.lastPackConsumed)
        if position is None:
            reply.minLimitTime = -1
            raise DeclinedError(ErrCode.NOT_FOUND, "The request offset reached maxOffset!")
        max_data_offset = store.max_data_offset
        rule = self._catalog.default_flow
        limits = () if rule is None else parse_data_limits(rule.info)
        allowed = claim.quota.allowed(limits, max_data_offset, request.escFlowCtrl)
        if allowed <= 0:
            reply.minLimitTime = -allowed
            raise DeclinedError(ErrCode.SERVER_CONSUME_SPEED_LIMIT, "RpcServer consume speed limit!")
        policy = self._read_policy(claim)
        level = 0 if policy <= 0 else policy // 100 if claim.codes is None else policy % 100
        found = store.read(position, key.partition_id, claim.codes, level, allowed, claim.quota.read_to)
        if delay is None:
            self.offsets.advance(key, found.advance, manual, not found.chunks)
        else:
            self.offsets.advance_later(key, found.advance, delay)
        behind = max_data_offset - found.data_position
        if found.code != ErrCode.SUCCESS:
            reply.minLimitTime = _int32(behind)
            raise DeclinedError(ErrCode(found.code), found.text)
        claim.quota.count(found.size, found.data_position)
        reply.requireSlow = found.slow
        reply.currOffset = max(position, store.min_offset)
        reply.currDataDlt = behind
        reply.maxOffset = found.max_offset
        return found.chunks

    def _commit(self, request: pb.CommitOffsetRequestC2B, reply: pb.CommitOffsetResponseB2C) -> None:
        """Confirm what the claim has in flight, or drop it (`lastPackConsumed` false)."""
        client_id = self._text(Field.CLIENT_ID, request.clientId)
        group = self._text(Field.GROUP_NAME, request.groupName)
        topic, layout = self.stores.layout_with(request.partitionId, request.topicName, produces=False)
        key = Key(group, topic, request.partitionId)
        claim = self.claims.get(key)
        if claim is None:
            raise DeclinedError(ErrCode.UNAUTHORIZED, "The partition not registered by consumers")
        if claim.client_id != client_id:
            raise DeclinedError(
                ErrCode.UNAUTHORIZED, f"The partition has been registered by other consumer: {claim.client_id}"
            )
        store = self.stores.open(topic, layout, key.partition_id)
        reply.currOffset = self.offsets.commit(key, optional(request, "lastPackConsumed", True))
        reply.maxOffset = self._visible_max(claim, store)

    def _text(self, field: Field, value: str) -> str:
        return required_text(field, value, Release.V2_5)  # the broker of 1.2 has these texts, too; its master has not

    def _visible_max(self, claim: Claim, store: Store) -> int:
        return store.committed_offset if self._read_policy(claim) <= 1 else store.max_offset

    def _read_policy(self, claim: Claim) -> int:
        """Return the policy of a claim: its own, else that of the default flow rule, else the broker's."""
        rule = self._catalog.default_flow
        policies = (claim.qry_priority_id, 0 if rule is None else rule.qry_priority_id)
        return next((policy for policy in policies if policy > 0), _DEFAULT_READ_POLICY)


def _int32(number: int) -> int:
    number &= 0xFFFFFFFF
    return number - (1 << 32) if number >> 31 else number
