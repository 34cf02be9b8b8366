"""What hosts are told of the next ring of a job: for which links to make queue pairs, and whose are around
them.

On the path ``overlay`` the hosts are a tree (:mod:`inaproto.core.plan.host_tree`): each makes one queue pair
for its parent and one for each host from which it gathers, so it hears how many these are before it hears
whose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from inaproto.core.plan.host_tree import OverlayTree
from inaproto.core.rendezvous.jobs import Job, RingMember, Seat
from inaproto.wire.control_messages import Halt, OutAddress, Ring


def halt_message(job: Job, seats: Sequence[Seat]) -> Halt:
    """What the host of these seats is told, to make links for the next ring."""
    path, reason, children = job.recovery.path, job.recovery.reason, 0
    if job.is_overlay:
        children = len(job.overlay.children(job.position_of(seats[0])))
    return Halt(
        job=job.name, ring_id=job.ring_id, path=path, reason=reason, plan=job.plan_text, children=children
    )


def in_overlay(ring: Ring, tree: OverlayTree, members: Sequence[RingMember]) -> Ring:
    """``ring``, with the links of the hosts around its own in ``tree``."""
    position = ring.position
    parent = tree.parents[position]
    up = members[position].member.into
    if parent is not None:
        up = members[parent].seats[0].below[tree.children(parent).index(position)]
    below = tuple(members[child].member.into for child in tree.children(position))
    predecessor = OutAddress(
        mac=up.mac,
        ip=up.ip,
        qpn=up.qpn,
        psn=up.psn,
        selective=up.selective,
        infiniband=up.infiniband,
    )
    return replace(ring, successor=up, predecessor=predecessor, in_degree=tree.in_degree, below=below)


def in_psn_order(ring: Ring) -> Ring:
    """``ring``, through whose switches results leave in PSN order: some host or switch can do no better.

    NICs that keep what comes behind a gap would take all that waits for a missing packet for lost. What hosts
    send each other stays as it is.
    """
    if ring.ina_successor is not None and ring.ina_predecessor is not None:
        return replace(
            ring,
            ina_successor=replace(ring.ina_successor, selective=False),
            ina_predecessor=replace(ring.ina_predecessor, selective=False),
        )
    if ring.path != "switch":
        return ring
    return replace(
        ring,
        successor=replace(ring.successor, selective=False),
        predecessor=replace(ring.predecessor, selective=False),
    )


def cannot_sum(job: Job) -> str:
    """The error of a job whose hosts have no path that it would take."""
    if job.first.path == "overlay":
        old = [its.host for its in job.members() if not all(seat.overlays for seat in its.seats)]
        return (
            f"job {job.name!r} asked for the path overlay, and {', '.join(old)} is of a release that does "
            "not know it; start its host daemon from a newer one, or connect with path='auto'"
        )
    return (
        f"job {job.name!r} asked for the path {job.first.path}, but its hosts cannot sum in the order "
        f"{job.rank_plan}; number its ranks rack by rank, or connect with path='auto' or path='ring'"
    )
