"""Connections between the nodes of a tree: in order while they last, late, held up, broken.

The child dials, again and again, until it is told to stop. A connection loses nothing and overtakes
nothing while it lasts; it may break at any word (weather), with its machine, or during a partition, and each
end hears of that at a time of its own: until then it may hear what had been said before, and never anything
of an earlier connection afterwards. Each direction has a stream of fates of its own, so that a log can replay
a run.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from inaproto.faults.streams import Draws
from inaproto.sim.kernel.fates import Fate, LinkFates
from inaproto.sim.kernel.network import Cuts, Way, Ways
from inaproto.wire.messages.models import NodeId, Word

if TYPE_CHECKING:
    from inaproto.sim.models.machine import Machine
    from inaproto.sim.models.world import OverlayWorld

_HARMLESS: Final = Fate()


class Seat(Protocol):
    """A core of one shard on its machine."""

    shard: int
    node: NodeId
    machine: Machine

    def connected(self, peer: NodeId) -> None: ...
    def disconnected(self, peer: NodeId) -> None: ...
    def heard(self, peer: NodeId, word: Word) -> None: ...


@dataclass(eq=False)
class Connection:
    dialer: Seat
    other: Seat
    is_broken: bool = False
    arrival: dict[NodeId, int] = field(default_factory=dict)
    """Arrival of the last item on its way to each end."""
    held: dict[NodeId, deque[Word]] = field(default_factory=dict)
    """Words to each end, stopped by a partition."""

    def far(self, seat: Seat) -> Seat:
        return self.other if seat is self.dialer else self.dialer


class Network(Ways["OverlayWorld"]):
    def __init__(self, world: OverlayWorld, fates: LinkFates | None) -> None:
        super().__init__(world, fates)
        self._cuts = Cuts()
        self._orders: dict[tuple[int, NodeId, NodeId], int] = {}
        """Whom a seat is to dial, and the number of that order."""
        self._current: dict[tuple[int, NodeId, NodeId], Connection] = {}
        """What each seat takes for its connection to a peer."""
        self._number = 0
        self._draws = Draws(world.config.seed, "network")

    def is_connected(self, seat: Seat, peer: NodeId) -> bool:
        return (seat.shard, seat.node, peer) in self._current

    # --- dialling

    def dial(self, seat: Seat, peer: NodeId) -> None:
        key = seat.shard, seat.node, peer
        if key in self._orders:
            return
        self._number += 1
        self._orders[key] = self._number
        self._attempt(seat, peer, 0)

    def hang_up(self, seat: Seat, peer: NodeId) -> None:
        """The other end hears of it after what was said before."""
        key = seat.shard, seat.node, peer
        self._orders.pop(key, None)
        connection = self._current.pop(key, None)
        if connection is None or connection.is_broken:
            return
        self._send(connection, seat, None)
        connection.is_broken = True

    def _attempt(self, seat: Seat, peer: NodeId, delay: int) -> None:
        key = seat.shard, seat.node, peer
        order = self._orders[key]

        def now() -> None:
            if self._orders.get(key) == order and key not in self._current:
                self._try(seat, peer)

        seat.machine.after(
            delay + self._way(seat, self._world.seat(seat.shard, peer)).delays.below(50_000), now
        )

    def _try(self, seat: Seat, peer: NodeId) -> None:
        world = self._world
        other = world.seat(seat.shard, peer)
        fate = self._way(seat, other).next_fate()
        if fate.drop or not other.machine.is_up or self._is_cut(seat, other) or self._is_cut(other, seat):
            world.mark("a connection could not be made")
            seat.disconnected(peer)
            if (seat.shard, seat.node, peer) in self._orders:
                self._attempt(seat, peer, world.config.redial_ns)
            return
        connection = Connection(seat, other)
        before = self._current.get((seat.shard, peer, seat.node))
        if before is not None:
            world.mark("a connection took the place of one that was not known to be broken")
            before.is_broken = True
        self._current[seat.shard, seat.node, peer] = connection
        self._current[seat.shard, peer, seat.node] = connection
        connected = NodeId(seat.node)

        def at_other() -> None:
            if self._current.get((other.shard, other.node, connected)) is connection:
                other.connected(connected)

        other.machine.after(0, at_other)
        seat.connected(peer)

    # --- words

    def tell(self, seat: Seat, peer: NodeId, word: Word) -> None:
        world = self._world
        self.words += 1
        connection = self._current.get((seat.shard, seat.node, peer))
        if connection is None:
            world.mark("a word was said to nobody")
            world.said(seat, peer, word, _HARMLESS, "nobody there")
            return
        fate = self._way(seat, connection.far(seat)).next_fate()
        lost = "connection broken" if connection.is_broken else "breaks the connection" if fate.drop else ""
        world.said(seat, peer, word, fate, lost)
        if lost:
            world.mark("a word was lost with its connection")
            if not connection.is_broken:
                self.break_(connection)
            return
        if fate.delay_ns:
            world.mark("a word was late")
        if self._is_cut(seat, connection.far(seat)):
            world.mark("a word was held up by a partition")
            connection.held.setdefault(peer, deque()).append(word)
            return
        self._send(connection, seat, word, fate.delay_ns)

    def _send(self, connection: Connection, seat: Seat, word: Word | None, late: int = 0) -> None:
        """``None``: the end of it."""
        target = connection.far(seat)
        delay = late + self.delay(self._way(seat, target))
        at = max(self._world.agenda.now + delay, connection.arrival.get(target.node, 0))
        connection.arrival[target.node] = at
        source = seat.node

        def arrive() -> None:
            if self._current.get((target.shard, target.node, source)) is not connection:
                return
            if word is None:
                self._ended(connection, target)
            else:
                target.heard(source, word)

        target.machine.after(at - self._world.agenda.now, arrive)

    # --- breaking

    def break_(self, connection: Connection, *, notice: int | None = None) -> None:
        """Both ends hear of it, each at a time of its own, at most ``notice`` from now."""
        connection.is_broken = True
        connection.held.clear()
        most = self._world.config.delay_max_ns * 4 if notice is None else notice
        for seat in (connection.dialer, connection.other):
            delay = self._draws.below(most + 1)
            seat.machine.after(delay, lambda seat=seat: self._ended(connection, seat))  # type: ignore[misc]

    def _ended(self, connection: Connection, seat: Seat) -> None:
        peer = connection.far(seat).node
        key = seat.shard, seat.node, peer
        if self._current.get(key) is not connection:
            return
        del self._current[key]
        connection.is_broken = True
        seat.disconnected(peer)
        if key in self._orders:
            self._attempt(seat, peer, self._draws.below(self._world.config.redial_ns + 1))

    def reset(self, machine: Machine) -> None:
        """All connections of a machine break."""
        for connection in self._of(machine):
            self.break_(connection)

    def crashed(self, machine: Machine) -> None:
        """The others hear of it at once, or late: the machine is gone without a word."""
        is_loud = self._draws.chance(2, 3)
        if not is_loud:
            self._world.mark("a machine was gone without a word")
        for connection in self._of(machine):
            self.break_(connection, notice=None if is_loud else self._world.config.silent_ns)
        for table in (self._orders, self._current):
            gone = [key for key in table if self._world.seat(key[0], key[1]).machine is machine]
            for key in gone:
                del table[key]

    def _of(self, machine: Machine) -> list[Connection]:
        found: dict[Connection, None] = {}
        for connection in self._current.values():
            if machine in (connection.dialer.machine, connection.other.machine) and not connection.is_broken:
                found[connection] = None
        return list(found)

    # --- partitions

    def cut(self, directions: list[tuple[int, int]]) -> None:
        self._cuts.cut(directions)
        for connection in dict.fromkeys(self._current.values()):
            ends = connection.dialer.machine.number, connection.other.machine.number
            hit = ends in directions or ends[::-1] in directions
            if hit and not connection.is_broken and self._draws.chance(1, 3):
                self.break_(connection, notice=self._world.config.silent_ns)

    def join(self, directions: list[tuple[int, int]]) -> None:
        self._cuts.join(directions)
        for connection in dict.fromkeys(self._current.values()):
            for seat in (connection.dialer, connection.other):
                if not self._is_cut(connection.far(seat), seat):
                    for word in connection.held.pop(seat.node, ()):
                        self._send(connection, connection.far(seat), word)

    def _is_cut(self, source: Seat, target: Seat) -> bool:
        return self._cuts.between(source.machine.number, target.machine.number)

    def _way(self, source: Seat, target: Seat) -> Way:
        return self.way(f"{source.machine.name}>{target.machine.name}/{source.shard}")
