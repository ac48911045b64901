# SPDX-License-Identifier: Apache-2.0
"""Which decoders are used, and what users are told about them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.decoders import WAYS
from tubemq_spark.protocol import speedups

NAME = "tubemq_spark_speedups"


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Install a module with the present interface."""
    monkeypatch.delenv(speedups.PURE, raising=False)
    module = ModuleType(NAME)
    module.INTERFACE, module.VERSION = speedups.INTERFACE, "1.2.3"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, NAME, module)
    return module


def test_compiled_decoders_are_used(installed: ModuleType) -> None:
    assert speedups.load() == (installed, "compiled, by tubemq-spark-speedups 1.2.3")


@pytest.mark.parametrize("value", ["1", "yes"])
def test_a_variable_switches_them_off(
    installed: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, value: str
) -> None:
    monkeypatch.setenv(speedups.PURE, value)
    assert speedups.load() == (None, "in Python, because TUBEMQ_SPARK_PURE is set")
    assert caplog.text == ""


@pytest.mark.parametrize("value", ["0", ""])
def test_other_values_of_the_variable_do_not(
    installed: ModuleType, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv(speedups.PURE, value)
    assert speedups.load()[0] is installed


def test_without_them_python_decodes(
    monkeypatch: pytest.MonkeyPatch, installed: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delitem(sys.modules, NAME)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if not Path(one, NAME).exists()])
    monkeypatch.setattr(sys, "meta_path", [_Missing(), *sys.meta_path])
    assert speedups.load() == (None, "in Python: tubemq-spark-speedups is not installed")
    assert caplog.text == ""


class _Missing:
    def find_spec(self, name: str, *rest: object) -> None:
        if name == NAME:
            raise ModuleNotFoundError(name=name)


@pytest.mark.parametrize(
    ("interface", "reason"), [(0, "it has interface 0, this release needs 1"), (2, "it has interface 2")]
)
def test_those_of_another_version_are_not_used_and_the_log_says_so(
    installed: ModuleType, caplog: pytest.LogCaptureFixture, interface: int, reason: str
) -> None:
    installed.INTERFACE = interface  # type: ignore[attr-defined]
    module, state = speedups.load()
    assert module is None
    assert reason in state
    assert f"[no-speedups] replies are decoded {state}" in caplog.text


def test_those_of_another_system_are_not_used_and_the_log_says_so(
    installed: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / f"{NAME}.py").write_text('raise ImportError("wrong ELF class")')
    monkeypatch.delitem(sys.modules, NAME)
    monkeypatch.syspath_prepend(tmp_path)
    assert speedups.load()[0] is None
    assert "its import fails: wrong ELF class" in caplog.text


def test_damaged_bounds_are_an_error_and_no_panic(decoders: None) -> None:
    compiled = speedups.compiled
    if compiled is None:
        assert "python" in WAYS
        return
    for starts, ends in ((0, 4), (2, 1), (-1, 1), (1 << 62, 1 << 63 - 1)):
        part = (b"abc", starts.to_bytes(8, sys.byteorder, signed=True), ends.to_bytes(8, sys.byteorder, signed=True))
        with pytest.raises(ValueError, match="not in its buffer"):
            compiled.gather([part])
