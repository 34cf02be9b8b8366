"""Tests whose cases rotate as seeds do: an eighth of them in ``make test``, others after the next commit.

These are the dear ones, of a tenth of a CPU second or more (``tests/dear.py``): a sixth of all tests, which
would take more than nine tenths of the time. Of the slow ones a run may take an eighth, too (``make check
SHARE=1``). ``make check`` runs all cases, and so does who names a file or a test. A case that found something
once has a test of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.dear import is_dear
from tests.seeds import ALL, TURNS


def is_tier(marks: str, addopts: Sequence[str]) -> bool:
    """Whether tests were asked for by marks (``-m``), not only by those that ``addopts`` asks for always."""
    return marks != addopts[addopts.index("-m") + 1]


def rotates(nodeid: str) -> bool:
    """Whether the case is of a dear test."""
    return is_dear(nodeid.removeprefix("tests/").partition("[")[0])


def left_out(cases: Iterable[str], rotation: str) -> set[str]:
    """Those that do not run in that rotation: in order, each has its turn after ``TURNS``."""
    if rotation == ALL:
        return set()
    turn = int(rotation) % TURNS
    return {case for number, case in enumerate(cases) if number % TURNS != turn}
