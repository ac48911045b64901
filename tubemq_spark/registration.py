# SPDX-License-Identifier: Apache-2.0
"""`register`: makes the format `tubemq` known to a session in which Spark did not find it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from tubemq_spark.datasource import TubeMQDataSource
from tubemq_spark.protocol import speedups
from tubemq_spark.shipping import shipment, use
from tubemq_spark.task_counts import Totals, accumulator_of

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator

_log = logging.getLogger(__name__)


def register(spark: SparkSession, *, ship: bool = False) -> None:
    """Make `format("tubemq")` known to `spark`. It may be called again, and where Spark has found the format itself.

    With `ship`, only this program's Python needs the package: it travels to the Python processes that plan and run
    tasks, inside of what Spark sends them, about 0.3 MB each time. These need `pyarrow`, `numpy` and `protobuf`. If
    another version of the package is installed there, this program's is used. The package is not written to their
    disks. If this program uses the compiled decoders, Spark gives their library to these processes as a file.

    Spark looks for data sources once in the life of its JVM, when a format is first used. So a call is needed, too,

    - in a notebook, if the package was installed after Spark had started, for example with `%pip`;
    - where PYSPARK_DRIVER_PYTHON is set and is not the same as PYSPARK_PYTHON, such as `jupyter`: Spark looks for data
      sources with the first, and fails if that is not a Python with the package. A registered one runs with the second;
    - with `--py-files` or `addPyFile`, which Spark's own look-up does not see; the package is always shipped then;
    - on platforms that do not look for data sources at all;
    - in a Python thread of its own that writes before anything else: Spark looks in the thread's active session, and a
      new thread has none until this call.

    It works on Spark 4.0 to 4.3, also with Spark Connect, where the client's package travels to the server.

    Where Python programs have accumulators (not with Connect), the tasks of a source that was registered report what
    they count: `tubemq_spark.monitoring`.
    """
    spark.createDataFrame([], "value binary")  # makes the session the thread's active one
    totals = accumulator_of(spark)
    # Spark gives an archive of `--py-files` to tasks, but not to the driver's processes that plan.
    if ship := ship or Path(__file__).parents[1].is_file():
        source = _shipped(totals)
        _send_decoders(spark)
    else:
        source = TubeMQDataSource if totals is None else _counting(totals)
    use(ship)
    try:
        spark.dataSource.register(source)
    except AnalysisException as error:
        # Spark 4.0 refuses to replace a source that it has found by itself; that one works, too.
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
        if ship:
            _log.warning(
                "[not-shipped] this release of Spark keeps the source that it has found in the driver's Python: tasks "
                "run the same path, where each executor needs the package"
            )


def _send_decoders(spark: SparkSession) -> None:
    """Let Spark give the library of the compiled decoders to its processes, as a file: in the class and in a reader it
    would take 190 KiB each, and Spark would warn of each stage's size. Workers for which it is not made say so."""
    if speedups.compiled is None:
        return
    for library in Path(str(speedups.compiled.__file__)).parent.glob("*.abi3.so"):  # none on Windows
        try:
            spark.addArtifacts(str(library), file=True)
        except Exception as error:  # of the platform, which may not allow it; the source works without
            _log.warning(
                "[speedups-not-sent] Spark does not take the compiled decoders along: %s. Processes in which "
                "tubemq-spark-speedups is not installed decode replies in Python",
                str(error).partition("\n")[0],
            )


def _counting(totals: Accumulator[Totals]) -> type[DataSource]:
    class TubeMQ(TubeMQDataSource):  # local, so cloudpickle sends it by value, with the accumulator
        pass

    TubeMQ.totals = totals
    return TubeMQ


def _shipped(totals: Accumulator[Totals] | None) -> type[DataSource]:
    prototype = TubeMQDataSource({})
    prototype.totals, prototype.shipment = totals, shipment()
    arrive, arguments = prototype.__reduce_ex__(2)

    class TubeMQ(DataSource):  # local, so cloudpickle sends it by value
        @classmethod
        def name(cls) -> str:
            return "tubemq"

        def __new__(cls, options: Any) -> DataSource:  # type: ignore[misc]
            source: DataSource = arrive(*arguments)
            source.options = options
            return source

    return TubeMQ
