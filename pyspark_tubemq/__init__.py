# SPDX-License-Identifier: Apache-2.0
"""How Spark finds `format("tubemq")` by itself.

Spark imports every top-level package called `pyspark_*` and registers its `DefaultSource`. One that raises hides all
Python data sources of the session, so this one never does.
"""

import logging

try:
    from tubemq_spark.datasource import TubeMQDataSource
except Exception as error:  # whatever it is, it must not reach Spark's look-up
    if not (isinstance(error, ModuleNotFoundError) and str(error.name).startswith("pyspark")):
        logging.getLogger(__name__).warning('format("tubemq") is not available: %s: %s', type(error).__name__, error)
else:
    DefaultSource = TubeMQDataSource
