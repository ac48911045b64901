# SPDX-License-Identifier: Apache-2.0
"""Random and damaged input for all decoders of bytes and texts that come from a peer, a store or a checkpoint.

`python -m tests.fuzz --count 1000000` tries so many inputs; `tests/fuzz/test_fuzz.py` tries some thousand.
"""
