"""Numbers of the protocol under TubeMQ's own names (RpcConstants, TBaseConstants, PbEnDecoder)."""

from __future__ import annotations

from enum import Enum, IntEnum

RPC_PROTOCOL_BEGIN_TOKEN = 0xFF7FF4FE
RPC_MAX_BUFFER_SIZE = 8192  # bytes of one block of a frame
MAX_FRAME_MAX_LIST_SIZE = 3584  # blocks of one frame: (20 MiB + 8 MiB) / 8192
MAX_PREFIXED_LENGTH = 5 * 1024 * 1024  # the outer length that servers 1.1 and 1.2 take

PROTOCOL_VERSION = 3  # org.apache.inlong.tubemq; it selects the package of exception names, nothing else

MASTER_PORT = 8715
BROKER_PORT = 8123

INDEX_MSG_UNIT_SIZE = 28  # bytes of one index entry; every position is a multiple of it
STORE_PARTITION_BASE = 10000  # partition id = store id * 10000 + number within the store

MAX_CLIENT_ID = 1024  # characters of client ids and group names
DEFAULT_MAX_MESSAGE_SIZE = 1024 * 1024  # bytes, until the master says otherwise
MESSAGE_SIZE_SLACK = 10240  # the broker takes this much more than its limit, for the attributes
STORE_DATA_HEADER_LEN = 52  # bytes in front of each message in a store's data; sizes and limits of reads count them

UNKNOWN_ID = -2  # "I hold none yet" for configuration ids, tokens and flow rules
NO_CHECK_SUM = -1  # the broker does not compare

# Reads with this policy see what is in memory, with and without filters (wire: qryPriorityId XYZ, X plain, Z filtered).
READ_EVERYTHING = 303
# With this policy reads see files alone, and a registration answers where the files end (BrokerServiceServer).
READ_FILES = 1

# The most index entries one plain read scans in files (MsgFileStore).
ENTRIES_PER_READ = 4000


class Framing(str, Enum):
    """How a frame is put on the wire; a server understands one of them and stays silent to the other."""

    STANDARD = "standard"  # up to 1.0 and from 1.3 on
    PREFIXED = "prefixed"  # 1.1 and 1.2: an int32 length in front


class ServiceType(IntEnum):
    MASTER = 1
    BROKER_READ = 2
    BROKER_WRITE = 3


class Method(IntEnum):
    PRODUCER_REGISTER = 1
    PRODUCER_HEARTBEAT = 2
    PRODUCER_CLOSE = 3
    CONSUMER_REGISTER = 4  # with the master's balance; our client keeps its own (V2)
    CONSUMER_HEARTBEAT = 5
    CONSUMER_CLOSE = 6
    BROKER_REGISTER = 7  # these three are a broker's, no client's
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
    """At a register: where a group without a stored position begins. At an unregister: NORMAL confirms what is in
    flight, anything else discards it."""

    NORMAL = 0  # from the earliest
    FROM_MAX = 1  # from the latest
    FROM_MAX_ALWAYS = 2
