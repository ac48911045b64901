"""TubeMQ's servers over the network: connections, metadata, claims, reading, producing. No Spark in this package."""
