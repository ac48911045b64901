# SPDX-License-Identifier: Apache-2.0
"""An embedded TubeMQ for tests: a master and brokers in this process that speak the wire protocol of real servers."""

from tubemq_spark.testing.cluster import EmbeddedTubeMQ
from tubemq_spark.testing.config import Release, ServerConfig
from tubemq_spark.testing.faults import Calls, Fault
from tubemq_spark.testing.port import TLSFiles
from tubemq_spark.testing.stored_message import StoredMessage

__all__ = ["Calls", "EmbeddedTubeMQ", "Fault", "Release", "ServerConfig", "StoredMessage", "TLSFiles"]
