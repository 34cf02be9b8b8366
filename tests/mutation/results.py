"""Outcomes of mutants, and the file of a campaign that they are written to, one line of JSON each.

Apart from :mod:`tests.mutation.session`, so that who only reads results needs neither mutmut nor pytest.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

KILLED: Final = "killed"
SURVIVED: Final = "survived"
TIMEOUT: Final = "timeout"
"""Ran far longer than the original: as good as killed, for no test lets that pass."""
UNTESTED: Final = "untested"
"""No test runs the lines: survived."""
STILLBORN: Final = "stillborn"
"""No working function came of the change; it does not count."""


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """Identity of a mutant within its module: what changed, never a running number."""

    function: str
    """Qualified name, such as ``InaHeader.decode``."""
    removed: tuple[str, ...]
    added: tuple[str, ...]
    """Lines of the source, without indentation."""
    nth: int = 0
    """Which one, from 0, of equal changes within the function, in order of lines."""

    def __str__(self) -> str:
        nth = f" ({self.nth + 1})" if self.nth else ""
        lines = (*(f"- {line}" for line in self.removed), *(f"+ {line}" for line in self.added))
        return "\n    ".join((f"{self.function}{nth}", *lines))


@dataclass(frozen=True, slots=True)
class Result:
    change: Change
    status: str
    killer: str = ""
    """The test that failed."""
    seconds: float = 0.0

    def as_json(self) -> str:
        return json.dumps(asdict(self))


def read_results(path: Path) -> tuple[dict[str, Any], dict[Change, Result]]:
    """Heading and results; of a change tried twice, the later one. The last line may be cut short."""
    heading: dict[str, Any] = {}
    results: dict[Change, Result] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if "change" not in record:
            heading.update(record)
            continue
        raw = record.pop("change")
        change = Change(raw["function"], tuple(raw["removed"]), tuple(raw["added"]), raw["nth"])
        results[change] = Result(change, **record)
    return heading, results
