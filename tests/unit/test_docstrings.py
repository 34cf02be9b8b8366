"""A docstring of cores, wire formats and the client stands alone: it does not go on with the line above."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

_TREE: Final = Path(__file__).resolve().parents[2] / "inaproto"
_FILES: Final = [path for room in ("client", "core", "wire") for path in sorted((_TREE / room).rglob("*.py"))]
_GO_ON: Final = frozenset({"Of", "By", "That", "Soon", "Likewise"})


def texts(source: str) -> Iterator[str]:
    """Docstrings, and strings that stand below what they are about."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", ())
        for statement in body if isinstance(body, list) else ():
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.value


def test_a_fragment_is_found() -> None:
    assert list(texts('def f():\n    """Of one ring."""\nx = 1\n"""That are due."""\n')) == [
        "That are due.",
        "Of one ring.",
    ]


@pytest.mark.parametrize("room", ["client", "core", "wire"])
def test_docstrings_stand_alone(room: str) -> None:
    fragments = [
        f"{path.relative_to(_TREE)}: {text[:60]}"
        for path in _FILES
        if path.relative_to(_TREE).parts[0] == room
        for text in texts(path.read_text())
        if text.split(maxsplit=1)[0].strip(",.:") in _GO_ON
    ]
    assert fragments == []
