"""PARING's evaluation at k = 6: the flows that the paper solves find the stars that we take (10 s)."""

from __future__ import annotations

from fractions import Fraction

import pytest

from inaproto_controller.planning.paring.model import PlacedTree, Task
from inaproto_controller.planning.paring.spiders.printed import plan_printed
from tests.controller.paring_draws import masked
from tests.paper.test_paring_4_a_spiders import Both

pytestmark = pytest.mark.figures


@pytest.mark.parametrize("worker", [0, 10], ids=["leaf", "interior"])
@pytest.mark.parametrize(
    ("degree", "names", "n"), [(4, "e*.* a0.*", 7), (6, "e0.* e1.* a0.0 a1.0", 20)], ids=["k4", "k6"]
)
@pytest.mark.parametrize("beta", [Fraction(1), Fraction(3, 2)], ids=["strict", "printed"])
def test_all_spiders_of_a_run_are_stars(degree: int, names: str, n: int, worker: int, beta: Fraction) -> None:
    network, task = masked(degree, names), Task(n, 1, Fraction(100), Fraction(worker))
    found = plan_printed(network, task, beta=beta, spiders=Both)
    assert isinstance(found, PlacedTree)
    assert found == plan_printed(network, task, beta=beta)
