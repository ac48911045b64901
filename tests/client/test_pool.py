"""Which connections are used again."""
