# SPDX-License-Identifier: Apache-2.0
"""A fault at every call: one query that reads and one that writes are run again for each of their requests to a server
and each fault, and the ledger of all messages is checked each time.

`source` and `sink` play the two queries, with the engines of `tests.histories` and `tests.sink_histories`. `trials`
names the faults and what follows from them, `run` plays many, `kept` continues an interrupted run, and `table` counts
the outcomes for docs/reliability.md.
`python -m tests.every_call` prints that table.
"""
