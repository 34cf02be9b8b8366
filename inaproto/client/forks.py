"""What a child of ``fork`` must not keep: the descriptors by whose end others learn that a rank has ended.

A data loader's workers are forked from a rank and inherit its socket. While one of them lives, the kernel
does not close the connection of a rank that was killed, and nobody hears of its death before the host
daemon's watchdog does. So in the child, ``/dev/null`` takes the place of each such descriptor: its number
stays taken, so nothing else is closed or written to by whoever believes to have the socket.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from typing import Protocol


class Inherited(Protocol):
    """Whoever has descriptors, or threads, that a child of a fork has no use for."""

    def vital_descriptors(self) -> Iterable[int]:
        """Others learn of this rank's end by theirs; negative ones are of no account."""
        ...

    def after_fork(self) -> None:
        """In the child: threads that had a lock are not there."""
        ...


_HOLDERS: weakref.WeakSet[Inherited] = weakref.WeakSet()


def keep_from_children(holder: Inherited) -> None:
    """Let no child of a fork keep ``holder``'s descriptors, as long as it is there."""
    _HOLDERS.add(holder)


def _let_go() -> None:
    for holder in list(_HOLDERS):
        holder.after_fork()
    held = [number for holder in list(_HOLDERS) for number in holder.vital_descriptors() if number >= 0]
    if not held:
        return
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number in held:
        os.dup2(null, number, inheritable=False)
    os.close(null)


os.register_at_fork(after_in_child=_let_go)
