# SPDX-License-Identifier: Apache-2.0
"""What each option and column of the sink does, and what becomes of those that cannot be used."""
