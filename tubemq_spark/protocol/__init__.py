# SPDX-License-Identifier: Apache-2.0
"""TubeMQ's protocol as bytes and values: no sockets, clocks, threads or Spark in this package."""
