"""The rows of MLNet's figures: what the paper's text says, ours beside it, and what may be asked of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from inaproto_hil.evaluation.flows.trees import Scheme
from inaproto_hil.evaluation.mlnet.runs import Found, PhaseFound, PhaseRun, Run
from inaproto_hil.evaluation.rows import DrawnRow, Row, drawn_row

Outcomes = Mapping[Run, Found]

REPORTED: Final = "report only"
NOT_REPRODUCED: Final = "does not reproduce"
"""It is outside, and it is known why."""
OUTSIDE: Final = "outside"
NEAR: Final = 1e-9
COMPUTE: Final = 1.7
"""Computing time of a phase in V/B, half of the time between synchronisations: the paper does not say V, and
this is the one free parameter. 1.7 means 11 GB for each worker and synchronisation."""
COMPUTE_DRAWN: Final = 2.5
"""The same where BINARY has another permutation for each server."""
OWN_READING: Final = "another reading of which trees the paper has, with 2.5 for 1.7"


def phases(outcomes: Outcomes, run: Callable[[int], PhaseRun], seeds: int) -> list[PhaseFound]:
    found = [outcomes[run(seed)] for seed in range(seeds)]
    return [one for one in found if isinstance(one, PhaseFound)]


def time_row(
    outcomes: Outcomes, scheme: Scheme, servers: int, over: float, seeds: int, paper: float | None = None
) -> DrawnRow:
    values = times(outcomes, scheme, servers, over, seeds)
    off = None if paper is None else (NEAR, NEAR)
    return drawn_row(f"{scheme.value}, P = {servers}: phase, V/B", values, paper, off)


def times(outcomes: Outcomes, scheme: Scheme, servers: int, over: float, seeds: int) -> list[float]:
    return [one.time for one in phases(outcomes, lambda seed: PhaseRun(scheme, servers, over, seed), seeds)]


def ratios(
    outcomes: Outcomes, scheme: Scheme, servers: int, over: float, seeds: int, compute: float
) -> list[float]:
    """Makespan over the baseline's, draw by draw."""
    ours = times(outcomes, scheme, servers, over, seeds)
    theirs = times(outcomes, Scheme.BASELINE, servers, over, seeds)
    return [(compute + one) / (compute + other) for one, other in zip(ours, theirs, strict=True)]


@dataclass(frozen=True, slots=True)
class Printed:
    name: str
    servers: int
    oversubscription: float
    paper: float
    off: float | None
    scheme: Scheme
    """As the tolerances are meant: RACK for each server, BINARY shared."""
    other: Scheme


RATIOS: Final = (
    Printed("BINARY", 50, 1.0, 0.22, 0.06, Scheme.BINARY_SHARED, Scheme.BINARY),
    Printed("RACK", 50, 1.0, 0.42, 0.10, Scheme.RACK, Scheme.RACK),
    Printed("RACK", 50, 4.0, 0.27, 0.06, Scheme.RACK, Scheme.RACK),
    Printed("BINARY", 50, 4.0, 0.34, 0.06, Scheme.BINARY_SHARED, Scheme.BINARY),
    Printed("RACK", 400, 4.0, 0.29, 0.08, Scheme.RACK, Scheme.RACK),
    Printed("BINARY", 400, 4.0, 0.60, None, Scheme.BINARY_SHARED, Scheme.BINARY),
)
_HIGH: Final = "a tree of height 9 over servers anywhere crosses the core at almost every edge"


def ratio_rows(outcomes: Outcomes, over: float, seeds: int) -> list[Row]:
    rows: list[Row] = []
    for one in RATIOS:
        if one.oversubscription != over:
            continue
        what = f"{one.name} over BASELINE, P = {one.servers}"
        off = None if one.off is None else (one.off, one.off)
        values = ratios(outcomes, one.scheme, one.servers, over, seeds, COMPUTE)
        row = drawn_row(what, values, one.paper, off, _HIGH if off is None else None)
        if row.is_inside is False:
            row = replace(
                row, why=_why_open(row, values, times(outcomes, Scheme.BASELINE, one.servers, over, seeds))
            )
        rows.append(row)
        values = ratios(outcomes, one.other, one.servers, over, seeds, COMPUTE_DRAWN)
        rows.append(
            drawn_row(f"{what}, {one.other.value} for each server", values, one.paper, None, OWN_READING)
        )
    return rows


def _why_open(row: DrawnRow, values: Sequence[float], base: Sequence[float]) -> str | None:
    """None if nothing is known but that draws leave it open: the mean's interval reaches the tolerance."""
    if not row.reaches:
        return None
    inside = sum(row.with_ours(one).is_inside is True for one in values)
    return (
        f"the interval of the mean reaches the tolerance: single draws, as the paper's is one, are"
        f" {min(values):.2f} to {max(values):.2f}, {inside} of {len(values)} inside. By the chance of hosts"
        f" and paths the baseline's fullest link needs {min(base):.1f} to {max(base):.1f} V/B"
    )


def order_row(outcomes: Outcomes, schemes: Sequence[Scheme], over: float, seeds: int, servers: int) -> Row:
    """In what share of the draws phase times are in this order."""
    by_scheme = [times(outcomes, one, servers, over, seeds) for one in schemes]
    holds = [all(np.diff(values) > 0) for values in zip(*by_scheme, strict=True)]
    what = f"{' < '.join(one.value for one in schemes)}, P = {servers}"
    return drawn_row(f"{what}: of all draws", [float(one) for one in holds], 1.0, (0.0, 0.0))


def crossing_row(outcomes: Outcomes, scheme: Scheme, servers: Sequence[int], seeds: int) -> Row:
    """Where the mean phase is no shorter than the baseline's any more, which is 800/P there."""
    means = [float(np.mean(times(outcomes, scheme, one, 1.0, seeds))) for one in servers]
    ahead = [800 / one - mean for one, mean in zip(servers, means, strict=True)]
    why = "no reading of the trees gives 300 for both, at which the paper has them worse"
    what = f"{scheme.value}: worse than BASELINE from P"
    for place, gap in enumerate(ahead):
        if gap <= 0:
            before = ahead[place - 1] if place else gap
            share = before / (before - gap) if place and before > gap else 0.0
            left = servers[place - 1] if place else servers[0]
            return DrawnRow(what, left + share * (servers[place] - left), 300.0, why=why)
    return DrawnRow(f"{what}, beyond", float(servers[-1]), 300.0, why=why)


# -- figure 2


def by_seed(outcomes: Outcomes, scheme: Scheme, servers: int, seeds: int) -> list[PhaseFound]:
    """Without oversubscription."""
    return phases(outcomes, lambda seed: PhaseRun(scheme, servers, 1.0, seed), seeds)


def traffic_rows(outcomes: Outcomes, servers: int, seeds: int) -> list[Row]:
    rows: list[Row] = []
    schemes = (Scheme.BASELINE, Scheme.RACK, Scheme.BINARY)
    found = [by_seed(outcomes, one, servers, seeds) for one in schemes]
    for scheme, of in zip(schemes, found, strict=True):
        rows.append(drawn_row(f"{scheme.value}: heaviest link, V", [one.heaviest for one in of]))
        rows.append(drawn_row(f"{scheme.value}: all links, V", [one.total for one in of]))
    baseline, rack, binary = found
    for what, ours, theirs in (
        ("heaviest link of RACK below BASELINE's", [one.heaviest for one in rack], baseline),
        ("heaviest link of BINARY below BASELINE's", [one.heaviest for one in binary], baseline),
    ):
        holds = [float(one < other.heaviest) for one, other in zip(ours, theirs, strict=True)]
        rows.append(drawn_row(f"{what}: of all draws", holds, 1.0, (0.0, 0.0)))
    less = [float(one.total < other.total) for one, other in zip(rack, baseline, strict=True)]
    rows.append(drawn_row("all links of RACK below BASELINE's: of all draws", less, 1.0, (0.0, 0.0)))
    return rows
