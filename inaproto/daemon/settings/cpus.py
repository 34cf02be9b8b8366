"""CPUs as text, the way the kernel writes them: ``0-3,8``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

AUTO: Final = "auto"
ALL: Final = "all"
_CPUS_MAX: Final = 1 << 16


def parse_cpus(text: str) -> frozenset[int]:
    """Raises ``ValueError``."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"{part.strip()!r} is no CPU, nor a range of them such as 0-3")
        low, high = int(first), int(last or first)
        if not low <= high < _CPUS_MAX:
            raise ValueError(f"{part.strip()!r} is no range of CPUs")
        found.update(range(low, high + 1))
    return frozenset(found)


def format_cpus(cpus: Iterable[int]) -> str:
    """The reverse."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(f"{low}-{high}" if high > low else str(low) for low, high in runs)
