# SPDX-License-Identifier: Apache-2.0
"""Measurements: `python -m benchmarks`, see docs/performance.md. Long trials: `soak` and `faults`."""
