"""The rows of MINA's figures: scores, and what has to stand beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from inaproto_controller.planning.turns.policy import Policy
from inaproto_hil.evaluation.mina.runs import ClusterFound, ClusterRun, Found, Run
from inaproto_hil.evaluation.rows import Beside, Row
from inaproto_hil.evaluation.spread import Spread, spread

FIRST: Final = "first"
LEAST: Final = "least-fragments"
REBUILT: Final = "rebuild-all"
EXCLUSIVE: Final = "exclusive"

Outcomes = Mapping[Run, Found]


def seeded(run: ClusterRun, seeds: int) -> list[ClusterRun]:
    """One run if nothing in it is drawn."""
    is_drawn = run.trees == REBUILT or run.placement == "random"
    return [replace(run, seed=seed) for seed in range(seeds if is_drawn else 1)]


def exclusive(run: ClusterRun) -> ClusterRun:
    """The fair baseline of it: the same requests, hosts and links."""
    placement = LEAST if run.placement == LEAST else FIRST
    return ClusterRun(
        run.trace, placement, EXCLUSIVE, Policy.GREEDY, uplinks=run.uplinks, requests=run.requests
    )


def clusters(outcomes: Outcomes, run: ClusterRun, seeds: int) -> list[ClusterFound]:
    found = [outcomes[one] for one in seeded(run, seeds)]
    assert all(isinstance(one, ClusterFound) for one in found)
    return [one for one in found if isinstance(one, ClusterFound)]


def by_seed(found: Sequence[ClusterFound]) -> list[float]:
    """Scores. The published requests have something to gain: one that is undefined is an error here."""
    values = [one.score for one in found if one.score is not None]
    assert len(values) == len(found)
    return values


def scores(found: Sequence[ClusterFound]) -> Spread:
    return spread(by_seed(found))


def mean_of(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if len(there) == len(values) else None


def beside(outcomes: Outcomes, run: ClusterRun, seeds: int) -> Beside:
    found = clusters(outcomes, run, seeds)
    fair = outcomes[exclusive(run)]
    assert isinstance(fair, ClusterFound)
    return Beside(
        mean_of([one.saved_mean for one in found]),
        mean_of([one.saved_share for one in found]),
        mean_of([one.seconds_mean for one in found]),
        mean_of([one.queued_mean for one in found]),
        mean_of([one.seconds_with_queue_mean for one in found]),
        sum(one.swaps for one in found) / len(found) / run.requests,
        fair.score,
    )


def score_row(
    what: str,
    outcomes: Outcomes,
    run: ClusterRun,
    seeds: int,
    paper: float | None,
    *,
    off: tuple[float, float],
) -> Row:
    found = scores(clusters(outcomes, run, seeds))
    return Row(what, found.mean, paper, *off, found.half_width, found.runs, beside(outcomes, run, seeds))


def utilisation(found: Sequence[ClusterFound]) -> Spread:
    values = [one.utilisation for one in found if one.utilisation is not None]
    assert len(values) == len(found)
    return spread(values)


def with_exclusive(runs: Sequence[ClusterRun], seeds: int) -> Iterator[Run]:
    for run in runs:
        yield from seeded(run, seeds)
        yield exclusive(run)
