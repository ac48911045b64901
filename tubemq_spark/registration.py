# SPDX-License-Identifier: Apache-2.0
"""`register`: makes the format `tubemq` known to a session in which Spark did not find it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.task_counts import Totals, accumulator_of

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator


def register(spark: SparkSession) -> None:
    """Make `format("tubemq")` known to `spark`. It may be called again, and where Spark has found the format itself.

    Spark looks for data sources once in the life of its JVM, when a format is first used. So a call is needed

    - in a notebook, if the package was installed after Spark had started, for example with `%pip`;
    - where PYSPARK_DRIVER_PYTHON is set and is not the same as PYSPARK_PYTHON, such as `jupyter`: Spark looks for data
      sources with the first, and fails if that is not a Python with the package. A registered one runs with the second;
    - with `--py-files` or `addPyFile`, which Spark's own look-up does not see;
    - on platforms that do not look for data sources at all;
    - in a Python thread of its own that writes before anything else: Spark looks in the thread's active session, and a
      new thread has none until this call.

    It works on Spark 4.0 to 4.3, also with Spark Connect; there the server must have the package installed.

    Where Python programs have accumulators (not with Connect), the tasks of a source that was registered report what
    they count: `tubemq_spark.monitoring`.
    """
    spark.createDataFrame([], "value binary")  # makes the session the thread's active one
    archive = Path(__file__).parents[1]
    try:
        if archive.is_file():
            spark.dataSource.register(_archived(str(archive)))
        elif (totals := accumulator_of(spark)) is not None:
            spark.dataSource.register(_counting(totals))
        else:
            spark.dataSource.register(TubeMQDataSource)
    except AnalysisException as error:
        # Spark 4.0 refuses to replace a source that it has found by itself; that one works, too.
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise


def _counting(totals: Accumulator[Totals]) -> type[DataSource]:
    class TubeMQ(TubeMQDataSource):  # local, so cloudpickle sends it by value, with the accumulator
        pass

    TubeMQ.totals = totals
    return TubeMQ


def _archived(archive: str) -> type[DataSource]:
    """Return the data source for a package that Spark has shipped in `archive`, as `--py-files` does.

    Spark gives such files to tasks, but not to the driver's process that plans a stream (tried on Spark 4.3). The class
    and its methods are local, so cloudpickle sends them by value to that process, where they add the archive to the
    path.
    """

    def forwarded(name: str) -> Callable[..., Any]:
        def call(source: DataSource, *given: Any, **named: Any) -> Any:
            import sys

            try:
                from tubemq_spark.datasource import TubeMQDataSource
            except ModuleNotFoundError:
                sys.path.append(archive)
                from tubemq_spark.datasource import TubeMQDataSource

            return getattr(TubeMQDataSource(source.options), name)(*given, **named)

        return call

    names = ("schema", "reader", "streamReader", "writer", "streamWriter")
    methods: dict[str, Any] = {name: forwarded(name) for name in names}
    return type("TubeMQ", (DataSource,), {"name": classmethod(lambda _: "tubemq"), **methods})
