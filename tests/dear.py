"""Which fast tests are dear: a case of theirs takes a tenth of a CPU second or more.

``tests/dear.txt`` lists them, and says which take a second or more: these are slow, unless ``tests/slow.py``
says of their family what stays. It is measured, never written: ``INAPROTO_ROTATION=all make unit
ARGS='--cpu-report FILE'``, then ``python -m tests.dear FILE``, or several, of which the last that has a test
tells. A test that it does not name yet runs each time; one that is gone stands in nobody's way.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

LIST: Final = Path(__file__).with_name("dear.txt")
DEAR_S: Final = 0.1
"""The mean over the cases that were run."""
SLOW_S: Final = 1.0
SLOW: Final = " slow"


def _read() -> dict[str, bool]:
    found, path = {}, ""
    for line in LIST.read_text().splitlines():
        if line.startswith(" "):
            found[f"{path}::{line.removesuffix(SLOW).strip()}"] = line.endswith(SLOW)
        else:
            path = line
    return found


DEAR: Final = _read()
"""``path::test``, below ``tests``, and whether it is slow."""
DEAR_FOLDERS: Final = ("torch/", "hil/")
"""Their processes are forked elsewhere, or in a guest, so that the report does not see what they cost."""


def is_dear(test: str) -> bool:
    return test in DEAR or test.startswith(DEAR_FOLDERS)


def takes_long(test: str) -> bool:
    """Whether a case takes a CPU second or more, as far as is known."""
    return DEAR.get(test, False)


def listed(*reports: str, slow: Iterable[str] = ()) -> str:
    """The text of the list. ``reports``: what ``--cpu-report`` wrote; ``slow``: tests that a run of fast ones
    does not run, as the list named them before."""
    costs: dict[str, list[float]] = {test: [SLOW_S] for test in slow}
    known = frozenset(costs)
    for report in reports:
        its_costs: defaultdict[str, list[float]] = defaultdict(list)
        for line in report.splitlines():
            cost, tier, case = line.split(None, 2)
            test = case.partition("[")[0].removeprefix("tests/")
            if tier == "fast" or test in known:
                its_costs[test].append(float(cost))
        costs |= its_costs
    files: defaultdict[str, list[str]] = defaultdict(list)
    for name, its in costs.items():
        mean = sum(its) / len(its)
        if mean >= DEAR_S:
            path, _, test = name.partition("::")
            files[path].append(test + SLOW if mean >= SLOW_S else test)
    return "".join(
        f"{path}\n" + "".join(f" {test}\n" for test in sorted(tests)) for path, tests in sorted(files.items())
    )


if __name__ == "__main__":
    texts = [Path(path).read_text() for path in sys.argv[1:]]
    LIST.write_text(listed(*texts, slow=filter(takes_long, DEAR)))
