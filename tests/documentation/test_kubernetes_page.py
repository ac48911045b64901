# SPDX-License-Identifier: Apache-2.0
"""The manifest of docs/howto/kubernetes.md is YAML, and fits the image and the pipeline of the page."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.documentation.pages import blocks


@pytest.fixture
def files() -> dict[str, str]:
    """The page's files by language."""
    return {block.language: block.code for block in blocks("docs/howto/kubernetes.md") if block.language != "sh"}


@pytest.fixture
def manifest(files: dict[str, str]) -> dict[str, Any]:
    yaml = pytest.importorskip("yaml", reason="`make check` installs it with mkdocs")
    parsed: dict[str, Any] = yaml.safe_load(files["yaml"])
    return parsed


def test_the_manifest_is_a_spark_application(manifest: dict[str, Any]) -> None:
    assert (manifest["apiVersion"], manifest["kind"]) == ("sparkoperator.k8s.io/v1beta2", "SparkApplication")
    assert {"type", "mode", "sparkVersion", "image", "mainApplicationFile", "driver", "executor"} <= set(
        manifest["spec"]
    )


def test_the_manifest_fits_the_image(manifest: dict[str, Any], files: dict[str, str]) -> None:
    spec = manifest["spec"]
    assert f"FROM spark:{spec['sparkVersion']}-python3" in files["dockerfile"]
    assert re.findall(r"COPY pipeline\.py (\S+)", files["dockerfile"]) == [
        spec["mainApplicationFile"].removeprefix("local://")
    ]


def test_the_secret_is_where_the_pipeline_reads_it(manifest: dict[str, Any], files: dict[str, str]) -> None:
    folders = {path.rpartition("/")[0] for path in re.findall(r'"(/\S+)"', files["python"])}
    for pod in ("driver", "executor"):
        assert {secret["path"] for secret in manifest["spec"][pod]["secrets"]} == folders
