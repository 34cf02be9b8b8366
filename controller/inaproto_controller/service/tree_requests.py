"""A person chooses the root at which a job's ring is summed, or that of its tree in SHARP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inaproto_controller.service.controller import Controller, JobRefused, NoSuchJob


@dataclass(frozen=True, slots=True)
class Moved:
    job: str
    root: str
    """Root that was chosen; empty: wherever the plan has it."""
    stands: bool
    """Its ring is there, or the job is attached there at all its hosts."""
    move: dict[str, Any] | None
    """The last of its moves that has ended."""


async def move_job(controller: Controller, job: str, root: str, wait_s: float) -> Moved:
    """The job's ring shall be summed at ``root``, on disk when this returns; waits so long until it is. A job
    without such a ring may have a tree in SHARP, which is moved then.

    Raises ``NoSuchJob``, ``JobRefused``, ``NotLeading``.
    """
    sharp_roots, live = controller.place_roots(job), controller.agents.trees
    if sharp_roots and (live is None or job not in live.jobs):
        return await _move_in_sharp(controller, job, root, sharp_roots, wait_s)
    trees = controller.trees()
    if job not in trees.jobs:
        there = ", ".join(trees.jobs) or "none"
        raise NoSuchJob(f"no job {job!r} on the path shared runs on several hosts; there are: {there}")
    roots = trees.roots_for(job)
    if root and root not in roots:
        ways = ", ".join(roots) or "no switch, by the cluster file"
        raise JobRefused(f"job {job!r}: cannot be summed at {root!r}, but at {ways}")
    await trees.pin(job, root, controller.put_record)
    stands = await trees.until_at(job, root, wait_s) if root else True
    controller.trees()  # it may lead no more
    return Moved(job, root, stands, trees.last_move(job))


async def _move_in_sharp(
    controller: Controller, job: str, root: str, roots: list[str], wait_s: float
) -> Moved:
    if root and root not in roots:
        raise JobRefused(f"job {job!r}: cannot have its tree at {root!r}, but at {', '.join(roots)}")
    await controller.wish_root(job, root)
    stands = await controller.until_placed_at(job, root, wait_s) if root else True
    return Moved(job, root, stands, controller.places.last_move(job))
