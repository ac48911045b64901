# SPDX-License-Identifier: Apache-2.0
"""A real TubeMQ for tests and benchmarks: ZooKeeper, one master and brokers from published jars."""
