"""What ``inaproto plan paring`` says to people, in lines: a summary, then each tree."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Final

from inaproto_controller.planning.paring.admission import Admitted, Part
from inaproto_controller.planning.paring.model import Node

_UNITS: Final = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


def lines(admitted: Admitted) -> Iterator[str]:
    """A summary, then each tree."""
    senders = "1 worker sends" if len(admitted.workers) == 1 else f"{len(admitted.workers)} workers send"
    yield (
        f"{senders} at {_said(admitted.rate)} Gbit/s: an iteration's "
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
        is_least = plan.is_proved and not plan.fees
        least = "fewest possible" if is_least else f"at least {plan.bound} at this rate"
        of_any = "any tree within one plane" if plan.is_one_plane_of_several else "any tree"
        yield f"rate     {_said(plan.rate)} Gbit/s; highest of {of_any} {_said(plan.best_rate)}"
        yield f"links    {plan.hops}; {least}"
        if plan.is_coarse:
            yield "routing  coarse: a switch adds up all that passes it, or nothing"
        if plan.fees:
            together = "least possible" if plan.is_proved else f"at least {_said(plan.cost_bound)}"
            yield f"fees     {_said(plan.fee)}; with links {_said(plan.cost)}, {together}"
        if part.subtasks.count > 1:
            yield f"subtasks {part.subtasks.count}, of {size(part.subtasks.each_bytes)} at most"
        yield from _branch(part)


def _branch(part: Part) -> Iterator[str]:
    """The tree, the PS first; workers of one parent in one line."""
    plan = part.plan
    name = plan.network.topology.name
    below: dict[Node, list[Node]] = {}
    for node, parent in sorted(plan.tree.parents.items()):
        below.setdefault(parent, []).append(node)
    ahead = [(plan.tree.ps, 0)]
    while ahead:
        node, depth = ahead.pop()
        leaves = [name(one) for one in below[node] if one not in below]
        what = "parameter server " if not depth else ""
        workers = "1 worker" if len(leaves) == 1 else f"{len(leaves)} workers"
        share = f", {workers}: {' '.join(leaves)}" if leaves else ""
        yield f"{'  ' * depth}{what}{name(node)} adds up {plan.measures.loads[node]}{share}"
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
