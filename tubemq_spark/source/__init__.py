# SPDX-License-Identifier: Apache-2.0
"""The Spark source: planning on the driver, exact reads on the executors."""
