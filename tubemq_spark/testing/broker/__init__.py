# SPDX-License-Identifier: Apache-2.0
"""A broker: stores, claims, groups' positions, flow rules. `service` is where to begin."""
