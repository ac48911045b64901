# SPDX-License-Identifier: Apache-2.0
"""`make sbom`: write the SBOM of the wheel in dist/ as CycloneDX JSON, beside it.

It names the wheel and the newest versions of what a plain `pip install` brings: numpy, protobuf and pyarrow. Spark and
the optional extras are left out, because clusters bring their own. It changes only with them.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from scripts.environments import ROOT, StepError, empty_environment, run

DIST = ROOT / "dist"


def write_sbom(wheel: Path) -> Path:
    """Write the SBOM of `wheel`. Return its file."""
    name, version = wheel.name.split("-")[:2]
    target = wheel.with_name(f"{name}-{version}.cdx.json")
    # The tool reads the main component from a pyproject.toml and does not know versions from tags.
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    with_version = project.replace('dynamic = ["version"]', f'version = "{version}"')
    if with_version == project:
        raise StepError('pyproject.toml has no line `dynamic = ["version"]`')
    with tempfile.TemporaryDirectory() as scratch:
        main = Path(scratch, "pyproject.toml")
        main.write_text(with_version, encoding="utf-8")
        python = empty_environment(Path(scratch, "environment"), wheel)
        command: list[str | Path] = [
            sys.executable,
            "-m",
            "cyclonedx_py",
            "environment",
            "--pyproject",
            main,
            "--mc-type",
            "library",
        ]
        run([*command, "--output-reproducible", "--validate", "--of", "JSON", "-o", target, python])
    return target


def main() -> int:
    wheels = list(DIST.glob("*.whl"))
    if len(wheels) != 1:
        print(f"make sbom: dist/ has {len(wheels)} wheels. Run `make dist` first.", file=sys.stderr)
        return 2
    try:
        print(f"wrote {write_sbom(wheels[0]).relative_to(ROOT)}")
    except StepError as problem:
        print(f"make sbom: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
