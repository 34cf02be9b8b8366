"""The double of libsharp_coll (:mod:`inaproto_hil.rigs.sharp_double`) for a test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from inaproto.errors import Unsupported
from inaproto_hil.rigs.sharp_double import AM, FOLDER, HANGS, LATE, NEVER, NOTHING, WRONG, Double, build

__all__ = ["AM", "FOLDER", "HANGS", "LATE", "NEVER", "NOTHING", "WRONG", "Double", "sharp_double"]


@pytest.fixture
def sharp_double(program: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Double:
    """With an Aggregation Manager of this test alone."""
    from tests.conftest import end_without

    program("cc")
    monkeypatch.setenv(AM, str(tmp_path / "am"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    try:
        return Double(build())
    except Unsupported as error:
        end_without("cc", error)
