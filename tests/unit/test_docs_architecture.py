"""The table of cores in ``docs/architecture.md`` has the phases that the cores have."""

from __future__ import annotations

import importlib
import re
from enum import Enum
from pathlib import Path
from typing import Final

import pytest

PAGE: Final = (Path(__file__).resolve().parents[2] / "docs" / "architecture.md").read_text()
ROWS: Final = [
    [cell.strip() for cell in row.strip("|").split("|")]
    for row in PAGE.split("| core | what it decides |")[1].split("\n\n")[0].splitlines()[2:]
]


def phases_of(path: str) -> frozenset[str]:
    """Names of the phases of the core in that file; none: it has no such enumeration."""
    dotted = path.removeprefix("controller/").removesuffix(".py").replace("/", ".")
    found = getattr(importlib.import_module(dotted), "Phase", None)
    return (
        frozenset(found.__members__) if isinstance(found, type) and issubclass(found, Enum) else frozenset()
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip("`"))
def test_phases_of_a_core_are_those_of_the_page(row: list[str]) -> None:
    paths = [path for path in re.findall(r"`([\w/]+\.py)`", row[0]) if path.startswith("inaproto/core")]
    has = frozenset[str]().union(*(phases_of(path) for path in paths))
    if has:
        assert frozenset(re.findall(r"[A-Z][A-Z_]+", row[2])) == has


def test_the_table_has_cores_with_phases() -> None:
    assert sum(bool(re.search(r"[A-Z_]{4,}", row[2])) for row in ROWS) >= 6
