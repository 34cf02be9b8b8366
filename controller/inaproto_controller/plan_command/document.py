"""What ``inaproto plan paring`` says to programs, as a document; ``plan_lines`` has what it says to people.

Rates and other fractions are text, exactly ("10/3"), with a number beside them for those who do not mind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from fractions import Fraction
from typing import Any, Final

from inaproto.errors import Infeasible
from inaproto_controller.planning.paring.admission import Admitted, Part
from inaproto_controller.planning.paring.routes import Routes
from inaproto_controller.simulate.paring_execution import Unfolded

FORMAT: Final = 2


def document(admitted: Admitted, asked: Mapping[str, Any]) -> dict[str, Any]:
    """``asked``: what the plan was asked with, as it was written."""
    name = admitted.parts[0].plan.network.topology.name
    return {
        "format": FORMAT,
        "asked": dict(asked),
        "rate_gbit_s": _exact(admitted.rate),
        "seconds": _exact(admitted.seconds),
        "fees": _exact(admitted.fee),
        "traffic_bytes": admitted.traffic_bytes,
        "workers": [name(worker) for worker in admitted.workers],
        "reason": admitted.reason,
        "parts": [_part(part) for part in admitted.parts],
    }


def refusal(answer: Infeasible, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Document of a plan that there is none."""
    return {
        "format": FORMAT,
        "asked": dict(asked),
        "infeasible": {"reason": answer.reason, "witness": dict(answer.witness)},
    }


def _part(part: Part) -> dict[str, Any]:
    plan = part.plan
    network, tree, topology = plan.network, plan.tree, plan.network.topology
    name, routes = topology.name, Routes(topology, tree)
    return {
        "mode": plan.mode.value,
        "is_coarse": plan.is_coarse,
        "parameter_server": name(tree.ps),
        "gradient_bytes": plan.task.gradient_bytes,
        "subtasks": {"count": part.subtasks.count, **asdict(part.subtasks)},
        "rate_gbit_s": _exact(plan.rate),
        "highest_rate_gbit_s": _exact(plan.best_rate),
        "seconds": _exact(plan.seconds),
        "hops": plan.hops,
        "hops_at_least": plan.bound,
        "hops_and_fees_at_least": _exact(plan.cost_bound),
        "is_proved": plan.is_proved,
        "is_one_plane_of_several": plan.is_one_plane_of_several,
        "fees": _exact(plan.fee),
        "traffic_bytes": plan.traffic_bytes,
        "switches": [name(switch) for switch in tree.switches(network)],
        "loads": {name(node): load for node, load in plan.measures.loads.items()},
        "capacity_taken_gbit_s": {name(node): _exact(held) for node, held in plan.held.items()},
        "parents": {name(node): name(parent) for node, parent in sorted(tree.parents.items())},
        "routes": {name(node): [name(one) for one in path] for node, path in routes.paths.items()},
        "reduction_plan": Unfolded.of(network, tree).plan.to_lists(),
    }


def _exact(value: Fraction) -> dict[str, Any]:
    return {"exact": str(value), "value": float(value)}
