"""MINA, short paper: the fewest last operations of a step that need INA for it to be shortest."""

from __future__ import annotations

import pytest

from inaproto_controller.cluster.model import CLUSTER, EVALUATED, SHARING, measured
from inaproto_controller.cluster.requests import Request
from inaproto_controller.cluster.step_times import Speeds, StepTimes
from inaproto_controller.cluster.topology import FatTree
from inaproto_controller.planning.turns.policy import Policy
from inaproto_controller.simulate.cluster import simulate
from inaproto_controller.simulate.presets import make_setting
from inaproto_controller.simulate.results import Operation

MEASURED = [(SHARING, (4, 13, 77, 6, 16, 3, 37)), (CLUSTER, (1, 0, 0, 0, 0, 0, 0))]
"""How many of each model's operations, in the order of the evaluation: measured with the published traces."""


@pytest.mark.parametrize(("speeds", "expected"), MEASURED, ids=["sharing", "cluster"])
def test_suffixes_of_the_evaluated_models(speeds: Speeds, expected: tuple[int, ...]) -> None:
    times = [StepTimes(measured(name), speeds, hosts=2) for name in EVALUATED]
    assert tuple(one.count - one.suffix for one in times) == expected


@pytest.mark.parametrize("model", EVALUATED)
def test_only_the_suffix_asks_and_the_job_is_as_fast(model: str) -> None:
    times = StepTimes(measured(model), SHARING, hosts=2)
    tree = FatTree((4,), (1,))
    setting = make_setting(tree, trees="exclusive", policy=Policy.SCORE, speeds=SHARING, suffix_only=True)
    operations: list[Operation] = []
    result = simulate(setting, [Request(model, 3, 5)], on_operation=operations.append)
    assert result.end == pytest.approx(5 * times.step_ina, rel=1e-12)
    assert all(one.uses_ina == (one.index >= times.suffix) for one in operations)
    assert len(operations) == 5 * times.count
