"""What must hold in every state of an explored sharing group: laws L1 and L2, and that nobody is blamed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inaproto.sim.explore.sharing.states import DOWN, State

if TYPE_CHECKING:
    from inaproto.sim.explore.sharing.world import SharingWorld


def broken_law(world: SharingWorld, state: State) -> str | None:
    """What is wrong, if anything."""
    broken = world.coordinator.violations.get(state[0])
    if broken is not None:
        return broken
    using: dict[str, int] = {}
    for job, numbers in enumerate(world.of_job):
        epochs: dict[int, set[int]] = {}
        for seat in numbers:
            at = state[4 + seat]
            if at == DOWN:
                continue
            if at in world.participants[seat].violations:
                return world.participants[seat].violations[at]
            local = world.local(seat, at)
            if local.is_ina:
                epochs.setdefault(local.running, set()).add(local.epoch)
        for index, found in epochs.items():
            if len(found) > 1:
                return f"L1: operation {index} of job {world.job_name(job)} runs under epochs {sorted(found)}"
        if epochs:
            using[world.job_name(job)] = next(iter(next(iter(epochs.values())))) % world.config.capacity
    if len(using) > world.config.capacity:
        return f"L2: jobs {' and '.join(using)} use the pool at once"
    if len(set(using.values())) < len(using):
        return f"L2: of jobs {' and '.join(using)} two use one place of the pool at once"
    return None
