"""The diagrams of phases are those of the tables."""

from __future__ import annotations

from tests.docs_phases import PAGE, page


def test_the_page_is_drawn_from_the_tables() -> None:
    assert PAGE.read_text() == page(), "write it anew: python -m tests.docs_phases"
