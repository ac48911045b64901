# SPDX-License-Identifier: Apache-2.0
"""Applications on a standalone Spark cluster with the installed wheel: `make cluster`.

| module | purpose |
|---|---|
| `__main__` | installs the wheel, starts TubeMQ and Spark, runs the scenarios |
| `standalone` | a Spark master and two workers |
| `scenarios` | what is sent, which fault happens, what must come out |
| `application` | the Spark program of each scenario; it uses only the installed wheel and pyspark |
"""
