# SPDX-License-Identifier: Apache-2.0
"""Generate tubemq_spark/protocol/pb from proto/: `python scripts/generate_proto.py [FOLDER]`.

The published files declare no package. This script adds one, so that file and message names cannot collide with another
library's `RPC.proto` or `RequestHeader` in protobuf's process-wide pool. Names are not on the wire: the bytes stay the
same.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("tubemq_spark/protocol/pb")
SYNTAX = 'syntax = "proto2";\n'


def generate(out: Path) -> None:
    """Write the generated modules and their stubs below `out`/tubemq_spark/protocol/pb.

    `protoc` is the one installed beside the running interpreter; pyproject.toml pins its version.
    """
    protoc = Path(sys.executable).parent / "protoc"
    with tempfile.TemporaryDirectory() as staging:
        staged = Path(staging, PACKAGE)
        staged.mkdir(parents=True)
        names = sorted(path.name for path in (ROOT / "proto").glob("*.proto"))
        for name in names:
            published = (ROOT / "proto" / name).read_text(encoding="utf-8")
            if published.count(SYNTAX) != 1:
                raise SystemExit(f"proto/{name}: expected the line {SYNTAX.strip()!r} exactly once")
            (staged / name).write_text(published.replace(SYNTAX, f"{SYNTAX}package tubemq_spark;\n"), encoding="utf-8")
        command = [str(protoc), f"-I{staging}", f"--python_out={out}", f"--pyi_out={out}"]
        subprocess.run([*command, *(str(PACKAGE / name) for name in names)], cwd=staging, check=True)


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
