"""Words for people about places in a ring: hosts and ranks, where the protocol has positions."""

from __future__ import annotations

from collections.abc import Iterable

from inaproto.core.rdma.verbs import Completion
from inaproto.wire.control_messages import Ring


def name_ranks(ranks: Iterable[int]) -> str:
    """As ``rank 3`` or ``ranks 0, 2``."""
    names = [str(rank) for rank in ranks]
    return f"rank{'s' * (len(names) != 1)} {', '.join(names)}"


def transport_failure(job: str, ring: Ring, completion: Completion, *, at_out: bool) -> str:
    """Says which connection has failed: that to the successor (``at_out``) or that from the predecessor."""
    position = (ring.position + (1 if at_out else -1)) % len(ring.peers)
    return failure_at(job, ring, completion, position, "to" if at_out else "from")


def failure_at(job: str, ring: Ring, completion: Completion, position: int, way: str) -> str:
    """The connection ``way`` ("to", "from") the host at that position has failed."""
    where = f"{way} {_of(ring.ranks, position)}"
    return (
        f"{_of(ring.ranks, ring.position)} of job {job!r}: the connection {where} on host "
        f"{ring.peers[position]} failed: {completion.status.value}; look at that host and at the links "
        "between"
    )


def explain_positions(ring: Ring | None) -> str:
    """What is appended to words of the ring's engine, whose ranks are positions; empty where both are
    equal."""
    if ring is None or all(here == (position,) for position, here in enumerate(ring.ranks)):
        return ""
    named = (f"{position} is {host}" for position, host in enumerate(ring.peers))
    hosts = ", ".join(f"{name} ({_of(ring.ranks, position)})" for position, name in enumerate(named))
    return f"; places in this ring are of hosts: {hosts}"


def _of(ranks: tuple[tuple[int, ...], ...], position: int) -> str:
    return name_ranks(ranks[position]) if position < len(ranks) else "rank ?"
