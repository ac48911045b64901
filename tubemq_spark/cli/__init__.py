"""The command `tubemq-spark`."""
