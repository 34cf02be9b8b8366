"""The runs behind PARING's figures: all planners and benchmarks on one network, and what they come to.

Which switches add up is only in the paper's pictures; the text says that the first six are edge switches, the
others aggregation switches. So networks are drawn, each growing switch by switch, and one is fixed: the
switches of the first two pods.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, NamedTuple

from inaproto.errors import Infeasible
from inaproto_controller.planning.paring.baselines.atp import AtpRule, plan_atp
from inaproto_controller.planning.paring.baselines.deepsys import plan_deepsys
from inaproto_controller.planning.paring.baselines.marina import plan_marina
from inaproto_controller.planning.paring.baselines.panama import plan_panama
from inaproto_controller.planning.paring.baselines.soar import plan_soar
from inaproto_controller.planning.paring.coarse import made_coarse, plan_coarse
from inaproto_controller.planning.paring.fat_tree_names import fat_tree_network, switches_named
from inaproto_controller.planning.paring.model import (
    Accounting,
    PlacedTree,
    ProgrammableNetwork,
    Task,
    measure,
)
from inaproto_controller.planning.paring.rates import best_rate
from inaproto_controller.planning.paring.slots.exact import plan_exact
from inaproto_controller.planning.paring.slots.fast import plan_fast
from inaproto_controller.planning.paring.spiders.printed import plan_printed
from inaproto_controller.planning.paring.switch_use import switch_use
from inaproto_hil.evaluation.paring.published import ATP, DEEPSYS, MARINA, PANAMA, SOAR

DEGREE: Final = 6
CAPACITY: Final = Fraction(10)
GRADIENT_BYTES: Final = 1627 << 20
EDGES: Final = 6
"""Number of switches that are edge switches before the first aggregation switch is one that adds up."""
EXACT_SECONDS: Final = 60.0
FIRST_PODS: Final = "e0.0 e0.1 e0.2 e1.0 e1.1 e1.2 a0.0 a1.0 a0.1 a1.1 a0.2 a1.2"

EXAMPLE_SWITCHES: Final = "e0.1 e1.0 e2.* e3.0 a0.* a1.1 a2.* a3.*"

FAST: Final = "fast"
PRINTED_INNER: Final = "printed, inner, 3/2"
PRINTED_LEAF: Final = "printed, leaves, 1"
EXACT: Final = "exact"
AS_DRAWN: Final = "tree of figure 1(c), re-measured"
"""Entered by hand: no planner's."""
ATP_FIRST: Final = "DeepSys+ATP, first only"
PANAMA_TO_SERVER: Final = "PANAMA, to a server"


@dataclass(frozen=True, slots=True)
class Setting:
    workers: int
    switches: int
    rate_cap: Fraction


@dataclass(frozen=True, slots=True)
class PlanRun:
    """Everything but exact mode."""

    setting: Setting
    is_coarse: bool
    draw: int | None
    """Draw of the switches that add up; None: those of the first two pods."""


@dataclass(frozen=True, slots=True)
class ExactRun:
    """Exact mode, on the switches of the first two pods."""

    setting: Setting


class Outcome(NamedTuple):
    hops: float
    rate: Fraction


@dataclass(frozen=True, slots=True)
class Planned:
    by_system: Mapping[str, Outcome]
    highest: Fraction
    """Rate of any tree, by counting."""
    highest_paper: Fraction
    """The same where a switch has one input free."""


@dataclass(frozen=True, slots=True)
class Proved:
    fine: Outcome
    coarse: Outcome
    """The same tree, adjusted."""
    is_proved: bool


@dataclass(frozen=True, slots=True)
class ExampleRun:
    """Figure 1."""


@dataclass(frozen=True, slots=True)
class Example:
    """What each system comes to, and its share of all switch capacity."""

    by_system: Mapping[str, tuple[Outcome, Fraction]]


Run = PlanRun | ExactRun | ExampleRun
Found = Planned | Proved | Example


def perform(run: Run) -> tuple[Run, Found]:
    """The run, too: outcomes come in the order in which they are done."""
    match run:
        case PlanRun():
            return run, _planned(run)
        case ExactRun():
            return run, _proved(run)
        case ExampleRun():
            return run, _example()


def switches_of(draw: int | None, count: int) -> str:
    """Names of the switches that add up; more of them include fewer."""
    if draw is None:
        return " ".join(FIRST_PODS.split()[:count])
    order = random.Random(f"{draw}/programmable switches")
    layers = [
        [f"{layer}{pod}.{number}" for pod in range(DEGREE) for number in range(DEGREE // 2)] for layer in "ea"
    ]
    for layer in layers:
        order.shuffle(layer)
    edges, others = layers
    return " ".join([*edges[: min(count, EDGES)], *others[: max(0, count - EDGES)]])


def network_of(setting: Setting, draw: int | None) -> ProgrammableNetwork:
    return fat_tree_network(DEGREE, switches_of(draw, setting.switches), capacity=CAPACITY)


def task_of(setting: Setting) -> Task:
    return Task(setting.workers, GRADIENT_BYTES, setting.rate_cap)


def _planned(run: PlanRun) -> Planned:
    network, task = network_of(run.setting, run.draw), task_of(run.setting)
    inner = Task(task.workers, task.gradient_bytes, task.rate_cap, CAPACITY)
    planners: dict[str, tuple[Task, Callable[[Task], PlacedTree | Infeasible]]] = {
        FAST: (task, lambda asked: plan_fast(network, asked)),
        PRINTED_INNER: (inner, lambda asked: plan_printed(network, asked)),
        PRINTED_LEAF: (task, lambda asked: plan_printed(network, asked, beta=Fraction(1))),
    }
    found = {
        name: _adjusted(network, asked, plan) if run.is_coarse else _told(network, asked, plan(asked))
        for name, (asked, plan) in planners.items()
    }
    for name, benchmark in _BENCHMARKS.items():
        found[name] = _told(network, task, benchmark(network, task, not run.is_coarse))
    if run.is_coarse:
        found |= _panama(network, task)
    free = Task(task.workers, task.gradient_bytes, task.rate_cap, accounting=Accounting.PAPER)
    return Planned(found, _highest(network, task), _highest(network, free))


def _proved(run: ExactRun) -> Proved:
    network, task = network_of(run.setting, None), task_of(run.setting)
    found = plan_exact(network, task, seconds=EXACT_SECONDS)
    assert not isinstance(found, Infeasible), found
    coarse = _told(network, task, made_coarse(network, task, found.tree).tree)
    return Proved(_told(network, task, found.tree), coarse, found.is_proved)


def _told(network: ProgrammableNetwork, task: Task, tree: PlacedTree | Infeasible) -> Outcome:
    assert not isinstance(tree, Infeasible), tree
    found = measure(network, task, tree)
    return Outcome(found.hops, found.rate)


def _adjusted(
    network: ProgrammableNetwork, task: Task, plan: Callable[[Task], PlacedTree | Infeasible]
) -> Outcome:
    found = plan_coarse(network, task, plan)
    assert not isinstance(found, Infeasible), found
    return _told(network, task, found.tree)


def _panama(network: ProgrammableNetwork, task: Task) -> dict[str, Outcome]:
    found = {}
    for name, roots in ((PANAMA, None), (PANAMA_TO_SERVER, [0])):
        trees = plan_panama(network, task, roots=roots)
        assert not isinstance(trees, Infeasible), trees
        found[name] = Outcome(float(trees.hops(network)), trees.rate(network, task))
    return found


def _highest(network: ProgrammableNetwork, task: Task) -> Fraction:
    found = best_rate(network, task)
    assert not isinstance(found, Infeasible), found
    return found.rate


_Plan = Callable[[ProgrammableNetwork, Task, bool], PlacedTree | Infeasible]
_BENCHMARKS: Final[Mapping[str, _Plan]] = {
    DEEPSYS: lambda network, task, is_partial: plan_deepsys(network, task),
    SOAR: lambda network, task, is_partial: plan_soar(network, task),
    ATP: lambda network, task, is_partial: plan_atp(network, task, is_partial=is_partial),
    ATP_FIRST: lambda network, task, is_partial: plan_atp(
        network, task, rule=AtpRule.FIRST, is_partial=is_partial
    ),
    MARINA: lambda network, task, is_partial: plan_marina(network, task),
}
"""Whether a switch may add part of what passes it: the last argument."""


def _example() -> Example:
    """All but the switches with diagonal lines; which those are is only in the picture. These twelve fit all
    that is said of it."""
    network = fat_tree_network(4, EXAMPLE_SWITCHES, capacity=Fraction(2))
    task = Task(7, 10**9, Fraction(1))
    inner = Task(7, 10**9, Fraction(1), Fraction(2))
    exact = plan_exact(network, task, seconds=EXACT_SECONDS)
    trees: dict[str, tuple[Task, PlacedTree | Infeasible]] = {
        DEEPSYS: (task, plan_deepsys(network, task, ps=7)),
        ATP: (task, plan_atp(network, task, ps=7)),
        ATP_FIRST: (task, plan_atp(network, task, ps=7, rule=AtpRule.FIRST)),
        AS_DRAWN: (task, _drawn_in_figure_1()),
        EXACT: (task, exact if isinstance(exact, Infeasible) else exact.tree),
        FAST: (task, plan_fast(network, task)),
        PRINTED_INNER: (inner, plan_printed(network, inner)),
        PRINTED_LEAF: (task, plan_printed(network, task, beta=Fraction(1))),
    }
    found = {}
    for name, (asked, tree) in trees.items():
        assert not isinstance(tree, Infeasible), tree
        told = measure(network, asked, tree)
        found[name] = Outcome(told.hops, told.rate), switch_use(network, told)
    return Example(found)


def _drawn_in_figure_1() -> PlacedTree:
    """Figure 1(c)."""
    e01, e20, e21, a01, a21 = (
        switches_named(4, name)[0] for name in ("e0.1", "e2.0", "e2.1", "a0.1", "a2.1")
    )
    racks = {1: 0, 2: e01, 3: e01, 8: e20, 9: e20, 10: e21, 11: e21}
    return PlacedTree(0, {**racks, e01: a01, e20: a21, e21: a21, a21: a01, a01: 0})


def warm_up() -> None:
    """Compiled code is made, or loaded, in this process: once for all that share its cache."""
    perform(PlanRun(Setting(3, 2, Fraction(5)), False, None))
