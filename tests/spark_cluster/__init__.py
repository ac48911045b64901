# SPDX-License-Identifier: Apache-2.0
"""Applications on Spark clusters with the wheel: `make cluster`.

| module | purpose |
|---|---|
| `__main__` | installs the wheel, starts TubeMQ and Spark, runs the scenarios |
| `cluster` | what the scenarios need of a cluster |
| `standalone` | a Spark master and two workers |
| `yarn` | a YARN resource manager and two node managers |
| `scenarios` | what is sent, which fault happens, what must come out |
| `trial` | runs a scenario on a cluster |
| `application` | the Spark program of each scenario; it uses only the wheel and pyspark |
"""
