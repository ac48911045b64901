# SPDX-License-Identifier: Apache-2.0
"""The master: clients' lives, consumer groups, lists of what is deployed, balance. `service` is where to begin."""
