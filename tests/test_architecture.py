# SPDX-License-Identifier: Apache-2.0
"""Tests that dependencies go one way:

errors, option_definition <- protocol <- client <- source, sink <- datasource; protocol <- testing; errors <-
columns, compression <- source, sink <- checks. Within client: its modules <- net <- cluster <- consumer, producer.

Every import statement counts: inside functions, under `TYPE_CHECKING`, absolute or relative.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "tubemq_spark"

# The parts of tubemq_spark that each part may import; `""` is tubemq_spark/__init__.py itself.
LEAVES = {"errors", "option_definition", "peer_text", "similar_names"}
ARROWS = {
    "errors": {"peer_text"},
    "peer_text": set[str](),
    "default_logging": set[str](),
    "similar_names": set[str](),
    "option_definition": {"errors", "peer_text", "similar_names"},
    "requirements": set[str](),
    "shipped_modules": set[str](),
    "shipping": {"", "shipped_modules"},
    "arrival": {"", "client", "errors", "requirements"},
    "option_builder": set[str](),
    "compression": {"errors", "peer_text"},
    "protocol": LEAVES,
    "client": LEAVES | {"protocol"},
    "columns": set[str](),
    "task_counts": {"client", "shipping"},
    "source": LEAVES | {"columns", "compression", "option_builder", "protocol", "client", "task_counts"},
    "sink": LEAVES | {"columns", "compression", "option_builder", "protocol", "client", "task_counts"},
    "datasource": LEAVES | {"protocol", "client", "source", "sink", "shipping", "task_counts"},
    "inlong": LEAVES | {"columns", "shipping", "source"},
    "checks": LEAVES | {"protocol", "client", "requirements", "source", "sink"},
    "registration": {"datasource", "protocol", "shipping", "task_counts"},
    "spark_check": {"checks", "shipping"},
    "monitoring": LEAVES | {"protocol", "client", "source", "task_counts"},
    "testing": LEAVES | {"protocol"},
    "pytest_plugin": {"errors", "testing", "client"},
    "cli": LEAVES | {"checks", "compression", "default_logging", "protocol", "client", "source", "sink", "testing", ""},
    "": LEAVES | {"default_logging", "datasource", "option_builder", "registration", "sink", "spark_check"},
}

# What each folder of tubemq_spark/client may import of the others; `""` stands for the modules beside the folders.
CLIENT_ARROWS = {
    "": set[str](),
    "net": {""},
    "cluster": {"", "net"},
    "consumer": {"", "net", "cluster"},
    "producer": {"", "net", "cluster"},
}

SOCKETS = {"asyncio", "select", "selectors", "socket", "socketserver", "ssl"}
CLOCKS_AND_THREADS = {"_thread", "concurrent", "multiprocessing", "queue", "sched", "signal", "threading", "time"}
RANDOM_AND_NAMES = {"platform", "random", "secrets", "uuid"}
# The modules, or packages with all modules below them, that may import these or Spark
SOCKET_USERS = (
    "tubemq_spark.checks.worker_probe",
    "tubemq_spark.cli.produce",  # select: whether its input pauses
    "tubemq_spark.client.http_post",
    "tubemq_spark.client.net.open_socket",
    "tubemq_spark.client.system",
    "tubemq_spark.client.tls",
    "tubemq_spark.testing.event_loop",
    "tubemq_spark.testing.port",
)
CLOCK_USERS = (
    "tubemq_spark.checks",
    "tubemq_spark.spark_check",
    "tubemq_spark.client.clock",
    "tubemq_spark.client.system",
    "tubemq_spark.source.stream",  # signals
    "tubemq_spark.monitoring",
    "tubemq_spark.testing.clock",
    "tubemq_spark.testing.event_loop",
    "tubemq_spark.cli",
)
RANDOM_USERS = (
    "tubemq_spark.checks",
    "tubemq_spark.client.system",
    "tubemq_spark.testing",
    "tubemq_spark.cli",
)
SPARK_USERS = (
    "tubemq_spark.cli",
    "tubemq_spark.columns",
    "tubemq_spark.datasource",
    "tubemq_spark.inlong",
    "tubemq_spark.monitoring",
    "tubemq_spark.registration",
    "tubemq_spark.shipped_modules",
    "tubemq_spark.sink",
    "tubemq_spark.source",
    "tubemq_spark.spark_check",
    "tubemq_spark.task_counts",
)
RESERVED = {
    **dict.fromkeys(SOCKETS, SOCKET_USERS),
    **dict.fromkeys(CLOCKS_AND_THREADS, CLOCK_USERS),
    **dict.fromkeys(RANDOM_AND_NAMES, RANDOM_USERS),
    "pyspark": SPARK_USERS,
}


def modules() -> Iterator[tuple[str, Path]]:
    """Yield the dotted name and the file of every module of both packages."""
    for package in ("tubemq_spark", "pyspark_tubemq"):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


MODULES = dict(modules())


def imports(module: str, source: str, *, is_package: bool = False) -> Iterator[str]:
    """Yield the absolute dotted names that `source` imports; `from a import b` counts as `a.b`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = [node.module] if node.module else []
            if node.level:
                here = module.split(".")
                origin = here[: len(here) + is_package - node.level] + origin
            yield from (".".join([*origin, alias.name]) for alias in node.names)


def violations(module: str, source: str, *, is_package: bool = False) -> list[str]:
    """Return the imports of `source` that `module` must not have."""
    return [name for name in imports(module, source, is_package=is_package) if not may_import(module, name)]


def may_import(module: str, name: str) -> bool:
    top = name.split(".")[0]
    if top == "tubemq_spark":
        allowed = {"datasource"} if module == "pyspark_tubemq" else {part_of(module), *ARROWS[part_of(module)]}
        if {part_of(module), part_of(name)} == {"client"}:
            return folder_of(name) in {folder_of(module), *CLIENT_ARROWS[folder_of(module)]}
        return part_of(name) in allowed
    users = RESERVED.get(top)
    return users is None or any(f"{module}.".startswith(f"{user}.") for user in users)


def part_of(name: str) -> str:
    """`tubemq_spark.protocol.frame` is of part `protocol`, `tubemq_spark` itself of part `""`."""
    return [*name.split("."), ""][1]


def folder_of(name: str) -> str:
    """`tubemq_spark.client.net.pool` is in folder `net`, `tubemq_spark.client.settings` in folder `""`."""
    folder = [*name.split("."), "", ""][2]
    return folder if folder in CLIENT_ARROWS else ""


def test_what_tasks_import_is_declared() -> None:
    """pip brings it to executors. Spark is there; the other parts have extras, or run on the driver."""
    parts = ("protocol", "client", "source", "sink", "compression", "datasource")
    found = {
        name.split(".")[0]
        for module, path in MODULES.items()
        if part_of(module) in parts
        for name in imports(module, path.read_text(encoding="utf-8"), is_package=path.name == "__init__.py")
    }
    others = found - sys.stdlib_module_names - {"tubemq_spark", "pyspark"}
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    declared = re.findall(r'^    "([a-z]+)', project.partition("\ndependencies = [")[2].partition("]")[0], re.MULTILINE)
    optional = {"tubemq_spark_speedups"}  # tasks do without it
    assert others - optional == {"google" if name == "protobuf" else name for name in declared}


def test_every_part_has_a_rule() -> None:
    assert {part_of(module) for module in MODULES} <= ARROWS.keys()


@pytest.mark.parametrize("module", MODULES)
def test_modules_import_only_what_the_rules_allow(module: str) -> None:
    path = MODULES[module]
    assert violations(module, path.read_text(encoding="utf-8"), is_package=path.name == "__init__.py") == []


@pytest.mark.parametrize("module", [name for name in MODULES if part_of(name) in {"client", "source", "sink"}])
def test_a_simulated_world_can_take_the_place_of_the_system(module: str) -> None:
    """Only `client.system` and `client.clock` ask the system for what no input decides. Their users name the module, so
    that they find what the simulated world has put there."""
    source = MODULES[module].read_text(encoding="utf-8")
    names = {ast.unparse(node) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)}
    asked = names & {"os.getpid", "os.urandom", "datetime.now", "datetime.utcnow", "date.today"}
    copied = {name for name in imports(module, source) if re.match(r"tubemq_spark\.client\.system\.|os\.", name)}
    assert (asked if module != "tubemq_spark.client.system" else set(), copied) == (set(), set())


@pytest.mark.parametrize(
    ("module", "source", "caught"),
    [
        ("tubemq_spark.protocol.frame", "def f():\n    import threading as t", "threading"),
        ("tubemq_spark.protocol.frame", "from ..client.net.pool import Pool", "tubemq_spark.client.net.pool.Pool"),
        ("tubemq_spark.client.net.pool", "try:\n    import pyspark.sql\nexcept ImportError: pass", "pyspark.sql"),
        ("tubemq_spark.client.cluster.x", "from ..consumer.y import A", "tubemq_spark.client.consumer.y.A"),
        ("pyspark_tubemq", "from tubemq_spark.source import range_planner", "tubemq_spark.source.range_planner"),
    ],
)
def test_catches_a_violation(module: str, source: str, caught: str) -> None:
    assert violations(module, source) == [caught]


def run_python(code: str) -> list[str]:
    """Return the words that `code` prints in a new interpreter, where warnings are errors."""
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=ROOT, timeout=300, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_protocol_and_client_work_without_pyspark() -> None:
    below = tuple(f"tubemq_spark.{part}" for part in ("errors", "option_definition", "protocol", "client"))
    names = [name for name in MODULES if name.startswith(below)]
    run_python(f"import importlib, sys; sys.modules['pyspark'] = None; [*map(importlib.import_module, {names})]")


def test_public_names_are_imported_on_first_use() -> None:
    code = "import sys, tubemq_spark; print('pyspark' in sys.modules, tubemq_spark.restore.__module__)"
    assert run_python(code) == ["False", "tubemq_spark.sink.restore"]


def test_spark_finds_the_data_source() -> None:
    assert run_python("import pyspark_tubemq; print(pyspark_tubemq.DefaultSource.name())") == ["tubemq"]


def test_sparks_lookup_imports_little() -> None:
    """Every Spark session does this, even if it never uses TubeMQ."""
    heavy = {"google.protobuf", "numpy", "pandas", "pyarrow", "ssl"}
    assert run_python(f"import sys, pyspark_tubemq; print(*{heavy} & sys.modules.keys())") == []


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param("sys.modules['pyspark'] = None", id="no-pyspark"),
        pytest.param("sys.modules['tubemq_spark.datasource'] = None", id="no-datasource"),
        pytest.param("sys.modules['tubemq_spark.datasource'] = object()", id="strange-datasource"),
    ],
)
def test_sparks_lookup_survives_a_broken_installation(broken: str) -> None:
    code = f"import sys; {broken}; import pyspark_tubemq; print(hasattr(pyspark_tubemq, 'DefaultSource'))"
    assert run_python(code) == ["False"]


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_pages_name_files_that_exist(page: str) -> None:
    names = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)*\.py)`", (ROOT / page).read_text(encoding="utf-8")))
    assert names
    assert [name for name in sorted(names) if not (ROOT / name).exists() and not (ROOT / PACKAGE / name).exists()] == []
