"""A real TubeMQ for tests and benchmarks: ZooKeeper, one master and brokers from published jars."""
