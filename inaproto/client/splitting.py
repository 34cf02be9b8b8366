"""Groups: some ranks of a job make a job of their own, whose name and key follow from the job's. No I/O.

All ranks gather what each of them wants; from that table, which all have alike, each finds its group. A group
has a key of its own: whoever knows it, or the name, knows neither the job's key nor those of other groups. A
number that rank 0 draws is in both, so groups of a job that is started anew never meet those of the last one.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inaproto.client.arguments import is_integer
from inaproto.client.channel import JobRank
from inaproto.errors import LocalMisuse

NAME_BYTES_MAX: Final = 96
"""A name leaves room for those of parallel rings, of groups of groups, and of what follows a lost rank."""
_IN, _COLOR, _KEY, _CHECK, _DRAWN = range(5)

Row = NDArray[np.int64]
"""What one rank wants: is it in a group, color, key, digest of the ranks that it named, a drawn number."""


def row_of(color: Any, key: Any) -> Row:
    """Raises ``LocalMisuse``."""
    for name, value in (("color", 0 if color is None else color), ("key", key)):
        if not is_integer(value) or not -(1 << 63) <= value < 1 << 63:
            why = "; None is for a rank that is in no group" if name == "color" else ""
            raise LocalMisuse(f"split: {name} is {value!r:.40}; it must be an integer{why}")
    return np.array([color is not None, color or 0, key, 0, secrets.randbits(32)], np.int64)


def row_of_group(ranks: Any, who: JobRank) -> Row:
    """The same for a group that all ranks name by its members, in their order. Raises ``LocalMisuse``."""
    listed = list(ranks) if isinstance(ranks, Sequence | np.ndarray | range) else []
    valid = [rank for rank in listed if is_integer(rank) and 0 <= rank < who.size]
    if not listed or len(set(valid)) < len(listed):
        raise LocalMisuse(
            f"group: ranks is {ranks!r:.80}; it must list different ranks of the job, 0 to {who.size - 1}"
        )
    row = row_of(0 if who.rank in listed else None, listed.index(who.rank) if who.rank in listed else 0)
    digest = hashlib.sha256(repr([int(rank) for rank in listed]).encode()).digest()
    row[_CHECK] = int.from_bytes(digest[:7], "big")
    return row


def group_of(table: Row, who: JobRank, number: int) -> JobRank | None:
    """Who this rank is in its group; None: it is in none. ``number``: of splits of this job before.

    ``table`` has the row of each rank. Raises ``LocalMisuse`` on all ranks where they named other members.
    """
    differ = np.flatnonzero(table[:, _CHECK] != table[0, _CHECK])
    if differ.size:
        raise LocalMisuse(f"group: rank {int(differ[0])} of job {who.job!r} named other ranks than rank 0")
    if not table[who.rank, _IN]:
        return None
    color, drawn = int(table[who.rank, _COLOR]), int(table[0, _DRAWN])
    mine = np.flatnonzero((table[:, _IN] != 0) & (table[:, _COLOR] == color))
    members = sorted(mine.tolist(), key=lambda rank: (int(table[rank, _KEY]), rank))
    name = f"{who.job}.g{number}.{color}.{drawn:08x}"
    told = f"inaproto group\0{who.job}\0{number}\0{color}\0{drawn}\0{members}"
    if len(name.encode()) > NAME_BYTES_MAX:
        digest = hashlib.sha256(told.encode()).hexdigest()[:16]
        name = f"{who.job.encode()[: NAME_BYTES_MAX - 17].decode(errors='ignore')}.{digest}"
    key = hmac.digest(who.key.encode(), told.encode(), "sha256").hex()
    return replace(who, job=name, rank=members.index(who.rank), size=len(members), key=key)
