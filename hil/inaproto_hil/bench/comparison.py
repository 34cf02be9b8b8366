"""Paths compared in one run: their operations are interleaved, so that what disturbs one disturbs all.

A *round* is one all-reduce on each path, with equal data and settings; which path begins changes from round
to round. What is compared is the ratio of the times of one round, of which the median over the rounds and the
spread are printed: the machine's other load changes from second to second, and both times of a ratio alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from inaproto_hil.bench.report import Row

PATHS: Final = ("auto", "chain", "ring")
"""As a job asks for them (:func:`inaproto.connect`); the first is what the others are compared with."""


def turns(paths: Sequence[str], iteration: int) -> list[str]:
    """The paths in their order in a round: each begins in turn."""
    at = iteration % len(paths)
    return [*paths[at:], *paths[:at]]


@dataclass(frozen=True, slots=True)
class Ratio:
    """How much longer ``slower`` took than ``row``, at the same size and element type."""

    row: Row
    slower: Row

    @property
    def rounds(self) -> list[float]:
        """``slower``'s time by ``row``'s, per round."""
        return [theirs / mine for mine, theirs in zip(self.row.samples_s, self.slower.samples_s, strict=True)]

    def as_dict(self) -> dict[str, Any]:
        """Undefined where an element was wrong."""
        is_right = not self.row.wrong and not self.slower.wrong
        rounds = self.rounds
        return {
            "size": self.row.size_bytes,
            "type": self.row.dtype,
            "path": self.slower.asked,
            "to": self.row.asked,
            "median": statistics.median(rounds) if is_right else None,
            "min": min(rounds) if is_right else None,
            "max": max(rounds) if is_right else None,
            "rounds": len(rounds),
        }

    def line(self) -> str:
        shown = self.as_dict()
        what = f"# {shown['type']} {shown['size']} B: {shown['path']} takes"
        if shown["median"] is None:
            return f"{what} -: an element is wrong"
        return (
            f"{what} {shown['median']:.2f} x the time of {shown['to']} "
            f"({shown['min']:.2f} to {shown['max']:.2f}, {shown['rounds']} rounds)"
        )


def compared(rows: Sequence[Row]) -> Iterator[Ratio]:
    """Each row with the one of the same operation on the path that was asked for first."""
    first: dict[tuple[str, int], Row] = {}
    for row in rows:
        mine = first.setdefault((row.dtype, row.size_bytes), row)
        if mine is not row:
            yield Ratio(mine, row)
