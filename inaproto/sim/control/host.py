"""A host of the control world: the seats that the controller wants on it, and the leases that they renew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inaproto.core.migration.ledger import NotHeld, Renew, Renewed
from inaproto.sim.control.node import Node
from inaproto.sim.control.seat import SimSeat
from inaproto.sim.control.words import (
    Heartbeat,
    JobOrder,
    Orders,
    PeerSays,
    SeatPhase,
    SeatSays,
    ToSeat,
)
from inaproto.sim.kernel.faults import Directions
from inaproto.wire.messages.sharing import PeerMessage, Seat, SeatMessage

if TYPE_CHECKING:
    from inaproto.sim.control.world import ControlWorld


class ControlHost(Node):
    """What it is told by the controller is orders, and what it says are heartbeats: either may be lost."""

    def __init__(self, world: ControlWorld, number: int, index: int) -> None:
        super().__init__(world, number, f"host{index}")
        self.index = index
        self.seats: dict[str, SimSeat] = {}
        """Its seats by job."""
        self.stopped_until = 0
        """Its processes begin nothing until then."""
        self.half_open: Directions | None = None
        """Directions of its session with the controller that are dead, until it makes it anew."""
        self._slowness = 1
        self._slow_until = 0
        self._lives = 0

    def begin(self) -> None:
        self.seats = {}
        self._number = 0
        self._newest = (0, 0)
        self._heard_at = self.now
        """When it heard last that a heartbeat had come, or made its session."""
        self._heard_number = 0
        self.makes_session()
        self._beat()
        self._renew()

    def lose(self) -> None:
        for seat in self.seats.values():
            seat.close()
        self.seats = {}

    def lost_controller(self) -> None:
        """It crashed, which ends its connections."""
        for seat in list(self.seats.values()):
            seat.lost_controller()

    def makes_session(self) -> None:
        """Make the session with the controller anew: whatever was dead of it is whole again."""
        if self.half_open is not None:
            self.world.note(self, "session is whole again", "")
            self.world.network.join(self.half_open)
            self.world.stops.session_is_whole(self.name)
            self.half_open = None

    def slow(self, times: int, duration: int) -> None:
        """All that it does for its jobs takes so many times as long for ``duration``."""
        self._slowness, self._slow_until = times, self.world.agenda.now + duration

    @property
    def slowness(self) -> int:
        """How many times as long as usual what it does takes now."""
        return self._slowness if self.world.agenda.now < self._slow_until else 1

    def next_life(self) -> int:
        """For a new seat."""
        self._lives += 1
        return self._lives

    def _beat(self) -> None:
        self._look_at_session()
        self._say_heartbeat()
        self.after(self.world.config.heartbeat_ns, self._beat)

    def _look_at_session(self) -> None:
        """One direction may be dead, whichever: then no heartbeat is said to have come."""
        keepalive = self.world.config.keepalive_ns
        if keepalive < 0 or self.now - self._heard_at <= keepalive:
            return
        self.world.note(self, "makes its session anew", "")
        if self.half_open is not None:
            self.world.mark("a half-open session was found by its keep-alive")
        self._heard_at = self.now
        self.makes_session()
        self.lost_controller()

    def _say_heartbeat(self) -> None:
        self._number += 1
        seats = tuple(seat.seen() for seat in self.seats.values())
        beat = Heartbeat(self.index, self.incarnation, self._number, seats, self._newest)
        self.send(self.world.controller, beat)

    def _renew(self) -> None:
        world = self.world
        for lease in [seat.lease for seat in self.seats.values() if seat.lease is not None]:
            for index in world.config.trees[lease.tree]:
                self.send(world.switches[index], Renew(self.name, lease))
        self.after(world.config.slot_lease_ns // 4, self._renew)

    def received(self, source: Node, message: Any) -> None:
        match message:
            case Orders():
                self._ordered(message)
            case ToSeat(to, word):
                seat = self.seats.get(to.job)
                if seat is not None:
                    seat.hear_coordinator(word)
            case PeerSays(to, sender, word):
                seat = self.seats.get(to.job)
                if seat is not None:
                    seat.hear_peer(sender, word)
            case NotHeld(lease, _):
                seat = self.seats.get(lease.job)
                if seat is not None:
                    seat.lost_slot(lease)
            case Renewed():
                pass
            case _:
                raise AssertionError(f"{self.name}: {message}")

    def _ordered(self, orders: Orders) -> None:
        boot, number = orders.heard
        if boot == self.incarnation and number > self._heard_number:
            self._heard_number, self._heard_at = number, self.now
        if (orders.term, orders.number) <= self._newest:
            return
        self._newest = orders.term, orders.number
        wanted = {order.job for order in orders.jobs}
        changed = False
        for name in [name for name in self.seats if name not in wanted]:
            self.seats.pop(name).leave()
            changed = True
        for order in orders.jobs:
            changed |= self._has(order)
        if changed:
            self._say_heartbeat()

    def _has(self, order: JobOrder) -> bool:
        """Whether that changes anything."""
        if order.boot not in (0, self.incarnation):
            return False
        seat = self.seats.get(order.job)
        if seat is None:
            if order.begins:
                return False
            job = self.world.jobs[order.job]
            seat = self.seats[order.job] = job.seats[self.index] = SimSeat(self, job)
            self.world.note(self, "is ready for", order.job)
            return True
        changed = order.has_news and seat.take(order.lease)
        if order.begins and seat.phase is SeatPhase.READY:
            seat.begin()
            return True
        return changed

    def tell_coordinator(self, tree: int, message: SeatMessage) -> None:
        self.send(self.world.controller, SeatSays(tree, message))

    def tell_peer(self, to: Seat, sender: Seat, message: PeerMessage) -> None:
        self.send(self.world.host_named(to.host), PeerSays(to, sender, message))
