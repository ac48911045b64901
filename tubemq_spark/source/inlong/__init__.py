# SPDX-License-Identifier: Apache-2.0
"""Packs of InLong: the decoders of InLongMsg and of DataProxy's protobuf, and the rows of the messages inside."""
