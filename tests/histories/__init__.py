# SPDX-License-Identifier: Apache-2.0
"""The ledger test: random histories of a cluster and a streaming query. At the end each message must have been read
exactly once, or the query must have reported its loss.

`generate` makes a history from its seed. `play` plays it on a cluster (`world`, `real_world`) with a query (`calls`:
Spark's calls without Spark; `spark`: Spark itself) and compares the rows with a ledger of all messages (`ledger`).
`shrink` makes a failing history shorter. `python -m tests.histories` plays many.
"""
