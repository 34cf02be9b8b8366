"""MLNet's figures: which runs each needs, its rows, and its curves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from inaproto_hil.evaluation.flows.trees import Scheme
from inaproto_hil.evaluation.mlnet.rows import (
    COMPUTE,
    NEAR,
    RATIOS,
    Outcomes,
    by_seed,
    crossing_row,
    order_row,
    phases,
    ratio_rows,
    ratios,
    time_row,
    traffic_rows,
)
from inaproto_hil.evaluation.mlnet.runs import (
    QUANTILES,
    STORED_SLACK,
    Found,
    PhaseFound,
    PhaseRun,
    Run,
    TogetherRun,
)
from inaproto_hil.evaluation.mlnet.together import (
    TOGETHER,
    TOGETHER_FACTOR,
    floor_row,
    makespans,
    together_rows,
)
from inaproto_hil.evaluation.paper import FigureOf
from inaproto_hil.evaluation.rows import Row, drawn_row

GRID: Final = tuple(range(50, 401, 50))
_SWEPT: Final = (
    Scheme.BASELINE,
    Scheme.RACK,
    Scheme.RACK_SHARED,
    Scheme.BINARY,
    Scheme.BINARY_SHARED,
)
_EXACT: Final = (50, 200, 300, 400)
_CROSSINGS: Final[Mapping[Scheme, Sequence[int]]] = {
    Scheme.RACK: (*GRID, 450, 500, 550, 600),
    Scheme.RACK_SHARED: GRID,
    Scheme.BINARY: (*GRID, 450, 500, 550, 600, 650, 700, 750),
    Scheme.BINARY_SHARED: (*GRID, 450),
}
_TRAFFIC: Final = 200
_COMPUTES: Final = (2.0, 8.0)
_BESIDE: Final = (50, 200, 400)
"""Numbers of parameter servers for trees that the paper does not have."""
_STORED: Final = 50

Curves = dict[str, Any]


Figure = FigureOf[Run, Found]


def _line(across: Sequence[float], values: Sequence[Sequence[float]]) -> Curves:
    """``values``: by point, those of all draws."""
    return {
        "x": list(across),
        "y": [float(np.mean(one)) for one in values],
        "least": [min(one) for one in values],
        "most": [max(one) for one in values],
    }


# -- figure 1


def _swept(over: float, seeds: int) -> Iterator[Run]:
    for scheme in _SWEPT:
        points = _CROSSINGS.get(scheme, GRID) if over == 1.0 else GRID
        for servers in points:
            for seed in range(seeds):
                yield PhaseRun(scheme, servers, over, seed)


def _plain_rows(outcomes: Outcomes, seeds: int) -> list[Row]:
    rows = ratio_rows(outcomes, 1.0, seeds)
    for binary in (Scheme.BINARY_SHARED, Scheme.BINARY):
        rows.append(order_row(outcomes, [binary, Scheme.RACK, Scheme.BASELINE], 1.0, seeds, 50))
    rows += [time_row(outcomes, Scheme.BASELINE, one, 1.0, seeds, 800 / one) for one in _EXACT]
    rows += [crossing_row(outcomes, scheme, points, seeds) for scheme, points in _CROSSINGS.items()]
    return rows


def _over_rows(outcomes: Outcomes, seeds: int) -> list[Row]:
    rows = ratio_rows(outcomes, 4.0, seeds)
    for binary in (Scheme.BINARY_SHARED, Scheme.BINARY):
        rows.append(order_row(outcomes, [Scheme.RACK, binary, Scheme.BASELINE], 4.0, seeds, 50))
    for servers in GRID:
        rows.append(order_row(outcomes, [Scheme.RACK, Scheme.BINARY_SHARED], 4.0, seeds, servers))
        rows.append(order_row(outcomes, [Scheme.RACK, Scheme.BASELINE], 4.0, seeds, servers))
    rows += [time_row(outcomes, Scheme.BASELINE, one, 4.0, seeds) for one in (50, 200, 400)]
    return rows


def _ratio_curves(over: float) -> Callable[[Outcomes, int], Curves]:
    def curves(outcomes: Outcomes, seeds: int) -> Curves:
        lines = {
            scheme.value: _line(GRID, [ratios(outcomes, scheme, one, over, seeds, COMPUTE) for one in GRID])
            for scheme in _SWEPT
        }
        paper: dict[str, list[list[float]]] = {}
        for one in RATIOS:
            if one.oversubscription == over:
                paper.setdefault(one.scheme.value, []).append([one.servers, one.paper])
        return {
            "x": "parameter servers",
            "y": "makespan over BASELINE's",
            "lines": lines,
            "paper": paper,
        }

    return curves


# -- figure 2


def _traffic_runs(seeds: int) -> Iterator[Run]:
    for scheme in (Scheme.BASELINE, Scheme.RACK, Scheme.BINARY):
        for seed in range(seeds):
            yield PhaseRun(scheme, _TRAFFIC, 1.0, seed)


def _traffic_curves(outcomes: Outcomes, seeds: int) -> Curves:
    shares = np.linspace(0, 1, QUANTILES).tolist()
    lines = {}
    for scheme in (Scheme.BASELINE, Scheme.RACK, Scheme.BINARY):
        found = by_seed(outcomes, scheme, _TRAFFIC, seeds)
        means = np.mean([one.quantiles for one in found], axis=0).tolist()
        lines[scheme.value] = {"x": means, "y": shares, "least": shares, "most": shares}
    return {"x": "traffic of a link in a phase, V", "y": "share of links", "lines": lines, "paper": {}}


# -- figure 3


def _together_runs(seeds: int) -> Iterator[Run]:
    for compute in _COMPUTES:
        for scheme, is_prioritised in TOGETHER.values():
            for seed in range(seeds * TOGETHER_FACTOR):
                yield TogetherRun(compute, scheme, is_prioritised, seed)


def _together_rows(outcomes: Outcomes, seeds: int) -> list[Row]:
    rows = [row for compute in _COMPUTES for row in together_rows(outcomes, compute, seeds)]
    return [*rows, floor_row(outcomes)]


def _together_curves(outcomes: Outcomes, seeds: int) -> Curves:
    lines = {}
    for name in TOGETHER:
        found = np.sort(np.concatenate(makespans(outcomes, _COMPUTES[0], name, seeds)))
        places = np.linspace(0, len(found) - 1, min(len(found), QUANTILES)).astype(int)
        shares = ((places + 1) / len(found)).tolist()
        lines[name] = {"x": found[places].tolist(), "y": shares, "least": shares, "most": shares}
    return {"x": "makespan of a model, V/B", "y": "share of models", "lines": lines, "paper": {}}


# -- ours


def _beside_runs(seeds: int) -> Iterator[Run]:
    for over in (1.0, 4.0):
        for scheme in Scheme:
            for seed in range(seeds):
                for servers in _BESIDE:
                    yield PhaseRun(scheme, servers, over, seed)
                if scheme is not Scheme.CHAIN:
                    yield PhaseRun(scheme, _STORED, over, seed, is_stored=True)


def _beside_rows(outcomes: Outcomes, seeds: int) -> list[Row]:
    rows: list[Row] = []
    streamed = [
        abs(found.time - found.fullest) <= NEAR * found.fullest
        for run, found in outcomes.items()
        if isinstance(run, PhaseRun) and isinstance(found, PhaseFound) and not run.is_stored and found.rated
    ]
    what = "streamed phase as long as its fullest link needs: of all runs"
    rows.append(drawn_row(what, [float(one) for one in streamed], 1.0, (0.0, 0.0)))
    for over in (1.0, 4.0):
        for scheme in Scheme:
            rows += [_told(outcomes, scheme, one, over, seeds, is_stored=False) for one in _BESIDE]
            if scheme is not Scheme.CHAIN:
                rows.append(_told(outcomes, scheme, _STORED, over, seeds, is_stored=True))
    return rows


def _told(
    outcomes: Outcomes, scheme: Scheme, servers: int, over: float, seeds: int, *, is_stored: bool
) -> Row:
    found = phases(outcomes, lambda seed: PhaseRun(scheme, servers, over, seed, is_stored), seeds)
    how = ", stored" if is_stored else ""
    shape = f"{found[0].height} high, {found[0].in_degree} wide"
    return drawn_row(
        f"{scheme.value} ({shape}), P = {servers}, 1:{over:g}{how}: phase, V/B", [one.time for one in found]
    )


_CLUSTER: Final = "800 workers on 1,024 servers"
FIGURES: Final[Sequence[Figure]] = (
    Figure(
        "1a",
        "Figure 1a: makespan over the number of parameter servers",
        f"{_CLUSTER}, no oversubscription; compute of a phase {COMPUTE} V/B; RACK by server, BINARY shared",
        lambda seeds: _swept(1.0, seeds),
        _plain_rows,
        _ratio_curves(1.0),
    ),
    Figure(
        "1b",
        "Figure 1b: the same with an oversubscription of 1:4",
        f"{_CLUSTER}, links above racks at a quarter; compute of a phase {COMPUTE} V/B",
        lambda seeds: _swept(4.0, seeds),
        _over_rows,
        _ratio_curves(4.0),
    ),
    Figure(
        "2",
        "Figure 2: traffic of links",
        f"{_CLUSTER}, {_TRAFFIC} parameter servers, no oversubscription, one phase",
        _traffic_runs,
        lambda outcomes, seeds: traffic_rows(outcomes, _TRAFFIC, seeds),
        _traffic_curves,
    ),
    Figure(
        "3",
        "Figure 3: makespans of 20 models that train together",
        "128 servers, 25 workers and 6 parameter servers each, 4 rounds; the curves have compute 2",
        _together_runs,
        _together_rows,
        _together_curves,
    ),
    Figure(
        "ours",
        "Ours: trees that the paper does not have, and trees that wait for their children",
        f"{_CLUSTER}; streamed phases are exact, stored ones hold rates for {100 * STORED_SLACK:g} %",
        _beside_runs,
        _beside_rows,
    ),
)
