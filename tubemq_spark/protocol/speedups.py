# SPDX-License-Identifier: Apache-2.0
"""The compiled decoders of the distribution `tubemq-spark-speedups`, if it is installed. Each has a twin in Python that
is used without them and decodes the same.
"""

from __future__ import annotations

import logging
import os
from types import ModuleType

_log = logging.getLogger(__name__)

INTERFACE = 1
"""The version of the functions that this release calls."""

PURE = "TUBEMQ_SPARK_PURE"
"""Environment variable: with any value but `0` the compiled decoders are not used."""

_NAME = "tubemq-spark-speedups"


def load() -> tuple[ModuleType | None, str]:
    """Return the compiled decoders, or None, and a text that says what decodes. Log if they are installed, but of no
    use."""
    if os.environ.get(PURE, "0") not in ("", "0"):
        return None, f"in Python, because {PURE} is set"
    try:
        import tubemq_spark_speedups as found
    except ModuleNotFoundError:
        return None, f"in Python: {_NAME} is not installed"
    except ImportError as error:  # made for another system
        return None, _unusable(f"its import fails: {error}")
    if found.INTERFACE != INTERFACE:
        return None, _unusable(f"it has interface {found.INTERFACE}, this release needs {INTERFACE}")
    return found, f"compiled, by {_NAME} {found.VERSION}"


def _unusable(reason: str) -> str:
    text = (
        f"in Python, because {_NAME} cannot be used: {reason}. Install it in the version of tubemq-spark, or remove it"
    )
    _log.warning("[no-speedups] replies are decoded %s", text)
    return text


compiled, state = load()
