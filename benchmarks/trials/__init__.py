# SPDX-License-Identifier: Apache-2.0
"""A stream and a sink on a real TubeMQ in real time, while the network is bad or servers fail: `make faults`.

pytest runs these trials, but only if it is given this folder. Most outages are short, unless TUBEMQ_FULL_TIMES is 1:
then they last as long as docs/reliability.md says.
"""
