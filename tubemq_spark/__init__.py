"""Apache TubeMQ as a source and sink of Spark Structured Streaming."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tubemq_spark import default_logging

if TYPE_CHECKING:
    from tubemq_spark.sink.restore import restore

default_logging.install()

__version__ = "0.1.0"
__all__ = ["__version__", "restore"]


def __getattr__(name: str) -> object:
    # Imported on first use, because pyspark may be missing and takes long to import.
    if name == "restore":
        from tubemq_spark.sink.restore import restore

        return restore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
