"""Apache TubeMQ as a source and sink of Spark Structured Streaming."""

__version__ = "0.1.0"
