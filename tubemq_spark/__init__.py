# SPDX-License-Identifier: Apache-2.0
"""Apache TubeMQ as a source and sink of Spark Structured Streaming."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tubemq_spark import default_logging
from tubemq_spark.errors import (
    AuthError,
    ConfigError,
    DataLossError,
    FencedError,
    PartitionOccupiedError,
    PositionMovedError,
    ProtocolError,
    RowError,
    ServerError,
    TimestampMissingError,
    TransportError,
    TubeMQError,
)

if TYPE_CHECKING:
    from tubemq_spark.option_builder import sink_options, source_options
    from tubemq_spark.registration import register
    from tubemq_spark.sink.restore import restore
    from tubemq_spark.spark_check import check

    __version__: str

default_logging.install()

_MODULES = {  # imported on first use, because pyspark may be missing and takes long to import
    "check": "spark_check",
    "register": "registration",
    "restore": "sink.restore",
    "sink_options": "option_builder",
    "source_options": "option_builder",
}

__all__ = [
    "AuthError",
    "ConfigError",
    "DataLossError",
    "FencedError",
    "PartitionOccupiedError",
    "PositionMovedError",
    "ProtocolError",
    "RowError",
    "ServerError",
    "TimestampMissingError",
    "TransportError",
    "TubeMQError",
    "__version__",
    "check",
    "register",
    "restore",
    "sink_options",
    "source_options",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        return _version()
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"tubemq_spark.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """Name what is imported on first use, too, for `help` and completion."""
    return sorted({*globals(), *__all__})


def _version() -> str:
    """Return the version of the installed package, or "0.0.0" for a source tree that is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("tubemq-spark")
    except PackageNotFoundError:
        return "0.0.0"
