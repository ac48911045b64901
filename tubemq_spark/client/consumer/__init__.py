# SPDX-License-Identifier: Apache-2.0
"""Reading as a consumer group: claims, fetches of exact ranges, probes of positions, and searches by time."""
