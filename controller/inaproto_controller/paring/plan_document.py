"""What ``inaproto plan paring`` says: as a document for programs, and as lines for people.

Rates and other fractions are text, exactly ("10/3"), with a number beside them for those who do not mind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from fractions import Fraction
from typing import Any, Final

from inaproto.errors import Infeasible
from inaproto_controller.paring.admission import Admitted, Part
from inaproto_controller.paring.execution import Unfolded
from inaproto_controller.paring.model import Node
from inaproto_controller.paring.routes import Routes

FORMAT: Final = 2
NameOf = Callable[[Node], str]
_UNITS: Final = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


def document(admitted: Admitted, asked: Mapping[str, Any], name_of: NameOf) -> dict[str, Any]:
    """``asked``: what the plan was asked with, as it was written."""
    return {
        "format": FORMAT,
        "asked": dict(asked),
        "rate_gbit_s": _exact(admitted.rate),
        "seconds": _exact(admitted.seconds),
        "fees": _exact(admitted.fee),
        "traffic_bytes": admitted.traffic_bytes,
        "workers": [name_of(worker) for worker in admitted.workers],
        "reason": admitted.reason,
        "parts": [_part(part, name_of) for part in admitted.parts],
    }


def refusal(answer: Infeasible, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Of a plan that there is none."""
    return {
        "format": FORMAT,
        "asked": dict(asked),
        "infeasible": {"reason": answer.reason, "witness": dict(answer.witness)},
    }


def _part(part: Part, name_of: NameOf) -> dict[str, Any]:
    plan = part.plan
    network, tree, topology = plan.network, plan.tree, plan.network.topology
    routes = Routes(topology, tree)
    return {
        "mode": plan.mode.value,
        "is_coarse": plan.is_coarse,
        "parameter_server": name_of(tree.ps),
        "gradient_bytes": plan.task.gradient_bytes,
        "subtasks": {"count": part.subtasks.count, **asdict(part.subtasks)},
        "rate_gbit_s": _exact(plan.rate),
        "highest_rate_gbit_s": _exact(plan.best_rate),
        "seconds": _exact(plan.seconds),
        "hops": plan.hops,
        "hops_at_least": plan.bound,
        "is_proved": plan.is_proved,
        "is_one_plane_of_several": plan.is_one_plane_of_several,
        "fees": _exact(plan.fee),
        "traffic_bytes": plan.traffic_bytes,
        "switches": [name_of(switch) for switch in tree.switches(network)],
        "loads": {name_of(node): load for node, load in plan.measures.loads.items()},
        "capacity_taken_gbit_s": {name_of(node): _exact(held) for node, held in plan.held.items()},
        "parents": {name_of(node): name_of(parent) for node, parent in sorted(tree.parents.items())},
        "routes": {name_of(node): [name_of(one) for one in path] for node, path in routes.paths.items()},
        "reduction_plan": Unfolded.of(network, tree).plan.to_lists(),
    }


def lines(admitted: Admitted, name_of: NameOf) -> Iterator[str]:
    """A summary, then each tree."""
    yield (
        f"{len(admitted.workers)} workers send at {_said(admitted.rate)} Gbit/s: an iteration's "
        f"{size(admitted.task.gradient_bytes)} take {float(admitted.seconds):.4g} s, and the links carry "
        f"{size(admitted.traffic_bytes)}"
    )
    if admitted.reason:
        yield f"note: {admitted.reason}"
    for number, part in enumerate(admitted.parts):
        plan = part.plan
        yield ""
        if len(admitted.parts) > 1:
            yield f"part {number + 1} of {len(admitted.parts)}, {size(plan.task.gradient_bytes)}:"
        least = "fewest possible" if plan.is_proved else f"at least {plan.bound} at this rate"
        of_any = "any tree within one plane" if plan.is_one_plane_of_several else "any tree"
        yield f"rate     {_said(plan.rate)} Gbit/s; highest of {of_any} {_said(plan.best_rate)}"
        yield f"links    {plan.hops}; {least}"
        if plan.is_coarse:
            yield "routing  coarse: a switch adds up all that passes it, or nothing"
        if plan.fees:
            yield f"fees     {_said(plan.fee)}"
        if part.subtasks.count > 1:
            yield f"subtasks {part.subtasks.count}, of {size(part.subtasks.each_bytes)} at most"
        yield from _branch(part, name_of)


def _branch(part: Part, name_of: NameOf) -> Iterator[str]:
    """The tree, the PS first; workers of one parent in one line."""
    plan = part.plan
    below: dict[Node, list[Node]] = {}
    for node, parent in sorted(plan.tree.parents.items()):
        below.setdefault(parent, []).append(node)
    ahead = [(plan.tree.ps, 0)]
    while ahead:
        node, depth = ahead.pop()
        leaves = [name_of(one) for one in below[node] if one not in below]
        what = "parameter server " if not depth else ""
        workers = "1 worker" if len(leaves) == 1 else f"{len(leaves)} workers"
        share = f", {workers}: {' '.join(leaves)}" if leaves else ""
        yield f"{'  ' * depth}{what}{name_of(node)} adds up {plan.measures.loads[node]}{share}"
        ahead += [(one, depth + 1) for one in reversed(below[node]) if one in below]


def size(nbytes: int) -> str:
    """For people: 1.627 GB."""
    for unit, name in _UNITS:
        if nbytes >= unit:
            return f"{nbytes / unit:.4g} {name}"
    return f"{nbytes} B"


def _said(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value)
    exact = value == Fraction(f"{float(value):.4g}")
    return f"{float(value):.4g}" if exact else f"{float(value):.4g} ({value})"


def _exact(value: Fraction) -> dict[str, Any]:
    return {"exact": str(value), "value": float(value)}
