"""Rings of a switch that is alone: what its accelerator is told, and what its answers mean.

The counterpart of :class:`~inaproto.core.rendezvous.fabric.control.TreeControl` where there is no fabric,
with the same events and actions: one accelerator has every ring, whatever tree is wished for it. Where the
switch has shards (:mod:`inaproto.core.rendezvous.fabric.shards`), each ring is in the accelerator of one of
them, or in that of the control plane's own process, whose name is ``ALONE``.

Invariants: hosts hear that a ring stands only when the accelerator has taken it; of a ring that it has
refused they hear nothing until the rendezvous gives the ring up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import assert_never

from inaproto.core.rendezvous.events import Send
from inaproto.core.rendezvous.fabric.control import SWITCH_LOST
from inaproto.core.rendezvous.fabric.events import (
    Admit,
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
from inaproto.core.rendezvous.fabric.shards import ALONE as ALONE  # noqa: PLC0414  who has a switch finds it here
from inaproto.core.rendezvous.fabric.shards import Shards
from inaproto.core.switch.accelerator import InstallRing, RemoveRing, RingFault
from inaproto.units import Instant


@dataclass(slots=True)
class _Ring:
    unanswered: int = 0
    """Orders to install it that the accelerator has not answered yet."""
    is_refused: bool = False
    starts: list[Send] = field(default_factory=list)
    """What is sent when it stands."""


class OneSwitch:
    """Pure core; see the module."""

    def __init__(self, shards: int = 0) -> None:
        self._rings: dict[int, _Ring] = {}
        self._shards = Shards(shards)

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
                return [Order(self._shards.take(spec), InstallRing(spec))]
            case RingGone(ring_id):
                self._rings.pop(ring_id, None)
                owner = self._shards.give_up(ring_id, now)
                return [] if owner is None else [Order(owner, RemoveRing(ring_id))]
            case StartAsked(start):
                return self._start_asked(event.ring_id, start)
            case Installed() | Refused() | Faulted() if event.switch != self._shards.owner(event.ring_id):
                return []  # a shard says it of a ring that it has no more
            case Installed(_, ring_id):
                return self._answered(ring_id, is_refused=False)
            case Refused(_, refusal):
                return [*self._answered(refusal.ring_id, is_refused=True), Tell(refusal)]
            case Faulted(_, fault):
                return [Tell(fault)]
            case HostSeen(host, _, chooses_port):
                self._shards.host_seen(host, chooses_port=chooses_port)
                return []
            case SwitchArrived(shard):
                return self._arrived(shard, now)
            case SwitchLost(shard, reason):
                return self._lost(shard, reason)
            case TrunkSaid() | TimePassed():
                return []
            case _:
                assert_never(event)

    def view(self) -> TreeControlView | None:
        """None: what there is to see, the rendezvous and the accelerator show."""
        return None

    def source_port(self, ring_id: int) -> int:
        """UDP port from which the hosts of a ring are to send; 0: whichever they like."""
        return self._shards.source_port(ring_id)

    def _arrived(self, shard: str, now: Instant) -> list[TreeAction]:
        """Its ports open when it knows which packets it must not let pass."""
        actions = self._lost(shard, "it restarted")
        specs = self._shards.arrived(shard, now)
        for spec in specs or ():
            actions += [Order(shard, InstallRing(spec)), Order(shard, RemoveRing(spec.ring_id))]
        return actions if specs is None else [*actions, Admit(shard)]

    def _lost(self, shard: str, reason: str) -> list[TreeAction]:
        actions: list[TreeAction] = []
        for ring_id in self._shards.lost(shard):
            ring = self._rings[ring_id]
            ring.unanswered, ring.is_refused = 0, True
            ring.starts.clear()
            evidence = f"{shard} of the switch is gone: {reason}"
            actions.append(Tell(RingFault(ring_id, 0, SWITCH_LOST, evidence)))
        return actions

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
