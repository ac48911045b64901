"""A real TubeMQ for tests, the demo and benchmarks: ZooKeeper, one master and brokers from published jars."""
