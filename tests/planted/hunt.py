"""Run worlds, seed after seed, until a checker objects."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass

from inaproto.sim.frames.draw.swarm import draw_world
from inaproto.sim.frames.world import World, WorldResult
from tests.planted.planting import PlantedFault


@dataclass(frozen=True)
class Catch:
    """How a fault was found."""

    rule: str
    evidence: str
    seed: int
    steps: int
    """Steps of the pure cores until then."""
    events: int


def run_world(fault: PlantedFault, seed: int) -> WorldResult:
    """The world of ``seed`` as the fault wants it; whether the fault is in it is the caller's choice."""
    return World(fault.shape(draw_world(seed, fault.swarm))).run()


def run_test(fault: PlantedFault) -> None:
    """Run the fault's test; whether the fault is in the product is the caller's choice."""
    path, _, name = fault.test.partition("::")
    module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    getattr(module, name)(*fault.arguments)


def hunt(fault: PlantedFault, seeds: Iterable[int]) -> Catch | None:
    """The first of ``seeds`` at which a checker objects, with the fault planted."""
    with fault():
        for seed in seeds:
            result = run_world(fault, seed)
            found = result.violation
            if found is not None:
                return Catch(found.rule, found.evidence, seed, result.steps.total, result.events)
    return None
