# SPDX-License-Identifier: Apache-2.0
"""A network between the connector and TubeMQ that tests can disturb: proxies before masters and brokers, and what
hostile servers send."""
