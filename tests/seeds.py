"""Which seeds a seeded test runs: a quarter of its own, and another quarter after the next commit.

A fixed seed finds something once, then it is a regression test. So each run takes one of four *rotations*,
chosen by the hash of the commit; ``make check`` takes all. A seed that once found something is pinned where
it did, and always runs.

``INAPROTO_ROTATION=2`` (0 to 7, or ``all``) names the rotation, ``INAPROTO_SEEDS=first:end`` the seeds
themselves (one seed: ``17:18``). A failure says which of the two repeats it.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

ROTATIONS: Final = 4
TURNS: Final = 8
"""Of what is dear: twice as many (``tests/rotating.py``)."""
ROTATION: Final = "INAPROTO_ROTATION"
SEEDS: Final = "INAPROTO_SEEDS"
ALL: Final = "all"


def seeds(count: int) -> range:
    """Those of ``0 .. count - 1`` that this run takes, at least one; or those that the environment names."""
    wanted = rotation()
    if wanted == ALL or SEEDS in os.environ:
        return all_seeds(count)
    return range(int(wanted) % min(ROTATIONS, count), count, ROTATIONS)


def all_seeds(count: int) -> range:
    """For a test that goes through them itself, and says what they show together: they do not rotate."""
    named = os.environ.get(SEEDS)
    if named is None:
        return range(count)
    first, colon, end = named.partition(":")
    if not colon:
        raise ValueError(f"{SEEDS}={first}: write first:end, for example 0:1000")
    return range(int(first), int(end))


def rotation() -> str:
    """``0 .. 7``, or ``all``; kept in the environment, so that all processes of a run agree."""
    if not os.environ.get(ROTATION):
        os.environ[ROTATION] = str(_of_commit())
    found = os.environ[ROTATION]
    if found != ALL and not found.isdigit():
        raise ValueError(f"{ROTATION}={found}: write a number, or {ALL}")
    return found


def how_to_repeat(nodeid: str, seed: object) -> str:
    """The line that runs this test again as it ran here."""
    test = nodeid.partition("[")[0]
    if isinstance(seed, int):
        return f"{SEEDS}={seed}:{seed + 1} python -m pytest '{test}'"
    return f"{ROTATION}={rotation()} python -m pytest '{nodeid}'"


def _of_commit() -> int:
    """Rotation of the commit that is checked out; 0 where there is none, as in a source archive."""
    root = Path(__file__).parents[1]
    try:
        asked = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    return int(asked.stdout[:8], 16) % TURNS
