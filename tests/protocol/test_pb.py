# SPDX-License-Identifier: Apache-2.0
"""Tests that the checked-in code is the output of `make proto` for the published files."""

import hashlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path("tubemq_spark/protocol/pb")
SERVICES = ["BrokerService", "MasterService", "RPC"]
GENERATED = [f"{name}_pb2{suffix}" for name in (*SERVICES, "ProxySdk") for suffix in (".py", ".pyi")]

# Another library registers files and messages of the same names first; warnings are errors.
NEIGHBOUR = """
from google.protobuf import descriptor_pb2, descriptor_pool

theirs = descriptor_pb2.FileDescriptorProto(name="RPC.proto", syntax="proto2")
theirs.message_type.add(name="RequestHeader")
theirs.message_type.add(name="AuthorizedInfo")
descriptor_pool.Default().AddSerializedFile(theirs.SerializeToString())

from tubemq_spark.protocol.pb import BrokerService_pb2, MasterService_pb2, RPC_pb2

token = BrokerService_pb2.AuthorizedInfo(visitAuthorizedToken=7)
sent = BrokerService_pb2.SendMessageRequestP2B(
    clientId="c", topicName="t", partitionId=1, data=b"\\0\\xff", flag=0, checkSum=5, sentAddr=-1, authInfo=token
)
received = BrokerService_pb2.SendMessageRequestP2B.FromString(sent.SerializeToString())
assert received == sent and received.data == b"\\0\\xff" and received.authInfo.visitAuthorizedToken == 7
assert RPC_pb2.RequestHeader(protocolVer=2).SerializeToString() == bytes([0x10, 2])
"""


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("generated")
    subprocess.run([sys.executable, ROOT / "scripts/generate_proto.py", out], check=True, timeout=60)
    return out / PACKAGE


@pytest.mark.parametrize("name", GENERATED)
def test_regenerating_changes_no_byte(fresh: Path, name: str) -> None:
    assert (ROOT / PACKAGE / name).read_bytes() == (fresh / name).read_bytes(), "run `make proto`"


def test_no_other_generated_files_are_checked_in(fresh: Path) -> None:
    checked_in = {path.name for path in (ROOT / PACKAGE).glob("*.py*")} - {"__init__.py"}
    assert checked_in == {path.name for path in fresh.iterdir()} == set(GENERATED)


@pytest.mark.parametrize("service", SERVICES)
def test_proto_files_are_as_published(service: str) -> None:
    origin = (ROOT / "proto/README.md").read_text(encoding="utf-8")
    published = re.search(rf"`{service}\.proto` \| `([0-9a-f]{{64}})`", origin)
    assert published is not None
    assert hashlib.sha256((ROOT / f"proto/{service}.proto").read_bytes()).hexdigest() == published.group(1)


@pytest.mark.parametrize("implementation", ["upb", "python"])
def test_coexists_with_another_librarys_messages_of_the_same_names(implementation: str) -> None:
    subprocess.run(
        [sys.executable, "-W", "error", "-c", NEIGHBOUR],
        cwd=ROOT,
        env={"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation},
        check=True,
        timeout=60,
    )
