"""A ring below a tree of switches, packet by packet: a test says what is sent, and what of it the links lose.

Hosts and packets are those of :class:`~tests.unit.switched_ring.SwitchedRing`; the ports of a switch are its
children in order, then the switch above it. What switches send each other waits on the links until
``settle`` carries it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from inaproto.core.plan.aggregation_tree import SwitchAddress, TreeSwitch, compose_roles
from inaproto.core.switch.accelerator import (
    AcceleratorConfig,
    Action,
    FramesArrived,
    InstallRing,
    PortUp,
)
from inaproto.core.switch.ring_spec import RingSpec
from inaproto.core.switch.tree.translation import start_psn
from inaproto.units import PortId
from inaproto.wire.roce import Opcode, RocePacket
from inaproto.wire.tree_note import TreeNote
from tests.accelerators import make_accelerator
from tests.unit.switched_ring import LATER, NOW, SwitchedRing, block, emitted, mac, others

FIGURE_5: Final = TreeSwitch("S", (TreeSwitch("L1", (0, 1)), TreeSwitch("L2", (2, 3))))
"""Two racks of two workers below a spine; the paper's worker Wn is rank n - 1."""


@dataclass(frozen=True, slots=True)
class Carried:
    """A frame between two switches."""

    sender: str
    receiver: str
    frame: bytes

    @property
    def packet(self) -> RocePacket:
        return RocePacket.decode_frame(self.frame, verify=True)

    @property
    def note(self) -> TreeNote | None:
        """What it tells, if it is a note."""
        packet = self.packet
        return TreeNote.decode(packet.payload) if packet.opcode == Opcode.RC_SEND_ONLY else None


def addresses_of(tree: TreeSwitch) -> dict[str, SwitchAddress]:
    return {
        switch.name: SwitchAddress(bytes([2, 0, 0, 0, 9, number]), bytes([10, 9, 0, number]))
        for number, switch in enumerate(tree.walk())
    }


def ports_of(tree: TreeSwitch) -> dict[str, dict[str, PortId]]:
    """By switch and neighbour (a rank is ``"0"``): the children in order, then the switch above."""
    ports: dict[str, dict[str, PortId]] = {}
    for switch in tree.walk():
        below = [child.name if isinstance(child, TreeSwitch) else str(child) for child in switch.children]
        above = ports.get(switch.name, {})
        ports[switch.name] = {name: PortId(number) for number, name in enumerate(below)}
        ports[switch.name] |= {name: PortId(len(below)) for name in above}
        for child in switch.children:
            if isinstance(child, TreeSwitch):
                ports[child.name] = {switch.name: PortId(-1)}  # its number follows from its children
    return ports


class SwitchedTree:
    """Every switch with its ports up, the hosts' addresses learnt and the ring installed."""

    is_beside = False
    """The fabric's own tree is another one."""

    def __init__(
        self, tree: TreeSwitch = FIGURE_5, *, beside: SwitchedTree | None = None, **changes: Any
    ) -> None:
        """``beside``: at the switches of that ring, with its hosts and links."""
        self.tree = tree
        self.hosts = SwitchedRing(len(tree.ranks), **changes)
        self.ports = ports_of(tree)
        self.switches = {switch.name: make_accelerator(self.config_of(switch.name)) for switch in tree.walk()}
        self.under_way: deque[Carried] = deque()
        self.carried: list[Carried] = []
        """Every frame that a switch sent to another, lost or not."""
        self.got: dict[int, list[bytes]] = {rank: [] for rank in tree.ranks}
        """By rank: what its host received."""
        self.said: list[tuple[str, Action]] = []
        self.at = {
            rank: name for name, ports in self.ports.items() for rank in tree.ranks if str(rank) in ports
        }
        """The switch at which each host is."""
        self.added_at: dict[int, str] = {}
        """The switch at which each rank is an input."""
        for name, spec in self.specs().items():
            if spec.role is not None:
                self.added_at.update(dict.fromkeys(spec.role.ranks, name))
        if beside is None:
            self._plug_in()
        else:
            self.switches, self.under_way, self.carried = beside.switches, beside.under_way, beside.carried
            self.got, self.said = beside.got, beside.said
        for name, spec in self.specs().items():
            assert self.switches[name].step(InstallRing(spec), NOW) == []

    def _plug_in(self) -> None:
        for name, accelerator in self.switches.items():
            for port in self.ports[name].values():
                accelerator.step(PortUp(port), NOW)
        for rank in self.tree.ranks:
            self.from_host(rank, b"\xff" * 6 + mac(rank) + bytes(48))
        self.settle()
        self.forget()

    def config_of(self, name: str) -> AcceleratorConfig:
        return AcceleratorConfig()

    def specs(self) -> dict[str, RingSpec]:
        """What every switch is told."""
        roles = compose_roles(
            self.tree,
            ring_id=self.hosts.spec.ring_id,
            addresses=addresses_of(self.tree),
            port_toward=self.ports,
            is_beside=self.is_beside,
        )
        return {name: replace(self.hosts.spec, role=role) for name, role in roles.items()}

    def forget(self) -> None:
        """Of what was carried, received and said."""
        self.carried.clear()
        self.said.clear()
        for frames in self.got.values():
            frames.clear()

    # -- what happens

    def from_host(self, rank: int, *frames: bytes) -> None:
        """Frames arrive from a rank's host, each a block of its own."""
        self.arrive(self.at[rank], self.ports[self.at[rank]][str(rank)], *frames)

    def arrive(self, name: str, port: int, *frames: bytes) -> list[Action]:
        blocks = [block(frame) for frame in frames]
        actions = self.switches[name].step(FramesArrived(PortId(port), blocks), NOW)
        self.take(name, actions)
        return actions

    def take(self, name: str, actions: list[Action]) -> None:
        """Note what a switch did, and put its frames on the links."""
        neighbour = {int(port): other for other, port in self.ports[name].items()}
        for port, frame in emitted(actions):
            if neighbour[port] in self.switches:
                sent = Carried(name, neighbour[port], frame)
                self.carried.append(sent)
                self.under_way.append(sent)
            else:
                self.got[int(neighbour[port])].append(frame)
        self.said += [(name, action) for action in others(actions)]

    def send(self, rank: int, serial: int, *offsets: int, **changes: Any) -> None:
        """Packets of a message from a rank's host, all of them if no offsets are named."""
        frames = self.hosts.message(rank, serial, **changes)
        self.from_host(rank, *(frames[offset] for offset in offsets or range(len(frames))))

    def settle(self, lost: Callable[[Carried], bool] = lambda carried: False) -> None:
        """Carry what is under way, and what follows from it, less what is lost."""
        while self.under_way:
            sent = self.under_way.popleft()
            if not lost(sent):
                self.arrive(sent.receiver, self.ports[sent.receiver][sent.sender], sent.frame)

    def finish(
        self, serial: int, lost: Callable[[Carried], bool] = lambda carried: False, **changes: Any
    ) -> None:
        """The message from every rank."""
        for rank in self.tree.ranks:
            self.send(rank, serial, **changes)
        self.settle(lost)

    # -- what should come out

    def result(self, rank: int, serial: int, offset: int, **changes: Any) -> bytes:
        """What the receiver on ``rank``'s connection gets, of int32 sums."""
        spliced = self.hosts.result(rank, serial, offset, **changes)
        if self.added_at[rank] == self.added_at[(rank + 1) % len(self.at)]:
            return spliced
        packet = RocePacket.decode_frame(spliced)  # its header is made where it ends: it asks for an ACK
        return replace(packet, bth=replace(packet.bth, ack_request=True)).encode_frame()

    def results(self, serial: int, *offsets: int, **changes: Any) -> dict[int, list[bytes]]:
        """By receiving rank: the results of a message, all of them if no offsets are named."""
        packets = changes.get("packets", self.hosts.spec.message_packets)
        size = len(self.at)
        return {
            (rank + 1) % size: [
                self.result(rank, serial, offset, **changes) for offset in offsets or range(packets)
            ]
            for rank in range(size)
        }

    def psn_at(self, position: int) -> int:
        """On virtual connections; position ``message * message_packets + offset``."""
        return (start_psn(self.hosts.spec) + position) & 0xFF_FFFF

    def positions(self, carried: list[Carried]) -> list[int]:
        """Of packets of the first messages."""
        return [(sent.packet.bth.psn - self.psn_at(0)) & 0xFF_FFFF for sent in carried]

    def between(self, sender: str, receiver: str) -> list[Carried]:
        return [sent for sent in self.carried if (sent.sender, sent.receiver) == (sender, receiver)]

    def count(self, name: str) -> dict[str, int]:
        """Counters of a switch that are not 0; those of dropped packets by rule, after all waiting."""
        self.switches[name].step(FramesArrived(PortId(0), ()), LATER)
        counters = self.switches[name].view().counters
        kept = {field: getattr(counters, field) for field in counters.__dataclass_fields__}
        dropped: dict[str, int] = kept.pop("dropped")
        return {field: value for field, value in {**kept, **dropped}.items() if value}


def data_of(carried: list[Carried]) -> list[Carried]:
    """Without notes."""
    return [sent for sent in carried if sent.note is None]
