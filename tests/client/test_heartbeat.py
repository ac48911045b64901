"""The heartbeat's thread."""
