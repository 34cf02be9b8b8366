"""Documents of others: where one is not of the shape that is read, it is said where."""

from __future__ import annotations

from typing import Any, Final

import pytest

from inaproto.daemon.observe.shapes import Each, Maybe, Whole, misfit

SHAPE: Final[dict[str, Any]] = {
    "name": str,
    "rate": float,
    "is_up": bool,
    "count": Whole(1, 5),
    "error": Maybe(str),
    "rows": [{"size": int}],
    "by_path": Each(Whole()),
    "old?": str,
}
GOOD: Final[dict[str, Any]] = {
    "name": "h0",
    "rate": 1,
    "is_up": False,
    "count": 5,
    "error": None,
    "rows": [{"size": -1, "more": 1}],
    "by_path": {"ring": 3},
    "new": [],
}


def test_a_document_that_fits() -> None:
    assert misfit(GOOD, SHAPE) == ""
    assert misfit(GOOD | {"old": "x", "error": "e", "rows": ()}, SHAPE) == ""


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("name", 5, "it.name is not a text"),
        ("name", "\ud800", "it.name is not a text"),
        ("rate", True, "it.rate is not a number"),
        ("rate", float("nan"), "it.rate is not a number"),
        ("rate", 10**400, "it.rate is not a number"),
        ("is_up", 1, "it.is_up is not true or false"),
        ("count", 0, "it.count is not a whole number from 1 to 5"),
        ("count", 6, "it.count is not a whole number from 1 to 5"),
        ("count", True, "it.count is not a whole number from 1 to 5"),
        ("error", 1, "it.error is not a text"),
        ("rows", None, "it.rows is not a list"),
        ("rows", [{"size": 1}, {}], "it.rows[1].size is not there"),
        ("rows", [{"size": 1.5}], "it.rows[0].size is not a whole number"),
        ("rows", ["x"], "it.rows[0] is not an object"),
        ("by_path", [], "it.by_path is not an object"),
        ("by_path", {"ring": -1}, "it.by_path.ring is not a whole number from 0 to 18446744073709551615"),
        ("by_path", {1: 1}, "it.by_path: a name is not a text"),
        ("old", 1, "it.old is not a text"),
    ],
)
def test_where_a_document_does_not_fit(field: str, value: object, why: str) -> None:
    assert misfit(GOOD | {field: value}, SHAPE) == why


def test_what_is_no_document_at_all() -> None:
    assert misfit([], SHAPE) == "it is not an object"
    assert misfit({}, SHAPE, "h0") == "h0.name is not there"
