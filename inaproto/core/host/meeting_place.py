"""Where the ranks of a job meet that are all on one host and add up among themselves (docs/protocol.md 11).

Each rank names, when it joins, the directories in which it could make a socket, the ones that it likes best
first. What is before the first blank of a name is the directory itself, as the kernel has it, and whose it
would be; the rest is for people. Two ranks may spell one directory differently, or have different ones by one
spelling: containers do.

Invariant: whether the ranks add up among themselves is decided here, once, alike for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class MeetingPlace(NamedTuple):
    """``why_not``: why the ranks do not meet; empty, they do, at ``place``, by a fresh ``name`` in it.

    Without a place they meet where libraries of older releases look by themselves.
    """

    place: str = ""
    name: str = ""
    why_not: str = ""


def common_place(named: Mapping[int, Sequence[str]], name: str) -> MeetingPlace:
    """The first that the lowest rank names and all others name, too; ``named``: by rank.

    Where no rank names any, none has a library that does.
    """
    if not any(named.values()):
        return MeetingPlace()
    known = {rank: {_itself(each) for each in places} for rank, places in named.items()}
    lowest = min(named)
    for each in named[lowest]:
        if all(_itself(each) in places for places in known.values()):
            return MeetingPlace(_itself(each), name)
    silent = [rank for rank in sorted(named) if not named[rank]]
    if silent:
        return MeetingPlace(why_not=f"rank {silent[0]} names no directory in which the ranks could meet")
    first = known[lowest]
    other = next((rank for rank in sorted(named) if not first & known[rank]), max(named))
    return MeetingPlace(
        why_not=f"ranks {lowest} and {other} have no directory in common in which both could make a socket: "
        f"rank {lowest} has {_for_people(named[lowest])}, rank {other} {_for_people(named[other])}; give all "
        "ranks of the job one TMPDIR that they share, and one user"
    )


def _itself(named: str) -> str:
    return named.partition(" ")[0]


def _for_people(named: Sequence[str]) -> str:
    words = (each.partition(" ")[2] or each for each in named)
    return ", ".join(ascii(each)[1:-1] for each in words)
