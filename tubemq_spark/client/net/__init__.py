# SPDX-License-Identifier: Apache-2.0
"""Sockets: connections, TLS, the connection pool, and requests that are sent to many servers at once."""
