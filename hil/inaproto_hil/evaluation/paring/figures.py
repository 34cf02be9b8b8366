"""PARING's figures: which runs each needs, its rows, and its curves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from inaproto_hil.evaluation.paring import published, runs
from inaproto_hil.evaluation.paring.published import EXPERIMENTS, GB_PER_HOP, Experiment
from inaproto_hil.evaluation.paring.rows import (
    Outcomes,
    drawn,
    one_row,
    rate_rows,
    time_rows,
    traffic_rows,
    value_of,
)
from inaproto_hil.evaluation.paring.runs import ExactRun, Example, ExampleRun, PlanRun, Run
from inaproto_hil.evaluation.paring.settings import grid, setting_at
from inaproto_hil.evaluation.rows import Row

_SHOWN: Final = (
    runs.FAST,
    runs.PRINTED_INNER,
    published.SOAR,
    published.ATP,
    published.DEEPSYS,
    published.MARINA,
)
"""Systems that have a curve; PANAMA too, where switches may not add part of what passes them."""
_MEASURES: Final = ("traffic", "rate", "time")
_WORDS: Final[Mapping[str, str]] = {
    "traffic": "traffic of an iteration, GB",
    "rate": "sending rate, Gbit/s",
    "time": "communication time, s",
    "workers": "workers",
    "switches": "switches that add up",
    "cap": "cap of the sending rate, Gbit/s",
}
_OVER: Final[Mapping[str, str]] = {
    "workers": "the number of workers n",
    "switches": "the number of switches that add up, S",
    "cap": "the cap of the sending rate R",
}
_ROWS: Final[Mapping[str, Callable[[Outcomes, Experiment, int], list[Row]]]] = {
    "traffic": traffic_rows,
    "rate": rate_rows,
    "time": time_rows,
}


@dataclass(frozen=True, slots=True)
class Figure:
    key: str
    title: str
    setting: str
    experiment: Experiment | None
    """None: figure 1."""
    measure: str = ""

    def runs(self, draws: int) -> Iterator[Run]:
        if self.experiment is None:
            yield ExampleRun()
            return
        for point in grid(self.experiment):
            for draw in (*range(draws), None):
                yield PlanRun(setting_at(self.experiment, point), self.experiment.is_coarse, draw)
        for point in self.experiment.points:
            yield ExactRun(setting_at(self.experiment, point))

    def rows(self, outcomes: Outcomes, draws: int) -> list[Row]:
        if self.experiment is None:
            return _example_rows(outcomes)
        return _ROWS[self.measure](outcomes, self.experiment, draws)

    def curves(self, outcomes: Outcomes, draws: int) -> dict[str, Any] | None:
        """Ours: mean, least and most over draws, by system and point; and the paper's points."""
        experiment = self.experiment
        if experiment is None:
            return None
        systems = (*_SHOWN, *([published.PANAMA] if experiment.is_coarse else []))
        return {
            "x": _WORDS[experiment.axis],
            "y": _WORDS[self.measure],
            "at": [float(point) for point in grid(experiment)],
            "ours": {system: self._curve(outcomes, experiment, system, draws) for system in systems},
            "paper": {
                system: [
                    [float(point), value]
                    for point, of in experiment.points.items()
                    if system in of and (value := _printed(of[system], self.measure)) is not None
                ]
                for system in published.SYSTEMS
            },
        }

    def _curve(
        self, outcomes: Outcomes, experiment: Experiment, system: str, draws: int
    ) -> dict[str, list[float]]:
        by_point = [
            [value_of(one, self.measure) for one in drawn(outcomes, experiment, point, system, draws).draws]
            for point in grid(experiment)
        ]
        return {
            "mean": [sum(values) / len(values) for values in by_point],
            "least": [min(values) for values in by_point],
            "most": [max(values) for values in by_point],
        }


def _printed(found: published.Printed, measure: str) -> float | None:
    if measure == "traffic":
        return found.hops * float(GB_PER_HOP)
    if found.rate is None:
        return None
    return value_of(runs.Outcome(found.hops, found.rate), measure)


# -- figure 1


def _example_rows(outcomes: Outcomes) -> list[Row]:
    found = outcomes[ExampleRun()]
    assert isinstance(found, Example)
    rows: list[Row] = []
    for system, hops, seconds, use in _EXAMPLE:
        told, share = found.by_system[system]
        rows.append(Row(f"{system}: traffic, GB", told.hops, hops, 0.0, 0.0))
        rows.append(Row(f"{system}: time, s", float(8 / told.rate), seconds, 0.0, 0.0))
        if use is not None:
            rows.append(Row(f"{system}: use of switches, %", float(100 * share), use, 0.05, 0.05))
    why = "the tree of figure 1(c) is none that Algorithms 2 to 4 give"
    for system in (runs.PRINTED_INNER, runs.PRINTED_LEAF, runs.FAST):
        told, _ = found.by_system[system]
        said = None if system == runs.FAST else why
        rows.append(one_row(f"PARING, {system}: traffic, GB", told.hops, 15, said))
        rows.append(one_row(f"PARING, {system}: time, s", float(8 / told.rate), 8, said))
    return rows


_EXAMPLE: Final = (
    (published.DEEPSYS, 34, 28, None),
    (published.ATP, 18, 12, 19.4),
    (runs.ATP_FIRST, 22, 16, None),
    (runs.AS_DRAWN, 15, 8, 41.7),
    (runs.EXACT, 15, 8, None),
)
"""GB, seconds, percent. What ATP comes to by the rule as it is written follows from it."""


# -- all of them


def _figures_of(experiment: Experiment) -> Iterator[Figure]:
    fixed = {"workers": "20 workers", "switches": "8 switches add up", "cap": "R = 5 Gbit/s"}
    said = ", ".join(words for axis, words in fixed.items() if axis != experiment.axis)
    how = "all or nothing" if experiment.is_coarse else "partial adding allowed"
    setting = f"54 servers, {said}, 10 Gbit/s each, gradients of 1627 MB, {how}"
    names = ("traffic", "sending rate", "communication time")
    for key, measure, name in zip(experiment.figures, _MEASURES, names, strict=True):
        title = f"Figure {key}: {name} over {_OVER[experiment.axis]}"
        yield Figure(str(key), title, setting, experiment, measure)


FIGURES: Final[Sequence[Figure]] = (
    Figure("1", "Figure 1: the example", "16 servers, 12 switches add up, 7 workers, R = 1 Gbit/s", None),
    *(figure for experiment in EXPERIMENTS for figure in _figures_of(experiment)),
)
