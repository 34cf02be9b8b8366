"""Which kernels a process runs, and why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from inaproto.core import kernels
from inaproto.core.kernels import compiled


def test_numpy_can_be_chosen_and_says_so(use_kernels: Callable[[str], None]) -> None:
    use_kernels("numpy")
    assert kernels.active() is None
    assert kernels.description() == "numpy: chosen"


def test_compiled_ones_say_which_instructions_they_use(use_kernels: Callable[[str], None]) -> None:
    use_kernels("compiled")
    found = kernels.active()
    assert found is not None
    assert kernels.description() == f"compiled ({found.instructions})"
    use_kernels("")
    assert kernels.active() is found


def test_another_name_is_refused() -> None:
    with pytest.raises(ValueError, match="kernels are compiled or numpy, not 'fast'"):
        kernels.choose("fast")


def test_without_a_library_the_reason_says_how_to_have_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(compiled, "LIBRARY", tmp_path / "kernels.so")
    found, why = compiled.load()
    assert found is None
    assert "make venv" in why
    (tmp_path / "kernels.so").write_bytes(b"not a library")
    found, why = compiled.load()
    assert found is None
    assert "kernels.so cannot be loaded" in why


def test_a_library_of_another_source_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, use_kernels: Callable[[str], None]
) -> None:
    use_kernels("compiled")
    changed = tmp_path / "kernels.c"
    changed.write_text("/* newer */")
    monkeypatch.setattr(compiled, "_SOURCE", changed)
    assert compiled.load() == (None, "built from another source: make venv builds them anew")
    monkeypatch.setattr(compiled, "_SOURCE", tmp_path / "none.c")
    assert isinstance(compiled.load()[0], kernels.Compiled)


def test_where_there_are_no_compiled_ones_they_cannot_be_chosen(
    monkeypatch: pytest.MonkeyPatch, use_kernels: Callable[[str], None]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "_library", None)
        patch.setattr(kernels, "_reason", "not built")
        with pytest.raises(ValueError, match="there are no compiled kernels: not built"):
            kernels.choose("compiled")
        use_kernels("")
        assert kernels.active() is None
        assert kernels.description() == "numpy: not built"
        use_kernels("numpy")
        assert kernels.description() == "numpy: chosen"
