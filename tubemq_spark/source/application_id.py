"""Application id: which Spark application this process plans for, and the claims of its batch reads.

Scans of one application in one group take turns at a partition; scans of other applications are foreign consumers.
Spark does not pass the application's id to a process that plans a batch read. But it passes the directories of the
driver's block manager. Their names have a random part: all such processes of an application see the same names, and
no other application does.
"""

from __future__ import annotations

import hashlib
import os
import platform
import secrets
from functools import cache

from tubemq_spark.protocol.claim_id import PLANNER, ClaimId, label_of

_DIRECTORIES = "SPARK_LOCAL_DIRS"
_RANDOM_PART = "blockmgr-"  # in Spark's names; users may set the variable to directories that applications share


def planner_claim() -> ClaimId:
    """Return the claim of one plan of a batch read; its tasks derive theirs from it. Plans may run at the same time."""
    return ClaimId(
        application_id(), run=0, batch=0, task=PLANNER, reader=secrets.token_hex(4), label=label_of(platform.node())
    )


def application_id() -> str:
    """Return the same id in all processes that plan for this application; one per process if Spark did not start it."""
    directories = os.environ.get(_DIRECTORIES, "")
    if _RANDOM_PART not in directories:
        return _of_this_process()
    return "app-" + hashlib.sha256(f"{platform.node()} {directories}".encode()).hexdigest()[:16]


@cache
def _of_this_process() -> str:
    return f"app-{secrets.token_hex(8)}"
