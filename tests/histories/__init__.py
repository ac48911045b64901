"""The ledger test: random histories of a cluster and a streaming query, and what must be true at the end of each.

A history is made from its seed (`generate`), played on a cluster (`world`, `real_world`) with a query (`calls`: Spark's
calls without Spark; `spark`: Spark itself) and judged by a ledger of all messages (`ledger`). One that fails is shrunk
and printed (`shrink`). `python -m tests.histories` plays many.
"""
