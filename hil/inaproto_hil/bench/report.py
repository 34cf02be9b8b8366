"""Reports of all-reduce benchmarks: JSON first, the table rendered from the same rows.

The columns and their arithmetic are those of nccl-tests (its PERFORMANCE.md): ``algbw`` is the size
divided by the time; ``busbw`` is ``algbw * 2(W-1)/W``, the traffic per link of a *ring*, printed so that
algorithms can be compared across W; 1 GB is 1e9 bytes. The time of a row is the median over its
iterations. A row with a wrong element counts for nothing: its bandwidths are undefined, ``null`` in
the JSON and ``-`` in the table, never 0.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

VERSION: Final = 1
FRAME_OVERHEAD_BYTES: Final = 14 + 20 + 8 + 12 + 4
"""Ethernet without FCS, IPv4, UDP, BTH, ICRC: what each packet carries beside its payload."""
COLUMNS: Final = ("size(B)", "count", "type", "redop", "time(us)", "algbw(GB/s)", "busbw(GB/s)", "#wrong")
_WIDTHS: Final = (12, 12, 9, 7, 12, 12, 12, 8)
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_size(text: str) -> int:
    """``"64K"``, ``"16M"``, ``"1G"`` or plain bytes, with units of 1024 as in nccl-tests."""
    found = re.fullmatch(r"([0-9]{1,12})([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None or int(found[1]) == 0:
        raise ValueError(f"{text!r} is not a size: write for example 65536, 64K or 16M")
    return int(found[1]) * _UNITS[found[2].upper()]


def sizes(begin: int, end: int, factor: int) -> list[int]:
    """``begin``, ``begin*factor``, ... up to ``end``."""
    if begin > end:
        raise ValueError(f"the first size, {begin} bytes, is above the last, {end} bytes")
    if factor < 2:
        raise ValueError(f"factor {factor}: must be at least 2")
    found = []
    while begin <= end:
        found.append(begin)
        begin *= factor
    return found


@dataclass(frozen=True, slots=True)
class Row:
    """All-reduces of one size and element type."""

    size_bytes: int
    count: int
    dtype: str
    op: str
    ranks: int
    samples_s: tuple[float, ...]
    """Per iteration, the time of the rank that took longest, from its call to its result."""
    wrong: int
    """Elements that differ from the reference, all ranks, all iterations, warm-up included."""
    cpu_s: float
    """CPU time of all processes, daemons included, over the measured iterations; nan if not known."""
    wrong_example: str = ""
    asked: str = "auto"
    """The path that the job asked for (:func:`inaproto.connect`)."""
    path: str = "switch"
    """Path by which it was summed; several are joined by ``+``."""

    @property
    def time_s(self) -> float:
        return statistics.median(self.samples_s)

    @property
    def algbw(self) -> float | None:
        """GB/s."""
        return None if self.wrong else self.size_bytes / self.time_s / 1e9

    @property
    def busbw(self) -> float | None:
        """GB/s."""
        return None if self.algbw is None else self.algbw * 2 * (self.ranks - 1) / self.ranks

    @property
    def cpu_s_per_gb(self) -> float | None:
        """CPU seconds per 1e9 bytes of vector."""
        if self.wrong or not math.isfinite(self.cpu_s):
            return None
        return self.cpu_s / (self.size_bytes * len(self.samples_s) / 1e9)

    def pct_line(self, line_rate_bps: float | None) -> float | None:
        """Percent of a line's rate, from algbw: busbw is a ring's convention and would pass 100."""
        if line_rate_bps is None or self.algbw is None:
            return None
        return 100 * 8e9 * self.algbw / line_rate_bps

    def as_dict(self, line_rate_bps: float | None = None) -> dict[str, Any]:
        return {
            "size": self.size_bytes,
            "count": self.count,
            "type": self.dtype,
            "redop": self.op,
            "asked": self.asked,
            "path": self.path,
            "time_us": round(self.time_s * 1e6, 3),
            "time_us_min": round(min(self.samples_s) * 1e6, 3),
            "time_us_max": round(max(self.samples_s) * 1e6, 3),
            "algbw": self.algbw,
            "busbw": self.busbw,
            "wrong": self.wrong,
            "wrong_example": self.wrong_example or None,
            "cpu_s_per_gb": self.cpu_s_per_gb,
            "pct_line": self.pct_line(line_rate_bps),
            "samples_us": [round(sample * 1e6, 3) for sample in self.samples_s],
        }


def bounds(*, mtu: int, ranks: int) -> dict[str, float]:
    """The share of a line that algbw can reach: through the switch, and by a ring of the hosts."""
    return {"ina": mtu / (mtu + FRAME_OVERHEAD_BYTES), "ring": ranks / (2 * (ranks - 1))}


def document(
    *, config: dict[str, Any], env: dict[str, Any], rows: Sequence[Row], line_rate_bps: float | None = None
) -> dict[str, Any]:
    """The whole report for ``json.dump``."""
    return {
        "version": VERSION,
        "benchmark": "allreduce",
        "config": config,
        "env": env,
        "line_rate_bps": line_rate_bps,
        "bound": bounds(mtu=config["mtu"], ranks=config["hosts"]),
        "wrong": sum(row.wrong for row in rows),
        "rows": [row.as_dict(line_rate_bps) for row in rows],
    }


def header() -> str:
    """The two ``#`` lines above a table's rows."""
    names = "".join(f"{name:>{width}}" for name, width in zip(COLUMNS, _WIDTHS, strict=True))
    return "#" + names[1:] + f"{'cpu(s/GB)':>12}{'path':>8}\n#" + "-" * (sum(_WIDTHS) + 19)


def table_line(row: Row) -> str:
    """One row; undefined values are ``-``."""

    def number(value: float | None, digits: int) -> str:
        return "-" if value is None else f"{value:.{digits}f}"

    values = (
        str(row.size_bytes),
        str(row.count),
        row.dtype,
        row.op,
        f"{row.time_s * 1e6:.1f}",
        number(row.algbw, 4),
        number(row.busbw, 4),
        str(row.wrong),
    )
    cells = "".join(f"{value:>{width}}" for value, width in zip(values, _WIDTHS, strict=True))
    return cells + f"{number(row.cpu_s_per_gb, 2):>12}{row.path:>8}"
