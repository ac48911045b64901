# SPDX-License-Identifier: Apache-2.0
"""An hour of a real TubeMQ and real Spark under faults: `make soak`.

A producer writes to one topic. Two queries copy it with `effectivelyOnce`, each to an output of its own: `steady` runs
from the beginning to the end, `killed` dies again and again. The ledger compares the outputs with what the brokers
acknowledged. The samples show whether memory, file descriptors, threads, connections, claims and registrations grow.

| module | purpose |
|---|---|
| `__main__` | the run: servers, processes, phases, verdict |
| `timetable` | when which fault happens |
| `servers` | the real TubeMQ and its topics |
| `producer` | a program: the producer |
| `programs` | starts and kills the producer and the queries (`tests/spark/endless_copy.py`) |
| `faults` | the faults |
| `clock` | a clock that the run can set, for the Python processes of the queries |
| `outputs` | reads the outputs while they grow |
| `ledger` | compares what was sent with what the outputs have |
| `samples` | what the processes and servers use |
| `flatness` | compares two windows of the samples |
| `report` | the table |
"""
