"""Figures that the simulator of MINA's authors answers and the paper prints (tests/data/mina/SOURCE.md)."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any


@cache
def published(name: str) -> Any:
    """One of the files in ``data/mina/published``, by its name without suffix."""
    folder = resources.files("inaproto_controller") / "data" / "mina" / "published"
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
