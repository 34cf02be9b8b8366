"""Names of parallel rings: ring 0 of 2 of job ``train`` is for hosts and switches the job ``train#0/2``.

The number of rings is in the name, so that ranks that disagree about it never meet in a ring. No job of a
user has such a name (:mod:`inaproto.client.arguments` refuses it), and none of a job that went on without a
lost rank: these contain ``~``.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_FORM: Final = re.compile(r"(.+)#(0|[1-9][0-9]*)/([1-9][0-9]*)", re.DOTALL)


class RingName(NamedTuple):
    """A job as its user named it, and which of its rings it is; an ordinary job is ring 0 of 1."""

    job: str
    ring: int
    rings: int


def ring_job(job: str, ring: int, rings: int) -> str:
    """What hosts and switches call it."""
    return f"{job}#{ring}/{rings}" if rings > 1 else job


def parse_ring_job(name: str) -> RingName:
    """Any name: one of another form is that of an ordinary job."""
    found = _FORM.fullmatch(name)
    if found is None or int(found[2]) >= int(found[3]) or int(found[3]) == 1:
        return RingName(name, 0, 1)
    return RingName(found[1], int(found[2]), int(found[3]))
