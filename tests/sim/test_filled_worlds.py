"""Worlds whose processes call all-reduces before their tensors are there: what is missing is wrong bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from inaproto.core.host.operation_queue import OperationQueue
from inaproto.core.host.operations import Filled
from inaproto.sim.frames.draw.recovering import draw_recovery
from inaproto.sim.frames.draw.shared import draw_shared
from inaproto.sim.frames.draw.swarm import WorldConfig
from inaproto.sim.frames.recorder import say_step
from inaproto.units import MS, OpIndex
from tests.seeds import seeds
from tests.sim.worlds import SMALL, run, small

DRAWS: dict[str, Callable[[int], WorldConfig]] = {
    "single": small,
    "recovery": lambda seed: draw_recovery(seed, SMALL),
    "shared": lambda seed: draw_shared(seed, SMALL),
}


def filling(config: WorldConfig) -> WorldConfig:
    return replace(config, jobs=tuple(replace(job, fill_ns=3 * MS) for job in config.jobs))


@pytest.mark.parametrize("seed", seeds(8))
@pytest.mark.parametrize("world", DRAWS)
def test_every_rule_holds(world: str, seed: int) -> None:
    result = run(filling(DRAWS[world](seed)))
    assert result.violation is None, f"{result.violation}; rerun: INAPROTO_SEEDS={seed}:{seed + 1}"
    assert result.operations_done


def test_what_is_sent_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OperationQueue, "unsent", property(lambda self: len(self._again) + self._unsent))
    violation = run(filling(small(0))).violation
    assert violation is not None
    assert violation.rule == "one result"


def test_worlds_that_bring_whole_tensors_have_no_such_events() -> None:
    assert run(small(3)).digest == run(replace(small(3))).digest != run(filling(small(3))).digest


def test_the_sequence_diagram_says_what_is_there() -> None:
    assert say_step(Filled(OpIndex(3), 80)) == "has 80 bytes of the tensor of all-reduce 3"
