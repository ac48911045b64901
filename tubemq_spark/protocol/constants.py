# SPDX-License-Identifier: Apache-2.0
"""Protocol constants under TubeMQ's own names (wire: RpcConstants, TBaseConstants, PbEnDecoder)."""

from __future__ import annotations

from enum import Enum, IntEnum

RPC_PROTOCOL_BEGIN_TOKEN = 0xFF7FF4FE
RPC_MAX_BUFFER_SIZE = 8192  # bytes in one block of a frame
MAX_FRAME_MAX_LIST_SIZE = 3584  # blocks in one frame: (20 MiB + 8 MiB) / 8192
MAX_PREFIXED_LENGTH = 5 * 1024 * 1024  # the largest outer length that servers 1.1 and 1.2 accept

PROTOCOL_VERSION = 3  # org.apache.inlong.tubemq; it only selects the package of exception names

# The servers' defaults
MASTER_PORT, BROKER_PORT = 8715, 8123
MASTER_TLS_PORT, BROKER_TLS_PORT = 8716, 8124
WEB_PORT = 8080  # of a master

INDEX_MSG_UNIT_SIZE = 28  # bytes of one index entry; every position is a multiple of it
STORE_PARTITION_BASE = 10000  # partition id = store id * 10000 + number within the store

OFFSET_HISTORY = "__offset_history__"  # the brokers' own topic: every broker has it, and clients can only read it
IDENTITY_GROUP = "spark_broker_identity"  # the consumer group in which this connector asks brokers who they are
MAX_TOPICS = 1024  # that a producer may declare at the master (wire: PBParameterUtils.checkProducerTopicList)

MAX_CLIENT_ID = 1024  # characters of client ids and group names
DEFAULT_MAX_MESSAGE_SIZE = 1024 * 1024  # bytes, unless the master reports another limit
MESSAGE_SIZE_SLACK = 10240  # bytes over its limit that the broker accepts, for the attributes
STORE_DATA_HEADER_LEN = 52  # bytes before each message in the data files; read sizes and limits count them

UNKNOWN_ID = -2  # the client has no configuration id, token or flow rule yet
NO_POSITION = -2  # in the HTTP API of a broker, which has no record of the group (wire: BrokerAdminServlet)
NO_CHECK_SUM = -1  # the broker does not verify it

# With this policy brokers read memory, too, with and without filters (wire: qryPriorityId XYZ, X plain, Z filtered).
READ_EVERYTHING = 303
# With this policy a broker reads files only, and a registration returns where they end (wire: BrokerServiceServer).
READ_FILES = 1

ENTRIES_PER_READ = 4000  # index entries that one read without filters scans in files, at most (wire: MsgFileStore)


class Framing(str, Enum):
    """The two frame formats. A server understands one of them and does not reply to the other."""

    STANDARD = "standard"  # releases up to 1.0, and from 1.3 on
    PREFIXED = "prefixed"  # releases 1.1 and 1.2: an int32 length before each frame


class ServiceType(IntEnum):
    MASTER = 1
    BROKER_READ = 2
    BROKER_WRITE = 3


class Method(IntEnum):
    PRODUCER_REGISTER = 1
    PRODUCER_HEARTBEAT = 2
    PRODUCER_CLOSE = 3
    CONSUMER_REGISTER = 4  # the master assigns partitions; this connector assigns them itself, with V2
    CONSUMER_HEARTBEAT = 5
    CONSUMER_CLOSE = 6
    BROKER_REGISTER = 7  # only brokers send these three
    BROKER_HEARTBEAT = 8
    BROKER_CLOSE = 9
    SEND_MESSAGE = 13
    PARTITION_REGISTER = 15  # and unregister
    PARTITION_HEARTBEAT = 16
    GET_MESSAGE = 17
    COMMIT_OFFSET = 18
    CONSUMER_REGISTER_V2 = 20
    CONSUMER_HEARTBEAT_V2 = 21
    GET_PARTITION_META = 22


class OpType(IntEnum):
    REGISTER = 31
    UNREGISTER = 32


class ReadStatus(IntEnum):
    """In a register request: where a group without a stored position begins (Kafka: `auto.offset.reset`). In an
    unregister request: NORMAL confirms the messages in flight, the others discard them.
    """

    NORMAL = 0  # from the earliest
    FROM_MAX = 1  # from the latest
    FROM_MAX_ALWAYS = 2
