"""TubeMQ's protocol as bytes and values: no sockets, clocks, threads or Spark in this package."""
