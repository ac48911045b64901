# SPDX-License-Identifier: Apache-2.0
"""Random histories of a streaming query that writes, and what must stand on the servers at the end of each.

A history is made from its seed (`generate`). It is played (`play`) as Spark plays a query: a driver plans each batch,
workers write its tasks, a process of its own commits it. All of these are processes (`zygote`) that are killed or cut
off at a chosen call to the servers (`hooks`), while the cluster meets with accidents (`world`, `real_world`). Whatever
was committed must then be there (`judge`). One that fails is shrunk and printed.

`python -m tests.sink_histories` plays many. `tests.every_call` lets each fault happen at each call of one small query.
"""
