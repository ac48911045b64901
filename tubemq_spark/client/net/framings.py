"""The cache of the framing that each server speaks."""

from __future__ import annotations

from tubemq_spark.client.process_caches import close_with_servers
from tubemq_spark.protocol.constants import Framing
from tubemq_spark.protocol.metadata import Address

FRAMINGS: dict[Address, Framing] = {}

close_with_servers(FRAMINGS.clear)  # the next server at an address may speak the other framing
