# SPDX-License-Identifier: Apache-2.0
"""`python -m tubemq_spark.cli`: the same as `tubemq-spark`."""

from __future__ import annotations

import sys

from tubemq_spark.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
