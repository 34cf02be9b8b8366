"""docs/papers.md names files and tests that exist: a table that is not checked is soon wrong."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
TABLE = TREE / "docs" / "papers.md"
COLUMNS = ["Rule", "File", "Test"]


@dataclass(frozen=True, slots=True)
class Row:
    rule: str
    files: tuple[str, ...]
    tests: tuple[str, ...]


def read_rows(text: str) -> list[Row]:
    """The rows of all tables whose header is ``COLUMNS``; files and tests are what stands in backticks."""
    rows: list[Row] = []
    inside = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.lstrip().startswith("|"):
            inside = False
        elif cells == COLUMNS:
            inside = True
        elif inside and not all(re.fullmatch(r":?-+:?", cell) for cell in cells):
            assert len(cells) == len(COLUMNS), f"a row has {len(cells)} cells: {line}"
            files, tests = (tuple(re.findall(r"`([^`]+)`", cell)) for cell in cells[1:])
            rows.append(Row(cells[0], files, tests))
    return rows


def names_in(body: list[ast.stmt], prefix: str = "") -> set[str]:
    """Names that pytest can collect from ``body``: functions, methods as ``Class::method``, and assigned
    classes (``TestX = Machine.TestCase``)."""
    names: set[str] = set()
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(prefix + name)
            case ast.ClassDef(name=name):
                names.add(prefix + name)
                names |= names_in(node.body, f"{prefix}{name}::")
            case ast.Assign(targets=targets):
                names |= {prefix + target.id for target in targets if isinstance(target, ast.Name)}
            case _:
                pass
    return {name for name in names if name.rpartition("::")[2].lower().startswith("test")}


@cache
def collected_in(path: Path) -> set[str]:
    return names_in(ast.parse(path.read_text()).body)


def faults(rows: list[Row], tree: Path) -> list[str]:
    """What is wrong with ``rows``, a line for each fault."""
    found: list[str] = []
    for row in rows:
        if not row.files or not row.tests:
            found.append(f"{row.rule}: needs at least one `file` and one `test`")
        found += [f"{row.rule}: no file {path}" for path in row.files if not (tree / path).is_file()]
        for test in row.tests:
            path, _, name = test.partition("::")
            name = name.partition("[")[0]
            if not name:
                found.append(f"{row.rule}: {test} names no test: write path::name")
            elif not (tree / path).is_file():
                found.append(f"{row.rule}: no test file {path}")
            elif name not in collected_in(tree / path):
                found.append(f"{row.rule}: no test {name} in {path}")
    return found


def test_every_file_and_test_of_the_table_exists() -> None:
    assert faults(read_rows(TABLE.read_text()), TREE) == []


def test_table_is_recognised() -> None:
    assert f"| {' | '.join(COLUMNS)} |" in TABLE.read_text()


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "core.py").write_text("")
    (tmp_path / "test_core.py").write_text(
        "async def test_one(): ...\n"
        "class TestWindow:\n    def test_two(self): ...\n"
        "TestMachine = Machine.TestCase\n"
    )
    rows = read_rows(
        "| Rule | File | Test |\n|---|---|:--|\n"
        "| good | `core.py` | `test_core.py::test_one[f32-4]`, `test_core.py::TestWindow::test_two` |\n"
        "| machine | `core.py` | `test_core.py::TestMachine` |\n"
        "| no such file | `gone.py` | `test_core.py::test_one` |\n"
        "| no such test | `core.py` | `test_core.py::test_two` |\n"
        "| no such test file | `core.py` | `test_gone.py::test_one` |\n"
        "| whole file | `core.py` | `test_core.py` |\n"
        "| untested | `core.py` | soon |\n"
    )
    assert faults(rows, tmp_path) == [
        "no such file: no file gone.py",
        "no such test: no test test_two in test_core.py",
        "no such test file: no test file test_gone.py",
        "whole file: test_core.py names no test: write path::name",
        "untested: needs at least one `file` and one `test`",
    ]
