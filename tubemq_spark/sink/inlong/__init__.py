# SPDX-License-Identifier: Apache-2.0
"""Packs of InLong: what they have in common, their two formats, and which rows share one."""
