"""Apache TubeMQ as a source and sink of Spark Structured Streaming."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tubemq_spark import default_logging as bare_log

if TYPE_CHECKING:
    from tubemq_spark.sink.restore import restore

bare_log.install()

__version__ = "0.1.0"
__all__ = ["__version__", "restore"]


def __getattr__(name: str) -> object:
    # Whoever imports the package need not have pyspark, nor wait for it.
    if name == "restore":
        from tubemq_spark.sink.restore import restore

        return restore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
