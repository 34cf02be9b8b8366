"""Rings of a switch that is alone: what its accelerator is told, and what its answers mean.

The counterpart of :class:`~inaproto.core.rendezvous.fabric.control.TreeControl` where there is no fabric,
with the same events and actions: one accelerator has every ring, whatever tree is wished for it.

Invariants: hosts hear that a ring stands only when the accelerator has taken it; of a ring that it has
refused they hear nothing until the rendezvous gives the ring up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, assert_never

from inaproto.core.rendezvous.events import Send
from inaproto.core.rendezvous.fabric.events import (
    Faulted,
    HostSeen,
    Installed,
    Order,
    Refused,
    Release,
    RingGone,
    RingWanted,
    StartAsked,
    SwitchArrived,
    SwitchLost,
    Tell,
    TimePassed,
    TreeAction,
    TreeControlView,
    TreeEvent,
    TrunkSaid,
)
from inaproto.core.switch.accelerator import InstallRing, RemoveRing
from inaproto.units import Instant

ALONE: Final = ""
"""Name of the switch."""


@dataclass(slots=True)
class _Ring:
    unanswered: int = 0
    """Orders to install it that the accelerator has not answered yet."""
    is_refused: bool = False
    starts: list[Send] = field(default_factory=list)
    """What is sent when it stands."""


class OneSwitch:
    """Pure core; see the module."""

    def __init__(self) -> None:
        self._rings: dict[int, _Ring] = {}

    @property
    def deadline(self) -> Instant | None:
        """None: nothing is waited for but the accelerator's answer, which comes at once."""
        return None

    def step(self, event: TreeEvent, now: Instant) -> list[TreeAction]:
        match event:
            case RingWanted(spec):
                ring = self._rings.setdefault(spec.ring_id, _Ring())
                ring.unanswered, ring.is_refused = ring.unanswered + 1, False
                ring.starts.clear()
                return [Order(ALONE, InstallRing(spec))]
            case RingGone(ring_id):
                self._rings.pop(ring_id, None)
                return [Order(ALONE, RemoveRing(ring_id))]
            case StartAsked(start):
                return self._start_asked(event.ring_id, start)
            case Installed(_, ring_id):
                return self._answered(ring_id, is_refused=False)
            case Refused(_, refusal):
                return [*self._answered(refusal.ring_id, is_refused=True), Tell(refusal)]
            case Faulted(_, fault):
                return [Tell(fault)]
            case HostSeen() | SwitchArrived() | SwitchLost() | TrunkSaid() | TimePassed():
                return []
            case _:
                assert_never(event)

    def view(self) -> TreeControlView | None:
        """None: what there is to see, the rendezvous and the accelerator show."""
        return None

    def _start_asked(self, ring_id: int, start: Send) -> list[TreeAction]:
        ring = self._rings.get(ring_id)
        if ring is None:  # none of the switches is needed for it
            return [Release(start)]
        if ring.unanswered:
            ring.starts.append(start)
            return []
        return [] if ring.is_refused else [Release(start)]

    def _answered(self, ring_id: int, *, is_refused: bool) -> list[TreeAction]:
        """An order, each of which is answered in its turn: the last answer counts."""
        ring = self._rings.get(ring_id)
        if ring is None or not ring.unanswered:
            return []
        ring.unanswered -= 1
        if ring.unanswered:
            return []
        ring.is_refused = is_refused
        starts, ring.starts = ring.starts, []
        return [] if is_refused else [Release(start) for start in starts]
