"""Work requests as pyverbs wants them, made of as few of its objects as can be.

An object of pyverbs costs a microsecond, and what a request holds is given back by ``close`` alone: pyverbs
does not do so when the object ends. A device copies a request when it takes it, so segments and receives are
made once; a write needs one object, for pyverbs does not let its segments be changed.

Invariant: what is made for a write is closed when the device has, or has refused, it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from socket import htonl
from typing import Any, Final

from inaproto_adapters.verbs.library import verbs

_WRITE_IMM: Final = 1
_SIGNALED: Final = 2
_INLINE: Final = 8
RECEIVES_CHAINED: Final = 8
"""Receives that one call posts, at most."""


class Requests:
    """Of one NIC; ``nothing`` is an address and a key of registered memory, for requests without bytes."""

    def __init__(self, nothing: tuple[int, int], segments_max: int) -> None:
        module = verbs("wr")
        va, lkey = nothing
        self._make_write = module.SendWR
        self._make_receive = module.RecvWR
        # pyverbs wants a segment with each request; of a write with immediate none has anything in it here.
        self._no_bytes = [module.SGE(va, 0, lkey)]
        self.segments: Final = [module.SGE(va, 0, lkey) for _ in range(segments_max)]
        """To be filled for the next write."""
        self._receives: list[list[Any]] = [[]]
        """Chains by length, which pyverbs lets nobody cut."""

    def write(self, serial: int, used: int, nbytes: int, inline_max: int, imm: int) -> Any:
        """A write of the first ``used`` segments, ``nbytes`` together; ``set_wr_rdma`` it.

        Few bytes go with the request itself, and the device need not fetch them. All of a request do or none:
        a header in front of bytes that it fetches it fetches too.
        """
        return self._make_write(
            serial,
            _WRITE_IMM,
            used or 1,
            htonl(imm),
            self.segments if used else self._no_bytes,
            _INLINE if 0 < nbytes <= inline_max else 0,
        )

    def receives(self, serials: Sequence[int]) -> Any:
        """A chain of receives, the first one; at most ``RECEIVES_CHAINED`` serials."""
        while len(self._receives) <= len(serials):
            self._receives.append(self._chain(len(self._receives)))
        chain = self._receives[len(serials)]
        for request, serial in zip(chain, serials, strict=True):
            request.wr_id = serial
        return chain[0]

    def _chain(self, length: int) -> list[Any]:
        made = [self._make_receive(0, 1, self._no_bytes) for _ in range(length)]
        for request, behind in pairwise(made):
            request.next_wr = behind
        return made


def sign(request: Any) -> None:
    """Let the device tell when that write is complete, and with it all before it."""
    request.send_flags |= _SIGNALED


def link(requests: Sequence[Any]) -> Any:
    """One chain of writes, in their order; the first one."""
    if len(requests) > 1:
        for request, behind in pairwise(requests):
            request.next_wr = behind
    return requests[0]
