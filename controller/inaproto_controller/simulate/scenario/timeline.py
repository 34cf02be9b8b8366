"""Who used INA when: the operations of a few jobs over a short time, drawn (as MINA's Figure 7 does).

A simulation of its own for each variant, to the window's end; operations outside the window are not kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from inaproto.errors import ConfigError
from inaproto_controller.cluster.requests import Request
from inaproto_controller.cluster.step_times import StepTimes
from inaproto_controller.pictures.looks import INK, PALE
from inaproto_controller.pictures.svg import look, text_of
from inaproto_controller.simulate.cluster import simulate
from inaproto_controller.simulate.results import Operation
from inaproto_controller.simulate.scenario.scenario import Scenario

Window = tuple[float, float]

JOBS_SHOWN: Final = 8
JOBS_MAX: Final = 64
OPERATIONS_MAX: Final = 200_000
"""In the window, of a variant, all jobs together where none were chosen."""
BARS_MAX: Final = 20_000
_STEPS_SHOWN: Final = 2
_HEIGHT: Final = {True: 0.8, False: 0.4}
"""Height of a bar: with INA, and without."""
_COLOUR: Final = {True: "#1f5fbf", False: "#e08a1e"}


@dataclass(slots=True)
class Seen:
    """Takes a simulation's operations, and keeps those in the window: of ``jobs``, or of all if None."""

    window: Window
    jobs: frozenset[int] | None = None
    operations: list[Operation] = field(default_factory=list)

    def __call__(self, operation: Operation) -> None:
        begin, end = self.window
        if operation.end <= begin or operation.begin >= end:
            return
        if self.jobs is not None and operation.job not in self.jobs:
            return
        if len(self.operations) == OPERATIONS_MAX:
            raise _too_many(OPERATIONS_MAX + 1, OPERATIONS_MAX)
        self.operations.append(operation)


def _too_many(count: int, most: int) -> ConfigError:
    return ConfigError(
        f"--timeline: {count} operations in the window, at most {most}; choose a shorter --timeline-window, "
        "or fewer --timeline-jobs"
    )


def draw_timeline(
    scenario: Scenario, seed: int, *, jobs: Sequence[int] | None = None, window: Window | None = None
) -> str:
    """SVG, a panel for each variant. ``jobs``: numbers by arrival; ``window``: seconds.

    Raises ``ConfigError`` for jobs that there are not.
    """
    requests, arrivals = scenario.workload(seed)
    if jobs is not None:
        require_jobs(jobs, len(requests))
    times = {name: scenario.times(name) for name in dict.fromkeys(request.model for request in requests)}
    shown = _first_steps(times, requests, arrivals, jobs) if window is None else window
    longest = max(max(one.plain) for one in times.values())
    seen = []
    for variant in scenario.variants:
        one = Seen(shown, None if jobs is None else frozenset(jobs))
        setting = scenario.setting(variant, seed)
        # What runs at the window's end is told when it ends.
        simulate(
            setting,
            requests,
            arrivals=arrivals,
            failures=scenario.failures(setting, seed),
            checkpoint_steps=scenario.file.failures.checkpoint_steps if scenario.file.failures else 1,
            until=shown[1] + longest * 2,
            on_operation=one,
        )
        seen.append(one.operations)
    chosen = list(jobs) if jobs is not None else _telling(seen, requests)
    seen = [[one for one in operations if one.job in chosen] for operations in seen]
    bars = sum(map(len, seen))
    if bars > BARS_MAX:
        raise _too_many(bars, BARS_MAX)
    if not bars:
        raise ConfigError(f"--timeline: nobody has an operation between {shown[0]:g} and {shown[1]:g} s")
    labels = [_label(number, requests[number]) for number in chosen]
    panels = {variant.label: ops for variant, ops in zip(scenario.variants, seen, strict=True)}
    return drawn(panels, chosen, labels, shown)


def require_jobs(jobs: Sequence[int], count: int) -> None:
    """Raises ``ConfigError`` for numbers that none of ``count`` jobs has."""
    wrong = [number for number in jobs if number >= count]
    if wrong or len(jobs) > JOBS_MAX:
        raise ConfigError(
            f"--timeline-jobs: there is no job {wrong[0]}; there are 0 to {count - 1}"
            if wrong
            else f"--timeline-jobs: {len(jobs)} jobs, at most {JOBS_MAX}"
        )


def _label(number: int, request: Request) -> str:
    hosts = f"{request.hosts} host{'s' * (request.hosts != 1)}"
    return f"{number}: {request.model}, {hosts}"


def _first_steps(
    times: dict[str, StepTimes],
    requests: Sequence[Request],
    arrivals: Sequence[float],
    jobs: Sequence[int] | None,
) -> Window:
    """From when the last of the first jobs has arrived."""
    chosen = list(range(min(JOBS_SHOWN, len(requests)))) if jobs is None else list(jobs)
    begin = max(arrivals[number] for number in chosen)
    step = max(times[requests[number].model].step_plain for number in chosen)
    return begin, begin + _STEPS_SHOWN * step


def _telling(seen: Sequence[Sequence[Operation]], requests: Sequence[Request]) -> list[int]:
    """Those first who use INA for some operations and not for others; one host has nobody to add up with."""
    kinds: dict[int, set[tuple[int, bool]]] = {}
    for panel, operations in enumerate(seen):
        for one in operations:
            if requests[one.job].hosts == 1:
                continue
            kinds.setdefault(one.job, set()).add((panel, one.uses_ina))
    order = sorted(kinds, key=lambda job: (-len(kinds[job]), job))
    return sorted(order[:JOBS_SHOWN])


# -- the picture


def drawn(
    panels: Mapping[str, Sequence[Operation]], jobs: Sequence[int], labels: Sequence[str], window: Window
) -> str:
    """``labels``: of each job. Bars are groups with the ids ``panel-P-job-J-ina`` and ``-plain``."""
    height = 0.7 + len(panels) * (0.55 + 0.3 * len(jobs))
    with look():
        figure = Figure(figsize=(11.0, height), layout="constrained")
        rows = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        for number, (axes, (name, operations)) in enumerate(zip(rows, panels.items(), strict=True)):
            _panel(axes, number, operations, jobs, window)
            axes.set_title(name)
            axes.set_yticks(range(len(jobs)), labels)
        rows[-1].set_xlabel("s")
        patches = [
            Patch(color=_COLOUR[True], label="operation with INA"),
            Patch(color=_COLOUR[False], label="operation without"),
            Patch(facecolor=PALE, label="no operation: computing, or no hosts"),
        ]
        figure.legend(handles=patches, loc="outside upper left", ncols=3)
        return text_of(figure)


def _panel(
    axes: Axes, number: int, operations: Sequence[Operation], jobs: Sequence[int], window: Window
) -> None:
    for row, job in enumerate(jobs):
        axes.plot(window, [row, row], color=PALE, linewidth=2, zorder=1, solid_capstyle="butt")
        for uses_ina, kind in ((True, "ina"), (False, "plain")):
            bars = [
                _bar(one, row, window) for one in operations if one.job == job and one.uses_ina is uses_ina
            ]
            if bars:
                drawn_bars = PolyCollection(bars, facecolor=_COLOUR[uses_ina], linewidth=0, zorder=2)
                drawn_bars.set_gid(f"panel-{number}-job-{job}-{kind}")
                axes.add_collection(drawn_bars)
    axes.set_xlim(*window)
    axes.set_ylim(len(jobs) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.xaxis.label.set_color(INK)


def _bar(one: Operation, row: int, window: Window) -> list[tuple[float, float]]:
    begin, end = max(one.begin, window[0]), min(one.end, window[1])
    half = _HEIGHT[one.uses_ina] / 2
    return [(begin, row - half), (end, row - half), (end, row + half), (begin, row + half)]
