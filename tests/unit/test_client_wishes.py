"""What a job asks for when it connects: paths and plans, from arguments and environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import inaproto
from inaproto.client.wishes import JobWishes, check_wishes
from inaproto.errors import LocalMisuse


@pytest.mark.parametrize(
    ("path", "environment", "expected"),
    [
        (None, {}, "auto"),
        (None, {"INAPROTO_PATH": ""}, "auto"),
        (None, {"INAPROTO_PATH": "ring"}, "ring"),
        ("chain", {"INAPROTO_PATH": "ring"}, "chain"),
        ("auto", {"INAPROTO_PATH": "ring"}, "auto"),
    ],
)
def test_an_argument_wins_over_the_environment(
    path: str | None, environment: dict[str, str], expected: Any
) -> None:
    assert check_wishes(path, True, False, environment) == JobWishes(expected, exact_plan=True)


def test_without_an_exact_plan() -> None:
    assert check_wishes(None, False, True, {}) == JobWishes("auto", exact_plan=False, elastic=True)


@pytest.mark.parametrize(
    ("path", "exact_plan", "environment", "words"),
    [
        ("tree", True, {}, "connect: path is 'tree'; it must be one of auto, chain, overlay, ring"),
        ("switch", True, {"INAPROTO_PATH": "ring"}, "connect: path is 'switch'; it must be one of"),
        ("", True, {}, "connect: path is ''; it must be one of"),
        (None, True, {"INAPROTO_PATH": "x"}, r"connect: \$INAPROTO_PATH is 'x'; it must be one of"),
        (None, 1, {}, "connect: exact_plan is 1; it must be True or False"),
        (["ring"], True, {}, r"connect: path is \['ring'\]; it must be one of"),
    ],
)
def test_wrong_wishes_are_named(path: Any, exact_plan: Any, environment: dict[str, str], words: str) -> None:
    with pytest.raises(LocalMisuse, match=f"^{words}"):
        check_wishes(path, exact_plan, False, environment)


def test_a_wrong_wish_is_named_before_anything_is_connected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = tmp_path / "none.sock"
    with pytest.raises(LocalMisuse, match="path is 'tree'"):
        inaproto.connect_blocking("train", 0, size=2, socket=nowhere, path="tree")  # type: ignore[arg-type]
    monkeypatch.setenv("INAPROTO_PATH", "tree")
    with pytest.raises(LocalMisuse, match="INAPROTO_PATH"):
        inaproto.connect_blocking("train", 0, size=2, socket=nowhere)
