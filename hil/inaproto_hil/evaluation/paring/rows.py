"""The rows of PARING's figures: what the paper prints, ours beside it, and what may be asked of ours.

Where nothing depends on which switches add up, or the paper says enough, a row is exact. Where several
readings are left, the tolerance is what they differ by. Of all else nothing is asked, and what is said of it
follows from ours: every network gives what is printed; or what is printed lies between networks', so that it
cannot be reproduced without their switches; or it lies beyond all that were drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from inaproto_hil.evaluation.paring import published, runs
from inaproto_hil.evaluation.paring.published import GB_PER_HOP, SLIPS, Experiment
from inaproto_hil.evaluation.paring.runs import ExactRun, Found, Outcome, Planned, PlanRun, Proved, Run
from inaproto_hil.evaluation.paring.settings import grid, setting_at
from inaproto_hil.evaluation.rows import DIFFERS, NOT_REPRODUCIBLE, DrawnRow, Row, drawn_row

Outcomes = Mapping[Run, Found]

UNKNOWN: Final = "which switches add up is not said"
FREE: Final = "one input of a switch free"
AS_PRINTED: Final = "as printed"
BEYOND: Final = "beyond every draw of the switches"
ALIKE: Final = "the same whichever switches were drawn"
READINGS: Final = "other readings: which workers add up, which inputs count"
_OURS: Final[Mapping[str, tuple[str, ...]]] = {
    published.PARING: (runs.FAST, runs.PRINTED_INNER, runs.PRINTED_LEAF),
    published.SOAR: (published.SOAR,),
    published.ATP: (published.ATP, runs.ATP_FIRST),
    published.DEEPSYS: (published.DEEPSYS,),
    published.MARINA: (published.MARINA,),
    published.PANAMA: (published.PANAMA,),
}
"""Which of our systems are set beside each of the paper's."""
_BOLD: Final = ((2, Fraction(12)), (3, Fraction(6)))
"""Experiments and points where the algorithm as printed gives what is printed: 44 links at 10/3 Gbit/s, on
the switches of the first two pods."""
_EXACT: Final = (0.0, 0.0)
_LESS: Final = 60.0
"""Percent: PARING's traffic below DeepSys' with 35 workers."""
_READINGS: Final = (15.0, 5.0)
"""How far that of any reading of the algorithm, and of any switches, may be below and above."""
_NEAR: Final = 1e-9
"""Tolerance of what is decoded to a whole number of links, or a capacity over a whole number."""
_PERCENT: Final = (0.05, 0.05)
"""Tolerance of what is printed with one digit after the point."""


@dataclass(frozen=True, slots=True)
class Reasons:
    """Why a value might not be as printed."""

    known: str | None = None
    """Whatever the switches are."""
    unknown: str = UNKNOWN
    """Where the switches decide."""
    readings: str = ""
    """What else may be why, where no network gives what is printed."""

    def verdict(self, values: Sequence[float], paper: float, near: float) -> tuple[str, str | None]:
        """On what all networks come to, and why. ``near``: how far from ``paper`` is as printed."""
        if all(abs(value - paper) <= near for value in values):
            return AS_PRINTED, None
        if self.known is not None:
            return NOT_REPRODUCIBLE, self.known
        if min(values) - near <= paper <= max(values) + near:
            return NOT_REPRODUCIBLE, self.unknown
        beyond = ALIKE if max(values) - min(values) <= near else BEYOND
        return DIFFERS, f"{beyond}; {self.readings}" if self.readings else beyond


def judged_row(
    what: str,
    values: Sequence[float],
    first_pods: float,
    paper: float | None,
    *,
    off: tuple[float, float] | None = None,
    reasons: Reasons | None = None,
    near: float = _NEAR,
) -> DrawnRow:
    """``values``: by draw; ``off``: how far their mean may be below the paper's and above it; ``reasons``: if
    nothing is asked."""
    verdict, why = None, None
    if reasons is not None and paper is not None:
        verdict, why = reasons.verdict([*values, first_pods], paper, near)
    return drawn_row(what, values, paper, off, why, two_pods=first_pods, verdict=verdict)


def one_row(what: str, ours: float, paper: float, why: str | None = None) -> DrawnRow:
    """Row of one network; ``why``: it is not as printed, if so."""
    is_as_printed = abs(ours - paper) <= _NEAR
    return DrawnRow(
        what, ours, paper, why=None if is_as_printed else why, verdict=AS_PRINTED if is_as_printed else None
    )


@dataclass(frozen=True, slots=True)
class Drawn:
    """What one system comes to at one point: over draws, and where the first two pods' switches add up."""

    draws: Sequence[Outcome]
    fixed: Outcome

    def row(self, what: str, measure: str, paper: float, reasons: Reasons) -> DrawnRow:
        values = [value_of(one, measure) for one in self.draws]
        return judged_row(what, values, value_of(self.fixed, measure), paper, reasons=reasons)


def value_of(found: Outcome, measure: str) -> float:
    """GB, Gbit/s or seconds."""
    if measure == "traffic":
        return float(found.hops * GB_PER_HOP)
    if measure == "rate":
        return float(found.rate)
    return float(runs.GRADIENT_BYTES * 8 / (found.rate * 10**9))


def drawn(outcomes: Outcomes, experiment: Experiment, point: Fraction, system: str, draws: int) -> Drawn:
    found = [_planned(outcomes, experiment, point, draw).by_system[system] for draw in range(draws)]
    return Drawn(found, _planned(outcomes, experiment, point, None).by_system[system])


def _planned(outcomes: Outcomes, experiment: Experiment, point: Fraction, draw: int | None) -> Planned:
    found = outcomes[PlanRun(setting_at(experiment, point), experiment.is_coarse, draw)]
    assert isinstance(found, Planned)
    return found


def _at(experiment: Experiment, point: Fraction) -> str:
    """Says which point a row is of, where an experiment has several."""
    letter = {"workers": "n", "switches": "S", "cap": "R"}[experiment.axis]
    return f"{letter} = {float(point):g}"


# -- traffic


def traffic_rows(outcomes: Outcomes, experiment: Experiment, draws: int) -> list[Row]:
    rows: list[Row] = []
    for point, systems in experiment.points.items():
        for system, printed in systems.items():
            paper = float(Fraction(str(printed.hops)) * GB_PER_HOP)
            reasons = _reasons(experiment, system, SLIPS.get(("traffic", experiment.number, point, system)))
            for ours in _OURS[system]:
                what = f"{_at(experiment, point)}: {_named(system, ours)}"
                found = drawn(outcomes, experiment, point, ours, draws)
                if system == published.DEEPSYS:
                    rows.append(Row(what, value_of(found.fixed, "traffic"), paper, *_EXACT))
                else:
                    rows.append(found.row(what, "traffic", paper, reasons))
            if system == published.PARING:
                rows += _exact_mode(outcomes, experiment, point, paper)
        rows += _readings(outcomes, experiment, point, draws)
    return rows


def _named(system: str, ours: str) -> str:
    return f"PARING, {ours}" if system == published.PARING else ours


def _exact_mode(outcomes: Outcomes, experiment: Experiment, point: Fraction, paper: float) -> list[Row]:
    """None where it was not run."""
    found = outcomes.get(ExactRun(setting_at(experiment, point)))
    if not isinstance(found, Proved):
        return []
    what = f"{_at(experiment, point)}: PARING, exact, two pods" + ("" if found.is_proved else ", no proof")
    told = found.coarse if experiment.is_coarse else found.fine
    return [one_row(what, value_of(told, "traffic"), paper)]


def _reasons(experiment: Experiment, system: str, known: str | None) -> Reasons:
    if system != published.PARING:
        return Reasons(known)
    adjusted = ", nor how trees are adjusted" if experiment.is_coarse else ""
    return Reasons(known, UNKNOWN + adjusted, READINGS)


def _readings(outcomes: Outcomes, experiment: Experiment, point: Fraction, draws: int) -> list[Row]:
    """Where a reading of the paper gives what it prints."""
    at, rows = _at(experiment, point), list[Row]()
    fixed = _planned(outcomes, experiment, point, None).by_system
    printed = experiment.points[point]
    if (experiment.number, point) in _BOLD:
        what = f"{at}: PARING, {runs.PRINTED_INNER}, two pods"
        paper = float(Fraction(str(printed[published.PARING].hops)) * GB_PER_HOP)
        rows.append(Row(what, value_of(fixed[runs.PRINTED_INNER], "traffic"), paper, *_EXACT))
    if experiment.number == 5:
        what = f"{at}: {runs.PANAMA_TO_SERVER}, two pods"
        paper = float(Fraction(str(printed[published.PANAMA].hops)) * GB_PER_HOP)
        rows.append(Row(what, value_of(fixed[runs.PANAMA_TO_SERVER], "traffic"), paper, *_EXACT))
    if experiment.number == 1:
        star = fixed[published.DEEPSYS].hops
        for ours in _OURS[published.PARING]:
            found = drawn(outcomes, experiment, point, ours, draws)
            *less, of_fixed = [float(100 - 100 * one.hops / star) for one in (*found.draws, found.fixed)]
            what = f"{at}: PARING, {ours}, % less than DeepSys"
            rows.append(judged_row(what, less, of_fixed, _LESS, off=_READINGS))
    return rows


# -- sending rate


def rate_rows(outcomes: Outcomes, experiment: Experiment, draws: int) -> list[Row]:
    rows: list[Row] = []
    for point, systems in experiment.points.items():
        for system, printed in systems.items():
            if printed.rate is None:
                continue
            paper = float(printed.rate)
            if system == published.PARING:
                rows += _highest(outcomes, experiment, point, printed.rate)
            for ours in _OURS[system]:
                what = f"{_at(experiment, point)}: {_named(system, ours)}"
                found = drawn(outcomes, experiment, point, ours, draws)
                if system == published.DEEPSYS:
                    rows.append(Row(what, value_of(found.fixed, "rate"), paper, *_EXACT))
                else:
                    why = _beyond(experiment, point, printed.rate) if ours in _STRICT else None
                    slip = SLIPS.get(("rate", experiment.number, point, system))
                    rows.append(found.row(what, "rate", paper, _reasons(experiment, system, why or slip)))
        if (experiment.number, point) in _BOLD:
            inner = _planned(outcomes, experiment, point, None).by_system[runs.PRINTED_INNER]
            what = f"{_at(experiment, point)}: PARING, {runs.PRINTED_INNER}, two pods"
            rows.append(Row(what, float(inner.rate), float(runs.CAPACITY / 3), *_EXACT))
    if experiment.axis == "cap":
        rows += _over_the_cap(outcomes, experiment, draws)
    return rows


_STRICT: Final = (runs.FAST, runs.PRINTED_LEAF)


def bound_of_rate(workers: int, switches: int) -> Fraction:
    """No tree is faster whose workers are leaves, if all that a switch receives counts: n + S gradients share
    S + 1 capacities. Even where gradients might be split."""
    return runs.CAPACITY * (switches + 1) / (workers + switches)


def _beyond(experiment: Experiment, point: Fraction, paper: Fraction) -> str | None:
    setting = setting_at(experiment, point)
    bound = bound_of_rate(setting.workers, setting.switches)
    if paper <= bound:
        return None
    return f"above {float(bound):.3f}, which no tree exceeds"


def _highest(outcomes: Outcomes, experiment: Experiment, point: Fraction, paper: Fraction) -> list[Row]:
    found = _planned(outcomes, experiment, point, None)
    what = f"{_at(experiment, point)}: PARING, {FREE}: highest rate"
    slip = SLIPS.get(("rate", experiment.number, point, published.PARING))
    if slip is not None:
        return [DrawnRow(what, float(found.highest_paper), float(paper), why=slip)]
    return [Row(what, float(found.highest_paper), float(paper), *_EXACT)]


def _over_the_cap(outcomes: Outcomes, experiment: Experiment, draws: int) -> list[Row]:
    """Share of draws in which rates rise with the cap and then are level, as the text says."""
    rows: list[Row] = []
    for system in (*_OURS[published.PARING], *(s for s in published.SYSTEMS if s in _systems(experiment))):
        lines = [
            [_planned(outcomes, experiment, cap, draw).by_system[system].rate for cap in grid(experiment)]
            for draw in range(draws)
        ]
        count = sum(rises(line) for line in lines)
        rows.append(Row(f"{system}: rises with R, then is level", count / draws, 1.0, *_EXACT))
    return rows


def rises(line: Sequence[Fraction]) -> bool:
    """Whether it rises, and then is level at last."""
    return list(line) == sorted(line) and line[0] < line[-1] == line[-2]


def _systems(experiment: Experiment) -> tuple[str, ...]:
    points = next(iter(experiment.points.values()))
    return tuple(system for system in points if system != published.PARING)


# -- communication time


def time_rows(outcomes: Outcomes, experiment: Experiment, draws: int) -> list[Row]:
    """Rows of how much PARING's time is less than others', in percent: times themselves are not printed."""
    rows: list[Row] = []
    for point, systems in experiment.saved.items():
        free = _planned(outcomes, experiment, point, None).highest_paper
        for system, paper in systems.items():
            at = f"{_at(experiment, point)}: % less than {system}"
            other = drawn(outcomes, experiment, point, system, draws)
            if system == published.DEEPSYS:
                rows.append(_less_than_deepsys(experiment, point, at, paper, other.fixed.rate / free))
            fast = drawn(outcomes, experiment, point, runs.FAST, draws)
            pairs = zip([*fast.draws, fast.fixed], [*other.draws, other.fixed], strict=True)
            *less, fixed = [float(100 - 100 * theirs.rate / ours.rate) for ours, theirs in pairs]
            known = f"the paper has {FREE}" if system == published.DEEPSYS else None
            reasons = _reasons(experiment, published.PARING, known)
            rows.append(judged_row(f"{at}, fast", less, fixed, paper, reasons=reasons, near=_PERCENT[0]))
    return rows


def _less_than_deepsys(
    experiment: Experiment, point: Fraction, what: str, paper: float, share: Fraction
) -> Row:
    ours, what = float(100 - 100 * share), f"{what}, {FREE}"
    slip = SLIPS.get(("rate", experiment.number, point, published.PARING))
    if slip is not None:
        return DrawnRow(what, ours, paper, why=slip)
    return Row(what, ours, paper, *_PERCENT)
