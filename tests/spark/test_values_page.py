# SPDX-License-Identifier: Apache-2.0
"""The Avro and Protobuf code of docs/howto/values.md and inlong-table.md runs, in processes that load Spark's jars. For
the other code see tests/documentation/test_pages.py.
"""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyspark
import pytest
from google.protobuf import descriptor_pb2

from tests.documentation.pages import blocks
from tests.inlong_packs import pack_grouped
from tests.real.jars import MissingTool, tool
from tests.spark_jvm import quick_start
from tubemq_spark.testing import EmbeddedTubeMQ

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "values.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"(?:<!-- (\w+) -->\n)?```(python|text)\n(.*?)```\n", PAGE, re.DOTALL)
_COPY = "dependency:copy"
_WORKING = ("4.1.1",)  # releases whose jars were tried on later ones, for a Maven repository that lacks the newest

PROGRAM = """\
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.jars", sys.argv[1]).config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.extraJavaOptions", sys.argv[2]).getOrCreate()
"""
TABLE = "+------+---+\n|sensor|bar|\n+------+---+\n|     7|2.5|\n+------+---+\n"


BODIES = {"avro": b"\x0e" + struct.pack("<d", 2.5), "protobuf": b"\x08\x07\x11" + struct.pack("<d", 2.5)}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", BODIES)
def test_avro_and_protobuf(kind: str, tmp_path: Path) -> None:
    jar = jar_of(f"spark-{kind}", (pyspark.__version__, *_WORKING), tmp_path)
    ((code, _),) = ((code, language) for mark, language, code in BLOCKS if mark == kind)
    opening, *others = (block.code for block in blocks("docs/howto/inlong-table.md"))
    (parsing,) = (code for code in others if f"from_{kind}" in code)
    (tmp_path / "readings.desc").write_bytes(descriptor_of_a_reading())
    with EmbeddedTubeMQ({f"readings_{kind}": 1, "shop": 1}) as tubemq:
        tubemq.send("shop", pack_grouped(1, [(f"groupId=g_shop&streamId={kind}&dt=1772359200000", BODIES[kind])]))
        program = (PROGRAM + code + opening + parsing).replace("master:8715", tubemq.master) + "readings.show()\n"
        command = [sys.executable, "-c", program, str(jar), quick_start()]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.stdout.count(TABLE) == 2, done.stderr  # of both pages


def jar_of(name: str, versions: Sequence[str], folder: Path) -> Path:
    """Return the jar of the first version that Maven has. Skip if it has none: then nobody can run the block."""
    try:
        maven = tool("mvn")
    except MissingTool as problem:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(problem))
    for version in versions:
        artifact = f"org.apache.spark:{name}_2.13:{version}"
        command = [maven, "-q", "-B", _COPY]
        done = subprocess.run(
            [*command, f"-Dartifact={artifact}", f"-DoutputDirectory={folder}"],
            capture_output=True,
            text=True,
            timeout=600,
        )
        if done.returncode == 0:
            return folder / f"{name}_2.13-{version}.jar"
    pytest.skip(f"Maven has no {name}_2.13 of {', '.join(versions)}")


def descriptor_of_a_reading() -> bytes:
    """Return what protoc writes for `package plant; message Reading { int32 sensor = 1; double bar = 2; }`."""
    found = descriptor_pb2.FileDescriptorSet()
    file = found.file.add(name="readings.proto", package="plant", syntax="proto3")
    message = file.message_type.add(name="Reading")
    field = descriptor_pb2.FieldDescriptorProto
    message.field.add(name="sensor", number=1, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL)
    message.field.add(name="bar", number=2, type=field.TYPE_DOUBLE, label=field.LABEL_OPTIONAL)
    return found.SerializeToString()
