# SPDX-License-Identifier: Apache-2.0
"""Which Spark application a process plans for."""

from __future__ import annotations

import hashlib
import os

from tubemq_spark.client import system
from tubemq_spark.client.runtime import PerProcess
from tubemq_spark.protocol.claim_id import APPLICATION_PREFIX


def application_id() -> str:
    """Return the same id in all processes that plan for this Spark application; one per process without Spark.

    Scans of one application in one group take turns at a partition; scans of others are foreign consumers. Spark does
    not pass its application id to processes that plan, but the directories of the driver's block manager. Their names
    have a random part. Users may set the variable to directories without it, which applications share.
    """
    directories = os.environ.get("SPARK_LOCAL_DIRS", "")
    if "blockmgr-" not in directories:
        return _process_id()
    return APPLICATION_PREFIX + hashlib.sha256(f"{system.host_name()} {directories}".encode()).hexdigest()[:16]


_process_id = PerProcess(lambda: f"{APPLICATION_PREFIX}{system.token_hex(8)}")
