# SPDX-License-Identifier: Apache-2.0
"""The Spark sink: rows become messages, and a task succeeds when all of them are acknowledged."""
