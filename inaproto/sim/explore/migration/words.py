"""Steps of the world of tree migration in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from inaproto.core.migration.events import DrainJob, TreeStands
from inaproto.sim.explore.migration.states import BROKEN, COORDINATOR, WRITING, Message, State, Step
from inaproto.wire.messages.slots import Lease, SlotAnswer, SlotRequest, SlotsChanged

if TYPE_CHECKING:
    from inaproto.sim.explore.migration.world import MigrationWorld

_OF_SWITCHES: Final = {
    "asks again": "the coordinator asks switch {} again",
    "reboots": "switch {} restarts, and is empty",
    "is lost": "the coordinator loses its session with switch {}",
}
_OF_JOBS: Final = {
    "tries again": "job {}'s back-off is over",
    "is heard to have ended": "the coordinator hears that job {} has ended",
    "is heard to have drained": "the coordinator hears that job {} has drained",
    "dies": "a host of job {} dies",
    "ends": "job {} ends",
}
_OTHERS: Final = {
    "writes": "the coordinator's record is written",
    "restarts": "the coordinator restarts",
    "crashes": "the coordinator crashes",
    "is gone": "the coordinator crashes, and will never return",
}


def told(world: MigrationWorld, state: State, step: Step) -> str:
    """What happens, and in lines below it what follows from it."""
    after = next(to for its, to in world.successors(state) if its == step)
    lines = [_first(world, state, step)]
    lines += [f"switch {its}" for its in _changes(world, state, after)]
    core = world.core(after)
    if core is not None and after[COORDINATOR] != state[COORDINATOR]:
        before = world.core(state)
        for job in core._jobs.values():
            old = before._jobs.get(job.name) if before is not None else None
            if old is None or old.phase is not job.phase:
                lines.append(f"job {job.name} is {job.phase.value}")
    if after[WRITING] and after[WRITING] != state[WRITING]:
        lines.append("a record is being written")
    for fault in step.faults:
        kind, _, number = fault.partition(": ")
        if number:
            lines.append(f"{kind.upper()}: {_message(world.messages[int(number)])}")
    if after[BROKEN]:
        lines.append(world.words[after[BROKEN]])
    return "\n".join(lines)


def _first(world: MigrationWorld, state: State, step: Step) -> str:
    what, where, which, _ = step
    if what in _OF_SWITCHES:
        return _OF_SWITCHES[what].format(world.switches[where])
    if what in _OF_JOBS:
        return _OF_JOBS[what].format(world.jobs[where])
    if what in _OTHERS:
        return _OTHERS[what] + (", its record is written" if which else "")
    if what == "plans":
        plan = world.config.scenario.plans[where - 1]
        wants = ", ".join(f"{job} on {tree or 'nothing'}" for job, tree in sorted(plan.items()))
        return f"the planner wants {wants or 'nothing'} (plan {where})"
    if what == "obeys":
        order = world.job_seats(state)[world.jobs[where]].order
        return f"the hosts of job {world.jobs[where]} {_order(order)}"
    if what == "lets run out":
        return f"switch {world.switches[where]} lets a lease run out: {world.words[which]}"
    message = _message(world.messages[which])
    who = {"gets": f"switch {world.switches[where]} gets", "hears": "the coordinator hears"}
    return f"{who.get(what, 'nobody hears')}: {message}"


def _order(order: DrainJob | TreeStands | None) -> str:
    if isinstance(order, TreeStands):
        return f"use the tree over {', '.join(order.tree.switches)} (epoch {order.epoch})"
    return "end their operation, and take the fallback"


def _message(message: Message) -> str:
    match message:
        case SlotRequest(order=order, lease=lease):
            return order.name + (f" {lease}" if lease else "")
        case SlotAnswer():
            lent = ", ".join(map(str, message.held)) or "nothing"
            return f"switch {message.switch}: {message.outcome.name}, it lends {lent}"
        case SlotsChanged(switch, _):
            return f"switch {switch}: what it lends has changed"


def _changes(world: MigrationWorld, state: State, after: State) -> list[str]:
    found = []
    for at, name in enumerate(world.switches):
        old, new = world.ledger(state, at)._held, world.ledger(after, at)._held
        if old.keys() != new.keys():
            found.append(f"{name} lends {_held(list(new))}")
    return found


def _held(leases: list[Lease]) -> str:
    return ", ".join(map(str, leases)) or "nothing"
