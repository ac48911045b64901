# SPDX-License-Identifier: Apache-2.0
"""What a task of `check` looks at."""

from __future__ import annotations

import json

import pytest

from tubemq_spark.checks.executors import task_program


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"tubemq.passwordFile": "/only/on/the/driver", "TUBEMQ.USER": "reader"}, []),
        ({"tubemq.tls.enabled": "true", "tubemq.tls.ca": "/not/here"}, ["option 'tubemq.tls.ca'"]),
    ],
)
def test_a_task_needs_the_files_of_tls_and_no_password(options: dict[str, str], found: list[str]) -> None:
    options |= {"tubemq.master": "localhost", "subscribe": "orders", "tubemq.group": "readers"}
    results = json.loads(task_program(options, [])())["results"]
    assert [detail.partition(":")[0] for *_, detail, _ in results] == found, results
