"""PARING section IV-C.1 at size: a thousand arrivals and departures on 1,024 servers, and nothing is left
behind.
"""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest

from inaproto.errors import Infeasible
from inaproto_controller.planning.paring.admission import Tenants
from inaproto_controller.planning.paring.comparison import Mask
from inaproto_controller.planning.paring.model import Task
from inaproto_controller.planning.paring.planner import Mode

pytestmark = pytest.mark.figures

EVENTS = 1000


@pytest.mark.timeout(1200)
def test_section_4_c_1_a_thousand_tasks_on_a_thousand_servers() -> None:
    network = Mask.drawn(0, degree=16, switches=(64, 64)).network
    draw = Random("paring/tenants/16")
    memory = {node: draw.choice((10, 100, 1000)) * 10**6 for node in network.programmable[::2]}
    state = Tenants(network, memory)
    before, came, refused = state.free, 0, 0
    for number in range(EVENTS):
        if state.running and draw.random() < 0.45:
            state = state.left(draw.choice(list(state.running)))
        else:
            task = Task(draw.randint(2, 60), draw.randint(1, 500) * 10**6, Fraction(draw.choice((1, 2, 5))))
            answer = state.admitted(str(number), task, servers=draw.choice((1, 1, 1, 2)), mode=Mode.FAST)
            refused += isinstance(answer, Infeasible)
            if isinstance(answer, Tenants):
                state, came = answer, came + 1
        # what is free is worked out anew, and raises if it is less than nothing
        assert all(capacity is None or capacity >= 0 for capacity in state.free.capacities)
        assert len(state.busy) == sum(len(one.servers) for one in state.running.values())
        if number % 20 == 0:
            for node in network.programmable:
                assert state.taken(node) <= 10
                assert state.taken_bytes(node) <= memory.get(node, 10**18)
    assert came > EVENTS // 3
    for name in list(state.running):
        state = state.left(name)
    assert state.free == before
