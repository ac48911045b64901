"""`register`: makes the format `tubemq` known to a session in which Spark did not find it."""

from __future__ import annotations

from pyspark.sql import SparkSession

from tubemq_spark.datasource import TubeMQDataSource


def register(spark: SparkSession) -> None:
    """Make `format("tubemq")` known to `spark`. It may be called again, and where Spark has found the format itself.

    Spark looks for data sources once in the life of its JVM, when a format is first used. So a call is needed

    - in a notebook, if the package was installed after Spark had started, for example with `%pip`;
    - where environment variables set PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON to different interpreters: tasks of a
      registered source run with PYSPARK_PYTHON, those of a source that Spark found with PYSPARK_DRIVER_PYTHON;
    - with `--py-files` or `addArtifacts`, which Spark's own look-up does not see (batch reads and writes only: Spark
      does not pass such files to the driver process of a stream);
    - on platforms that do not look for data sources at all.

    It works on Spark 4.0 to 4.3, also with Spark Connect; there the server must have the package too.
    """
    spark.dataSource.register(TubeMQDataSource)
