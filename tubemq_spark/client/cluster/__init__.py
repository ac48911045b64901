# SPDX-License-Identifier: Apache-2.0
"""The cluster as the masters describe it: sessions with a master, brokers, topics, and visit tokens."""
