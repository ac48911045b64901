# SPDX-License-Identifier: Apache-2.0
"""Somebody else's client against the same server: the official Java client as a program."""
