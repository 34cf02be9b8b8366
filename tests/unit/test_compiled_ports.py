"""Whether ports on packet sockets have their compiled part, and what is said where they do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from inaproto_adapters.frames import compiled_ports


def test_it_goes_with_the_kernels(use_kernels: Callable[[str], None]) -> None:
    use_kernels("compiled")
    assert isinstance(compiled_ports.active(), compiled_ports.PortCalls)
    use_kernels("numpy")
    assert compiled_ports.active() is None


def test_where_it_alone_is_missing_the_reason_is_logged_once(
    use_kernels: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    use_kernels("compiled")
    monkeypatch.setattr(compiled_ports, "LIBRARY", tmp_path / "ports.so")
    library, why = compiled_ports.load()
    monkeypatch.setattr(compiled_ports, "_library", library)
    monkeypatch.setattr(compiled_ports, "_why", why)
    compiled_ports._warn.cache_clear()
    assert compiled_ports.active() is None
    assert compiled_ports.active() is None
    (said,) = caplog.messages
    assert "ports.c" in said
    assert "make venv" in said


def test_a_library_of_another_source_is_not_used(
    use_kernels: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_kernels("compiled")
    changed = tmp_path / "ports.c"
    changed.write_text("/* newer */")
    monkeypatch.setattr(compiled_ports, "_SOURCE", changed)
    assert compiled_ports.load() == (None, "built from another source: make venv builds them anew")
