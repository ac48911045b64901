"""Which Spark application this process plans for, and the claims of its batch reads.

The scans of one application in one group take turns at a partition, those of others are foreign. Spark tells a process
that plans a batch read no id of the application. It does name the folders of the driver's block manager, though, whose
names have a random part: they are the same in all such processes of an application, and in no other one's.
"""

from __future__ import annotations

import hashlib
import os
import platform
import secrets
from functools import cache

from tubemq_spark.protocol.claim_id import PLANNER, ClaimId, label_of

_FOLDERS = "SPARK_LOCAL_DIRS"
_RANDOM_PART = "blockmgr-"  # what Spark names them; others may set the variable to folders that they share


def planner_claim() -> ClaimId:
    """The claim of one plan of a batch read, from which its tasks derive theirs. Two plans may be made at once."""
    return ClaimId(
        application_id(), run=0, batch=0, task=PLANNER, reader=secrets.token_hex(4), label=label_of(platform.node())
    )


def application_id() -> str:
    """One for all processes that plan for this application; one for this process where Spark did not start it."""
    folders = os.environ.get(_FOLDERS, "")
    if _RANDOM_PART not in folders:
        return _of_this_process()
    return "app-" + hashlib.sha256(f"{platform.node()} {folders}".encode()).hexdigest()[:16]


@cache
def _of_this_process() -> str:
    return f"app-{secrets.token_hex(8)}"
