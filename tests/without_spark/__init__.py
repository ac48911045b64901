# SPDX-License-Identifier: Apache-2.0
"""Engines that run queries and writes call by call as Spark does, without Spark."""
