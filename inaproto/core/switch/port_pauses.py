"""Pauses of a switch's ports: what the far end of a link asks silence of is held back.

All of it (IEEE 802.3 annex 31B), or what has a priority (PFC, IEEE 802.1Qbb): as NICs without hardware do
(:mod:`inaproto.wire.pause`).
A frame's priority is that of its VLAN tag, 0 without one. What is held leaves in order when its priority may
go on, and is bounded: who pauses a link for long loses frames, which are counted, as at any switch. A port
that is not paused does not pass here. Where the port is an interface with hardware, the network card keeps
such frames to itself, and does what they say.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from heapq import merge
from itertools import count
from typing import Any, Final

import numpy as np

from inaproto.units import MS, Frames, Instant, PortId
from inaproto.wire.pause import silence_asked
from inaproto.wire.vlan import TAG_BEGIN, TAG_END

HELD_BYTES_MAX: Final = 16 << 20
BLOCK_BYTES: Final = 512
"""What an array and its place in a queue take beside its rows, about."""
HELD_TOO_MUCH: Final = "held back by a pause for too long"
PRIORITIES: Final = 8
NEVER_PAUSED: Final = {"pauses": 0, "paused_ms": 0}
_TAG: Final = b"\x81\x00"


Silences = Mapping[int, int]
"""For how many ns who sends with a priority is to be silent, by priority; 0: it may go on."""


def silences_asked(frames: Frames) -> Silences:
    """What the far end of a link asks for with these frames; empty: they are about something else."""
    asked = {of: silence_asked(frames, of) for of in range(PRIORITIES)}
    return {of: silence_ns for of, silence_ns in asked.items() if silence_ns is not None}


class PortPauses:
    """What one port holds back; ``send`` passes frames on, and returns how many were not accepted.

    ``drop`` is told of frames that are lost here, by which rule and how many.
    """

    def __init__(self, send: Callable[[Sequence[Frames]], int], drop: Callable[[str, int], None]) -> None:
        self._send = send
        self._drop = drop
        self._until: dict[int, Instant] = {}
        """Priorities that are silent, and until when."""
        self._held: dict[int, deque[tuple[int, Frames]]] = {}
        """Rows by priority, each with a number that says what came before it."""
        self._numbers = count()
        self._bytes = 0
        self._count = 0
        self._since = Instant(0)
        """When the first of the present pauses began."""
        self._paused_ns = 0

    @property
    def until(self) -> Instant | None:
        """When the next priority may go on; None: no pause lasts."""
        return min(self._until.values(), default=None)

    def ask(self, silences: Silences, frames: int, now: Instant) -> None:
        """The far end asks for this, with so many frames; ``until`` may change."""
        self._count += frames
        was_paused = bool(self._until)
        for priority, silence_ns in silences.items():
            self._until[priority] = Instant(now + silence_ns)
        if not was_paused:
            self._since = now
        self.release(now)

    def push(self, blocks: Sequence[Frames]) -> int:
        """Send the frames that may go, hold others; returns how many are lost."""
        lost = 0
        for frames in blocks:
            for priority, rows in _by_priority(frames):
                if priority not in self._until:
                    lost += self._send((rows,))
                elif self._bytes + _room(rows) > HELD_BYTES_MAX:
                    self._drop(HELD_TOO_MUCH, len(rows))
                    lost += len(rows)
                else:
                    self._held.setdefault(priority, deque()).append((next(self._numbers), rows.copy()))
                    self._bytes += _room(rows)
        return lost

    def release(self, now: Instant) -> None:
        """Send what has been silent for long enough."""
        over = [priority for priority, until in self._until.items() if until <= now]
        if not over:
            return
        for priority in over:
            del self._until[priority]
        if not self._until:
            self._paused_ns += now - self._since
        held = (self._held.pop(priority, ()) for priority in over)
        free = [rows for _, rows in merge(*held)]
        self._bytes -= sum(map(_room, free))
        if free:
            self._send(free)

    def status(self, now: Instant) -> dict[str, Any]:
        lasts = now - self._since if self._until else 0
        return {"pauses": self._count, "paused_ms": round((self._paused_ns + lasts) / MS, 3)}


class PausedPorts:
    """The ports of a switch whose far ends have ever asked for silence."""

    def __init__(self) -> None:
        self._all: dict[PortId, PortPauses] = {}
        self.silent: dict[PortId, PortPauses] = {}
        """Those that are silent now, wholly or in part: what is for them is pushed there."""

    def ask(
        self,
        port_id: PortId,
        silences: Silences,
        frames: int,
        now: Instant,
        send: Callable[[Sequence[Frames]], int],
        drop: Callable[[str, int], None],
    ) -> None:
        """The far end of a port asks for this, with so many frames; ``send`` and ``drop`` are those of
        :class:`PortPauses`, the same each time until the port is forgotten."""
        pauses = self._all.get(port_id)
        if pauses is None:
            pauses = self._all[port_id] = PortPauses(send, drop)
        pauses.ask(silences, frames, now)
        self._look_at(port_id, pauses)

    @property
    def until(self) -> Instant | None:
        """When the next may go on; None: no port is silent."""
        return min((at for its in self.silent.values() if (at := its.until) is not None), default=None)

    def release(self, now: Instant) -> list[PortId]:
        """Let those go on that have been silent for long enough; returns all that were silent."""
        were = list(self.silent.items())
        for port_id, pauses in were:
            pauses.release(now)
            self._look_at(port_id, pauses)
        return [port_id for port_id, _ in were]

    def forget(self, port_id: PortId) -> None:
        """The port is down: what it held back is lost with it."""
        self._all.pop(port_id, None)
        self.silent.pop(port_id, None)

    def status(self, port_id: PortId, now: Instant) -> dict[str, Any]:
        return self._all[port_id].status(now) if port_id in self._all else NEVER_PAUSED

    def _look_at(self, port_id: PortId, pauses: PortPauses) -> None:
        if pauses.until is not None:
            self.silent[port_id] = pauses
        else:
            self.silent.pop(port_id, None)


def _room(rows: Frames) -> int:
    """Bytes that count for rows that are held: many short ones must not take much more."""
    return rows.size + BLOCK_BYTES


def _by_priority(frames: Frames) -> list[tuple[int, Frames]]:
    """Rows of each priority, in order."""
    if frames.shape[1] < TAG_END or not len(frames):
        return [(0, frames)]
    is_tagged = (frames[:, TAG_BEGIN] == _TAG[0]) & (frames[:, TAG_BEGIN + 1] == _TAG[1])
    priorities = np.where(is_tagged, frames[:, TAG_BEGIN + 2] >> 5, 0)
    if (priorities == priorities[0]).all():
        return [(int(priorities[0]), frames)]
    return [(int(of), frames[priorities == of]) for of in np.unique(priorities)]
