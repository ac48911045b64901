# SPDX-License-Identifier: Apache-2.0
"""Sending: queues of records, the partitioner, connections to brokers, retries, and sends whose outcome is unknown."""
