# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.golden.capture_inlong`` writes packs with InLong's own Java class into ``inlong/``.

It needs a Java development kit and Maven. Each capture writes the same packs.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from tests.real.jars import tool

FOLDER = Path(__file__).with_name("inlong")


def main() -> None:
    with tempfile.TemporaryDirectory() as jars:
        pom, goal = str(FOLDER / "pom.xml"), "dependency:copy-dependencies"
        subprocess.run([tool("mvn"), "-B", "-q", goal, f"-DoutputDirectory={jars}", "-f", pom], check=True)
        class_path = os.pathsep.join(map(str, sorted(Path(jars).glob("*.jar"))))
        command = [tool("java"), "-Dfile.encoding=UTF-8", "-cp", class_path, str(FOLDER / "Packs.java"), str(FOLDER)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
