# SPDX-License-Identifier: Apache-2.0
"""Python environments for Spark's workers with chosen packages only, made of links into the present environment.

bare_python.py FOLDER makes one without `tubemq-spark` and prints its program.
"""

from __future__ import annotations

import sys
import venv
from collections.abc import Iterable, Mapping
from importlib.metadata import distribution
from pathlib import Path

NEEDED = ("pyarrow", "numpy", "protobuf")
_SPARK = ("pyspark", "py4j")


def bare_python(
    folder: Path, packages: Iterable[str] = NEEDED, others: Mapping[str, tuple[str, str]] | None = None
) -> Path:
    """Return the program of a new environment in `folder` with Spark and `packages`, and without `tubemq-spark`.

    `others` are packages without content, by the name that Python imports: name of the distribution, and version.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in (*_SPARK, *packages):
        found = distribution(name)
        for top in {file.parts[0] for file in found.files or () if file.parts[0] not in {"..", "__pycache__"}}:
            if not (site / top).exists():
                (site / top).symlink_to(str(found.locate_file(top)))
    for module, (name, version) in (others or {}).items():
        (site / module).mkdir()
        (site / module / "__init__.py").write_text(f"__version__ = {version!r}\n")
        noted = site / f"{name.replace('-', '_')}-{version}.dist-info"
        noted.mkdir()
        (noted / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder / "bin" / "python"


if __name__ == "__main__":
    print(bare_python(Path(sys.argv[1])))
