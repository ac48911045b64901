# SPDX-License-Identifier: Apache-2.0
"""Checks of an installation: versions, connections, topics, groups, holders and clocks.

`tubemq_spark.check(spark, options)` runs them on the driver and in tasks, the command `tubemq-spark doctor` without
Spark. Each module has the checks of one subject: functions from settings to `CheckResult`s. No check moves a group,
claims a partition or sends a message.
"""

from tubemq_spark.checks.driver import driver_checks
from tubemq_spark.checks.result import FAILED, OK, CheckResult, CheckState, count_states

__all__ = ["FAILED", "OK", "CheckResult", "CheckState", "count_states", "driver_checks"]
