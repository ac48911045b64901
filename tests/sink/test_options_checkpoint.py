# SPDX-License-Identifier: Apache-2.0
"""Spellings of checkpoint folders."""

from __future__ import annotations

import pytest

from tubemq_spark.sink.options import normal_path

ROOTED = ["/x", "/x/", "//x", "///x//", "/./x", "/y/../x", " /x ", "dbfs:/x", "dbfs:///x", "hdfs:/x", "hdfs:///x"]
SAME = [
    [*ROOTED, "file:/x", "file:///x", "FILE:///x/", "file:////x", "file://localhost/x"],
    ["/a/b", "/a//b", "file:/a/b/", "dbfs:/a//b"],
    ["s3://bucket/a/b", "s3a://bucket/a/b", "s3n://bucket/a/b/", "S3A://Bucket//a/./b"],
    ["s3://bucket", "s3a://bucket/", "s3://bucket//"],
    ["hdfs://node/x", "hdfs://node:8020/x", "HDFS://NODE/x/"],
    ["hdfs://node:9000/x"],
    ["hdfs://other/x"],
    ["abfs://box@account.dfs.core.windows.net/x", "abfss://box@account.dfs.core.windows.net/x/"],
    ["wasb://box@account.blob.core.windows.net/x", "wasbs://box@account.blob.core.windows.net/x"],
    ["gs://bucket/x", "gs://bucket/x/"],
    ["gs://bucket/X"],
    ["x", "./x", "x/", "y/../x"],
    ["x y/%20"],
    ["C:/x", "C:/x/"],
    ["/x:y/z"],
    ["/", "//", "file:///"],
    ["", " "],
]


@pytest.mark.parametrize("spellings", SAME, ids=lambda spellings: spellings[0])
def test_spellings_of_one_folder_are_equal(spellings: list[str]) -> None:
    assert {normal_path(one) for one in spellings} == {spellings[0]}


def test_different_folders_stay_different() -> None:
    assert len({normal_path(spellings[0]) for spellings in SAME}) == len(SAME)
