"""A broker: stores, claims, positions, and one method for each call (wire: BrokerServiceServer)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tubemq_spark.protocol.constants import (
    MESSAGE_SIZE_SLACK,
    NO_CHECK_SUM,
    STORE_PARTITION_BASE,
    UNKNOWN_ID,
    Method,
    OpType,
    ServiceType,
)
from tubemq_spark.protocol.envelope import parse
from tubemq_spark.protocol.errcode import ErrCode
from tubemq_spark.protocol.message import check_sum, filter_code
from tubemq_spark.protocol.pb import BrokerService_pb2 as pb
from tubemq_spark.testing.broker.flow_control import DataLimit, ReadQuota, parse_data_limits
from tubemq_spark.testing.broker.group_offsets import GroupOffsets, Key
from tubemq_spark.testing.broker.message_ids import MessageIds
from tubemq_spark.testing.broker.store import NO_CODE, Store
from tubemq_spark.testing.catalog import OFFSET_HISTORY, Catalog, TopicLayout
from tubemq_spark.testing.clock import Clock
from tubemq_spark.testing.config import ServerConfig
from tubemq_spark.testing.dispatch import Service, bad_shape, on_message
from tubemq_spark.testing.java import is_blank, trim
from tubemq_spark.testing.reply_status import DeclinedError, bad_request, filling_status
from tubemq_spark.testing.request_checks import Field, required_text

_TICK = 1.0  # seconds between two looks at timers: the broker scans for expired claims as often
_DEFAULT_READ_POLICY = 300

Authorize = Callable[[pb.AuthorizedInfo, bool], None]
"""Looks at a request's credentials, and whether it produces; `DeclinedError` when they do not do."""


@dataclass
class Claim:
    """Who reads a partition in a group, and how."""

    client_id: str
    codes: frozenset[int] | None
    qry_priority_id: int
    expires_at: float
    quota: ReadQuota


class _WrongPartitionError(Exception):
    """What opening a store throws at a partition that is out of range; the callers make a 500 of it."""


class BrokerService:
    """One broker of the cluster. Its files outlive a crash, its memory does not."""

    def __init__(
        self, broker_id: int, host: str, catalog: Catalog, config: ServerConfig, clock: Clock, authorize: Authorize
    ) -> None:
        self.broker_id = broker_id
        self.host = host
        self.offsets = GroupOffsets(config, clock)
        self.claims: dict[Key, Claim] = {}
        self._catalog = catalog
        self._config = config
        self._clock = clock
        self._authorize = authorize
        self._stores: dict[tuple[str, int], Store] = {}
        self._next_tick = clock.now() + _TICK
        self._ids = MessageIds(clock, config.message_id_phase)
        self._flow_rule: tuple[str, list[DataLimit]] = ("", [])
        reads = {
            Method.PARTITION_REGISTER: on_message(pb.RegisterRequestC2B, self._register_or_unregister),
            Method.PARTITION_HEARTBEAT: on_message(pb.HeartBeatRequestC2B, self._heartbeat),
            Method.GET_MESSAGE: self._get,
            Method.COMMIT_OFFSET: on_message(pb.CommitOffsetRequestC2B, self._commit),
        }
        # Either service type reaches either kind of call: the broker publishes one object as both.
        both = {**reads, Method.SEND_MESSAGE: self._send}
        self.service = Service({ServiceType.BROKER_READ: both, ServiceType.BROKER_WRITE: both}, self._end_late)
        self._late_by: int | None = None

    # -- what the administrator and the machine do ---------------------------------------------------------------

    def store(self, topic: str, store_id: int) -> Store | None:
        return self._stores.get((topic, store_id))

    def stores_of(self, topic: str) -> dict[int, Store]:
        return {store_id: store for (name, store_id), store in self._stores.items() if name == topic}

    def resize(self, topic: str, layout: TopicLayout) -> None:
        """The topic has another number of partitions or stores now."""
        for store in self.stores_of(topic).values():
            store.set_limits(layout.partitions, self._max_bytes(layout))

    def drop_topic(self, topic: str) -> None:
        """Deletes the topic's files."""
        for key in [key for key in self._stores if key[0] == topic]:
            del self._stores[key]

    def crash(self) -> None:
        """What is in memory goes: messages that were not flushed, positions that were not written down, claims."""
        for store in self._stores.values():
            store.crash()
        self.claims.clear()
        self.offsets.restart()
        self._ids.restart()

    def stop(self) -> None:
        """An orderly stop loses nothing, and confirms what readers have in flight."""
        for store in self._stores.values():
            store.flush()
        self.claims.clear()
        self.offsets.stop()
        self.offsets.restart()
        self._ids.restart()

    def tick(self) -> None:
        """Does what is due by the clock."""
        now = self._clock.now()
        if now < self._next_tick:
            return
        self._next_tick = now + _TICK
        for key in [key for key, claim in self.claims.items() if claim.expires_at <= now]:
            del self.claims[key]
            self.offsets.commit(key, False)
        for store in self._stores.values():
            store.tick()
        self.offsets.tick()

    # -- sends ---------------------------------------------------------------------------------------------------

    def _send(self, data: bytes) -> bytes:
        request = parse(pb.SendMessageRequestP2B, data)
        reply = pb.SendMessageResponseB2P()
        try:
            self._authorize(request.authInfo, True)
            self.append(request, reply)
        except DeclinedError as declined:
            reply.success, reply.errCode, reply.errMsg = False, declined.code, declined.text
        return reply.SerializeToString()

    def append(self, request: pb.SendMessageRequestP2B, reply: pb.SendMessageResponseB2P) -> None:
        """Stores a message and says so in `reply`; `DeclinedError` when it must not."""
        self._text(Field.CLIENT_ID, request.clientId)
        partition_id = request.partitionId
        topic, layout = self._topic_of_partition(request.topicName, partition_id, produces=True)
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
        store = self._open_store(topic, layout, partition_id)
        message_id = self._ids.next()
        position = store.append(partition_id, code, message_id, check, request.flag, payload)
        reply.success, reply.errCode, reply.errMsg = True, ErrCode.SUCCESS, str(message_id)
        reply.requireAuth = False
        reply.messageId = message_id
        reply.appendTime = self._clock.wall_ms()
        reply.appendOffset = position

    # -- claims --------------------------------------------------------------------------------------------------

    def _register_or_unregister(self, request: pb.RegisterRequestC2B) -> pb.RegisterResponseB2C:
        reply = pb.RegisterResponseB2C(currOffset=-1)
        with filling_status(reply):
            self._authorize(request.authInfo, False)
            client_id = self._text(Field.CLIENT_ID, request.clientId)
            topic, layout = self._topic(request.topicName)
            key = Key(self._text(Field.GROUP_NAME, request.groupName), topic, request.partitionId)
            if request.opType == OpType.REGISTER:
                self._register(request, client_id, key, layout, reply)
            elif request.opType == OpType.UNREGISTER:
                self._unregister(request, client_id, key)
            else:
                raise bad_request(f"Invalid request:{request.opType}")
        return reply

    def _register(
        self,
        request: pb.RegisterRequestC2B,
        client_id: str,
        key: Key,
        layout: TopicLayout,
        reply: pb.RegisterResponseB2C,
    ) -> None:
        now = self._clock.now()
        holder = self.claims.get(key)
        if holder is not None and holder.client_id != client_id:
            if now < holder.expires_at:
                text = f"Partition {self.broker_id}#{key} has been registered by {holder.client_id}"
            else:  # the newcomer clears the way, and has to come again
                del self.claims[key]
                text = f"Remove Invalid Consumer Register {holder.client_id}#{key}"
            raise DeclinedError(ErrCode.PARTITION_OCCUPIED, f"[Duplicated Register] {text}")
        filters = {trim(text) for text in request.filterCondStr if not is_blank(text)}
        claim = Claim(
            client_id,
            frozenset(map(filter_code, filters)) or None,
            request.qryPriorityId if request.HasField("qryPriorityId") else UNKNOWN_ID,
            now + self._config.consumer_reg_timeout,
            ReadQuota(self._clock, self._config.transfer_size),
        )
        # Taken before the partition is looked at: a register that fails leaves its claim behind.
        self.claims[key] = claim
        try:
            store = self._store_of_partition(key.topic, layout, key.partition_id)
        except _WrongPartitionError as error:
            raise DeclinedError(
                ErrCode.INTERNAL_SERVER_ERROR, f"Register broker failure!, exception is {error}"
            ) from error
        asked = request.currOffset if request.HasField("currOffset") else -1
        reply.currOffset = self.offsets.load(key, store, request.readStatus, asked)
        reply.maxOffset = self._visible_max(claim, store)

    def _unregister(self, request: pb.RegisterRequestC2B, client_id: str, key: Key) -> None:
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

    def _heartbeat(self, request: pb.HeartBeatRequestC2B) -> pb.HeartBeatResponseB2C:
        reply = pb.HeartBeatResponseB2C()
        with filling_status(reply):
            self._authorize(request.authInfo, False)
            client_id = self._text(Field.CLIENT_ID, request.clientId)
            group = self._text(Field.GROUP_NAME, request.groupName)
            policy = request.qryPriorityId if request.HasField("qryPriorityId") else UNKNOWN_ID
            for info, topic, partition_id in [_parse_partition_info(info) for info in request.partitionInfo]:
                claim = self.claims.get(Key(group, topic, partition_id))
                if claim is None:
                    reply.failureInfo.append(f"{ErrCode.HB_NO_NODE.value}:{info}")
                elif claim.client_id != client_id:
                    reply.failureInfo.append(f"{ErrCode.DUPLICATE_PARTITION.value}:{info}")
                else:
                    claim.expires_at = self._clock.now() + self._config.consumer_reg_timeout
                    claim.qry_priority_id = policy
            reply.requireAuth = False
            reply.hasPartFailure = bool(reply.failureInfo)
        return reply

    # -- reads ---------------------------------------------------------------------------------------------------

    def _get(self, data: bytes) -> bytes:
        request = parse(pb.GetMessageRequestC2B, data)
        reply = pb.GetMessageResponseB2C(currOffset=-1, escFlowCtrl=False, currDataDlt=-1, minLimitTime=0)
        chunks: Sequence[bytes] = ()
        with filling_status(reply):
            chunks = self._read(request, reply)
        # The messages stand encoded in the store; as the last field of the reply they are not touched again.
        return b"".join((reply.SerializeToString(), *chunks))

    def _read(self, request: pb.GetMessageRequestC2B, reply: pb.GetMessageResponseB2C) -> Sequence[bytes]:
        client_id = self._text(Field.CLIENT_ID, request.clientId)
        group = self._text(Field.GROUP_NAME, request.groupName)
        topic, layout = self._topic(request.topicName)
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
        try:
            store = self._store_of_partition(topic, layout, key.partition_id)
        except _WrongPartitionError as error:
            raise DeclinedError(
                ErrCode.INTERNAL_SERVER_ERROR,
                f"Get the store of topic {topic} in partition {key.partition_id} failure!",
            ) from error
        late_by, self._late_by = self._late_by, None
        self.offsets.begin_get(key)
        manual = request.manualCommitOffset
        position = self.offsets.next_read(key, store, manual, request.lastPackConsumed)
        if position is None:
            reply.minLimitTime = -1
            raise DeclinedError(ErrCode.NOT_FOUND, "The request offset reached maxOffset!")
        max_data_offset = store.max_data_offset
        allowed = claim.quota.allowed(self._data_limits(), max_data_offset, request.escFlowCtrl)
        if allowed <= 0:
            reply.minLimitTime = -allowed
            raise DeclinedError(ErrCode.SERVER_CONSUME_SPEED_LIMIT, "RpcServer consume speed limit!")
        policy = self._read_policy(claim)
        level = 0 if policy <= 0 else policy // 100 if claim.codes is None else policy % 100
        found = store.read(position, key.partition_id, claim.codes, level, allowed, claim.quota.read_to)
        if late_by is None:
            self.offsets.book(key, found.advance, manual, not found.chunks)
        else:
            self.offsets.book_late(key, found.advance, late_by)
        behind = max_data_offset - found.data_position
        if found.code != ErrCode.SUCCESS:
            reply.minLimitTime = _int32(behind)
            raise DeclinedError(ErrCode(found.code), found.text)
        claim.quota.took(found.size, found.data_position)
        reply.requireSlow = found.slow
        reply.currOffset = max(position, store.min_offset)
        reply.currDataDlt = behind
        reply.maxOffset = found.max_offset
        return found.chunks

    def _end_late(self, gets: int) -> None:
        """The next get moves the group's cursor when so many more gets of the same group have begun."""
        self._late_by = gets

    def _commit(self, request: pb.CommitOffsetRequestC2B) -> pb.CommitOffsetResponseB2C:
        reply = pb.CommitOffsetResponseB2C(currOffset=-1)
        with filling_status(reply):
            client_id = self._text(Field.CLIENT_ID, request.clientId)
            group = self._text(Field.GROUP_NAME, request.groupName)
            topic, layout = self._topic_of_partition(request.topicName, request.partitionId, produces=False)
            key = Key(group, topic, request.partitionId)
            claim = self.claims.get(key)
            if claim is None:
                raise DeclinedError(ErrCode.UNAUTHORIZED, "The partition not registered by consumers")
            if claim.client_id != client_id:
                raise DeclinedError(
                    ErrCode.UNAUTHORIZED, f"The partition has been registered by other consumer: {claim.client_id}"
                )
            store = self._open_store(topic, layout, key.partition_id)
            consumed = request.lastPackConsumed if request.HasField("lastPackConsumed") else True
            reply.currOffset = self.offsets.commit(key, consumed)
            reply.maxOffset = self._visible_max(claim, store)
        return reply

    # -- look-ups ------------------------------------------------------------------------------------------------

    def _text(self, field: Field, value: str) -> str:
        return required_text(field, value, self._config.release)

    def _topic(self, name: str) -> tuple[str, TopicLayout]:
        topic = self._text(Field.TOPIC_NAME, name)
        layout = self._catalog.layout(topic, self.broker_id)
        if layout is None:
            raise DeclinedError(ErrCode.FORBIDDEN, f"topicName {topic} not existed, please check your configure")
        return topic, layout

    def _topic_of_partition(self, name: str, partition_id: int, *, produces: bool) -> tuple[str, TopicLayout]:
        if produces and name.strip() == OFFSET_HISTORY:
            raise DeclinedError(ErrCode.FORBIDDEN, f"topicName {OFFSET_HISTORY} does not allow producers to send data!")
        topic, layout = self._topic(name)
        if not 0 <= _within_store(partition_id) < layout.partitions:
            raise DeclinedError(
                ErrCode.FORBIDDEN, f"partitionId {topic}-{partition_id} not existed, please check your configure"
            )
        return topic, layout

    def _store_of_partition(self, topic: str, layout: TopicLayout, partition_id: int) -> Store:
        if not 0 <= _within_store(partition_id) < layout.partitions:
            raise _WrongPartitionError(
                f"Wrong partition value {partition_id},valid partitions in (0,{layout.partitions - 1})"
            )
        return self._open_store(topic, layout, partition_id)

    def _open_store(self, topic: str, layout: TopicLayout, partition_id: int) -> Store:
        """A store that no list shows is made as well, when its number is asked for."""
        key = topic, max(partition_id, 0) // STORE_PARTITION_BASE
        store = self._stores.get(key)
        if store is None:
            store = self._stores[key] = Store(layout.partitions, self._max_bytes(layout), self._config, self._clock)
        return store

    def _max_bytes(self, layout: TopicLayout) -> int:
        """Of one store."""
        return self._config.topic_max_bytes // layout.stores

    def _read_policy(self, claim: Claim) -> int:
        if claim.qry_priority_id > 0:
            return claim.qry_priority_id
        rule = self._catalog.default_flow
        return rule.qry_priority_id if rule is not None and rule.qry_priority_id > 0 else _DEFAULT_READ_POLICY

    def _visible_max(self, claim: Claim, store: Store) -> int:
        return store.committed_offset if self._read_policy(claim) <= 1 else store.max_offset

    def _data_limits(self) -> list[DataLimit]:
        rule = self._catalog.default_flow
        text = rule.info if rule is not None else ""
        if text != self._flow_rule[0]:
            self._flow_rule = text, parse_data_limits(text) if text else []
        return self._flow_rule[1]


def _within_store(partition_id: int) -> int:
    """Its number among the partitions of its store; negative ids stay as they are."""
    return partition_id if partition_id < STORE_PARTITION_BASE else partition_id % STORE_PARTITION_BASE


def _parse_partition_info(text: str) -> tuple[str, str, int]:
    """The text as the broker writes it back, topic and partition of `brokerId:host:port#topic:partitionId`."""
    try:
        broker, partition = text.split("#")[:2]
        broker_id, host, port = broker.split(":")[:3]
        topic, partition_id = partition.split(":")[:2]
        return f"{int(broker_id)}:{host}:{int(port)}#{topic}:{int(partition_id)}", topic, int(partition_id)
    except ValueError as error:
        raise bad_shape() from error


def _int32(number: int) -> int:
    number &= 0xFFFFFFFF
    return number - (1 << 32) if number >> 31 else number
