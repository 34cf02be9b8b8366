"""Which fast tests are dear: a case of theirs takes a tenth of a CPU second or more.

``tests/dear.txt`` lists them. It is measured, never written: ``INAPROTO_ROTATION=all make unit
ARGS='--cpu-report FILE'``, then ``python -m tests.dear FILE``, or several, of which the last that has a test
tells. A test that it does not name yet runs each time; one that is gone stands in nobody's way.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from typing import Final

LIST: Final = Path(__file__).with_name("dear.txt")
DEAR_S: Final = 0.1
"""The mean over the cases that were run."""


def _read() -> frozenset[str]:
    found, path = set(), ""
    for line in LIST.read_text().splitlines():
        if line.startswith(" "):
            found.add(f"{path}::{line.strip()}")
        else:
            path = line
    return frozenset(found)


DEAR: Final = _read()
"""``path::test``, below ``tests``."""
DEAR_FOLDERS: Final = ("torch/",)
"""Their processes are forked elsewhere, so that the report does not see what they cost."""


def is_dear(test: str) -> bool:
    return test in DEAR or test.startswith(DEAR_FOLDERS)


def listed(*reports: str) -> str:
    """The text of the list. ``reports``: what ``--cpu-report`` wrote."""
    costs: dict[str, list[float]] = {}
    for report in reports:
        its_costs: defaultdict[str, list[float]] = defaultdict(list)
        for line in report.splitlines():
            cost, tier, case = line.split(None, 2)
            if tier == "fast":
                its_costs[case.partition("[")[0].removeprefix("tests/")].append(float(cost))
        costs |= its_costs
    files: defaultdict[str, list[str]] = defaultdict(list)
    for name, its in costs.items():
        if sum(its) / len(its) >= DEAR_S:
            path, _, test = name.partition("::")
            files[path].append(test)
    return "".join(
        f"{path}\n" + "".join(f" {test}\n" for test in sorted(tests)) for path, tests in sorted(files.items())
    )


if __name__ == "__main__":
    LIST.write_text(listed(*(Path(path).read_text() for path in sys.argv[1:])))
