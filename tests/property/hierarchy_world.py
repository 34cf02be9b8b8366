"""A ring below a tree of real accelerators, from one seed: hosts as NICs are, links that lose and reorder.

Each rank is a host on a port of its switch; it sends messages within a window of N, goes back after a NAK or
a timeout, and NAKs the first gap of what it receives. Each link is a queue each way: it loses, duplicates,
reorders, delays and damages frames. What this module promises to find:

- a result that is not the exact nested reduction in the order of the tree, or has wrong headers or checksums;
- a ring that does not finish once the weather is good;
- a fault or a blame that nobody deserved;
- a frame that came in and is not counted exactly once.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

import numpy as np

from inaproto.core.plan.aggregation_tree import SwitchAddress, TreeSwitch, compose_roles
from inaproto.core.switch.accelerator import (
    Accelerator,
    Action,
    Counters,
    EmitFrames,
    ForLink,
    FramesArrived,
    InstallRing,
    PortUp,
    RingFault,
    RingRefused,
)
from inaproto.core.switch.ring_spec import RingSpec
from inaproto.errors import Blame, DecodeError
from inaproto.units import Frames, Instant, PortId
from inaproto.wire.ina_header import FLAG_RESULT, FLAGS_OFFSET, INA_HEADER_BYTES, InaHeader
from inaproto.wire.roce import RocePacket
from tests.property.accelerator_rings import Flow, Packet, RingTraffic, _fill, flow_spec, host_mac
from tests.unit.exact_reference import exact

NOW: Final = Instant(0)
TURNS_MAX: Final = 60_000
QUIET_TURNS: Final = 40
"""Turns in which nothing is under way, after which every sender's timer expires."""
Plug = tuple[str, int]
"""(switch, port), or ("host", number)."""


@dataclass(slots=True)
class Weather:
    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    late: float = 0.0
    """Copies that come much later: only where sequence numbers are wide enough to tell them apart."""


@dataclass(slots=True)
class Wires:
    """Which plug leads to which, and what is under way to each."""

    other_end: dict[Plug, Plug] = field(default_factory=dict)
    queues: dict[Plug, deque[bytes]] = field(default_factory=dict)
    carried: dict[Plug, int] = field(default_factory=dict)
    """Frames that were sent towards each plug."""

    def join(self, one: Plug, other: Plug) -> None:
        for here, there in ((one, other), (other, one)):
            self.other_end[here] = there
            self.queues[here] = deque()
            self.carried[here] = 0


def draw_tree(rng: Random, ranks: int, depth: int, *, partial: float) -> TreeSwitch:
    """A tree of that many ranks, at most ``depth`` switches deep."""
    names = iter(f"s{number}" for number in range(1000))
    numbers = list(range(ranks))
    if rng.random() < 0.4:
        rng.shuffle(numbers)

    def switch(below: list[int], left: int, *, root: bool) -> TreeSwitch:
        name = next(names)
        children: list[TreeSwitch | int] = []
        if left == 1:
            children = list(below)
        else:
            while below:
                count = rng.randint(1, len(below))
                part, below = below[:count], below[count:]
                if rng.random() < 0.3:
                    children += part
                else:
                    children.append(switch(part, left - 1, root=False))
        return TreeSwitch(name, tuple(children), aggregates=root or rng.random() >= partial)

    return switch(numbers, depth, root=True)


class HierarchyWorld:
    rings_count = 1

    def __init__(
        self,
        seed: int,
        *,
        tree: TreeSwitch | None = None,
        weather: float | None = None,
        partial: float | None = None,
        ranks: int | None = None,
        selective: bool | None = None,
    ) -> None:
        """``selective``: results leave as they are done; None: in half of the worlds."""
        self.seed = seed
        self.is_selective = Random(f"{seed}/selective").random() < 0.5 if selective is None else selective
        rng = Random(f"{seed}/tree")
        self._turns = Random(f"{seed}/turns")
        self._luck = Random(f"{seed}/weather")
        if tree is None:
            count = ranks or rng.choice([2, 3, 4, 4, 5, 6, 8, 12])
            chance = rng.choice([0.0, 0.0, 0.4]) if partial is None else partial
            tree = draw_tree(rng, count, rng.choice([1, 2, 2, 3, 3]), partial=chance)
        self.tree = tree
        strength = rng.choice([0.0, 0.02, 0.1, 0.2]) if weather is None else weather
        self.weather = Weather(*(strength * rng.random() for _ in range(5)))
        self._late: list[tuple[Plug, bytes]] = []
        self.wires = Wires()
        self.ports: dict[str, dict[str, PortId]] = {}
        self.blames: list[Blame] = []
        self.faults: list[tuple[str, RingFault]] = []
        self.frames_in: dict[str, int] = {}
        self._wire_up()
        self.rings = [self._draw_ring(rng, len(tree.ranks), number) for number in range(self.rings_count)]
        self.ring = self.rings[0]
        if any((ring.spec.psn_bits, ring.spec.msg_id_bits) != (24, 32) for ring in self.rings):
            self.weather.late = 0.0
        self.all_flows = [flow for ring in self.rings for flow in ring.flows]
        self.flows = {flow.connection: flow for flow in self.all_flows}
        self._by_send_qp = {flow.send_qp: flow for flow in self.all_flows}
        for ring in self.rings:
            self._nest(ring)
        self.switches = {switch.name: Accelerator() for switch in tree.walk()}
        self._start()

    # -- the beginning -------------------------------------------------------------------------

    def _wire_up(self) -> None:
        for switch in self.tree.walk():
            self.frames_in[switch.name] = 0
            for child in switch.children:
                port = len(self.ports.setdefault(switch.name, {}))
                if isinstance(child, int):
                    self.ports[switch.name][f"host {child}"] = PortId(port)
                    self.wires.join((switch.name, port), ("host", child))
                else:
                    up = len(self.ports.setdefault(child.name, {}))
                    self.ports[switch.name][child.name] = PortId(port)
                    self.ports[child.name][switch.name] = PortId(up)
                    self.wires.join((switch.name, port), (child.name, up))

    def _draw_ring(self, rng: Random, ranks: int, number: int) -> RingTraffic:
        window = rng.choice([1, 2, 4])
        length = rng.randint(1, 4 if window == 4 else 6)
        tight = (4 * window * length - 1).bit_length()
        psn_bits = rng.choice([24, 24, tight + 2])
        flows = []
        for rank in range(ranks):
            into = (rank + 1) % ranks
            base = 0x100 + 0x40 * number
            flow = Flow(number, rank, rank, into, base + 0x20 + rank, base + into, (1 << psn_bits) - 1)
            flow.ip_id = rng.getrandbits(16)
            flows.append(flow)
        spec = RingSpec(
            ring_id=rng.choice([5, 0xFFFF_FF01]) + number,
            epoch=rng.choice([0, 0xFFFF_FFFF]),
            key=rng.getrandbits(64),
            window_messages=window,
            message_packets=length,
            mtu=8 * rng.randint(8, 16),
            flows=tuple(flow_spec(flow) for flow in flows),
            psn_bits=psn_bits,
            selective=self.is_selective,
            msg_id_bits=rng.choice([32, (2 * window).bit_length() + 2]),
        )
        ring = RingTraffic(spec, flows)
        self._fill(rng, ring)
        return ring

    def _fill(self, rng: Random, ring: RingTraffic) -> None:
        """Decide what the ranks send."""
        _fill(rng, ring, disagreement=False)

    def _nest(self, ring: RingTraffic) -> None:
        """What each packet's result must be: the reduction in the order of the tree."""
        header: InaHeader | None = None
        for packets in zip(*(flow.packets for flow in ring.flows), strict=True):
            if packets[0].offset == 0:
                header = InaHeader.decode(packets[0].template.payload)
            assert header is not None
            result = nested(self.tree, header, packets)
            for packet in packets:
                packet.result = result

    def specs(self, number: int = 0) -> dict[str, RingSpec]:
        """Of every switch, for one ring."""
        ring = self.rings[number]
        names = [switch.name for switch in self.tree.walk()]
        addresses = {
            name: SwitchAddress(bytes([2, 0, 0, 0, 9, number]), bytes([10, 9, 0, 1 + number]))
            for number, name in enumerate(names)
        }
        roles = compose_roles(
            self.tree, ring_id=ring.spec.ring_id, addresses=addresses, port_toward=self.ports
        )
        return {name: replace(ring.spec, role=role) for name, role in roles.items()}

    def _start(self) -> None:
        for name, accelerator in self.switches.items():
            for port in self.ports[name].values():
                accelerator.step(PortUp(port), NOW)
        good, self.weather = self.weather, Weather()
        for flow in self.ring.flows:
            self._send(("host", flow.host), b"\xff" * 6 + host_mac(flow.host) + bytes(48))
        while self._anything_under_way():
            self._deliver()
        self.weather = good
        for number in range(self.rings_count):
            for name, spec in self.specs(number).items():
                assert self.switches[name].step(InstallRing(spec), NOW) == []

    # -- the loop ------------------------------------------------------------------------------

    def run(self) -> None:
        """Until every rank has every result; the weather is good in the second part."""
        good_from = TURNS_MAX // 12
        quiet = 0
        for turn in range(TURNS_MAX):
            if self.finished():
                break
            if turn == good_from:
                self.weather = Weather()
            self.turn()
            quiet = 0 if self._anything_under_way() else quiet + 1
            if quiet > QUIET_TURNS * len(self.all_flows):
                quiet = 0
                self.expire()
        assert self.finished(), f"seed {self.seed}: not finished: {self.where()}"
        while self._anything_under_way():
            self._deliver()
        self.check_ledger()
        assert self.faults == []
        assert self.blames == []

    def turn(self) -> None:
        if self._late and self._luck.random() < 0.1:
            plug, frame = self._late.pop(self._luck.randrange(len(self._late)))
            self.wires.queues[plug].append(frame)
            self.wires.carried[plug] += 1
        if self._anything_under_way() and self._turns.random() < 0.7:
            self._deliver()
            return
        flow = self._turns.choice(self.all_flows)
        for _ in range(self._turns.choice([1, 3, 8])):
            if flow.next < len(flow.packets) and self.may_send(flow):
                self._send(("host", flow.host), flow.frame(self._turns, flow.next))
                flow.next += 1

    def may_send(self, flow: Flow) -> bool:
        return self.rings[flow.ring].may_send(flow)

    def expire(self) -> None:
        """Every sender's timer."""
        for flow in self.all_flows:
            flow.next = flow.expected

    def finished(self) -> bool:
        return all(flow.expected == len(flow.packets) for flow in self.all_flows)

    def where(self) -> list[tuple[int, int, int]]:
        return [(flow.expected, flow.next, len(flow.packets)) for flow in self.all_flows]

    def counters(self, name: str) -> Counters:
        return self.switches[name].counters

    # -- links ---------------------------------------------------------------------------------

    def _anything_under_way(self) -> bool:
        return any(self.wires.queues.values())

    def _send(self, plug: Plug, frame: bytes) -> None:
        """Put a frame on the wire at ``plug``."""
        there = self.wires.other_end[plug]
        self.wires.carried[there] += 1
        luck, weather = self._luck, self.weather
        if luck.random() < weather.drop:
            return
        if luck.random() < weather.corrupt and is_sound(frame):  # a second harm might undo the first
            harmed = bytearray(frame)
            harmed[luck.randrange(14, len(frame))] ^= 1 << luck.randrange(8)
            frame = bytes(harmed)
        queue = self.wires.queues[there]
        queue.append(frame)
        if luck.random() < weather.late:
            self._late.append((there, frame))
        if luck.random() < weather.duplicate:
            queue.append(frame)
        if luck.random() < weather.reorder and len(queue) > 1:
            queue.insert(len(queue) - luck.randint(2, min(len(queue), 6)), queue.pop())

    def _deliver(self) -> None:
        plug = self._turns.choice([plug for plug, queue in self.wires.queues.items() if queue])
        queue = self.wires.queues[plug]
        frames = [queue.popleft() for _ in range(min(len(queue), self._turns.choice([1, 2, 5, 40])))]
        name, number = plug
        if name == "host":
            for frame in frames:
                self._received(number, frame)
        else:
            self.arrive(name, number, frames)

    def arrive(self, name: str, port: int, frames: list[bytes]) -> list[Action]:
        self.frames_in[name] += len(frames)
        actions = self.switches[name].step(FramesArrived(PortId(port), blocks_of(frames)), NOW)
        for action in actions:
            match action:
                case EmitFrames():
                    for row in action.frames:
                        self._send((name, int(action.port)), row.tobytes())
                case Blame():
                    self.blames.append(action)
                case RingFault():
                    self.faults.append((name, action))
                case RingRefused() | ForLink():
                    raise AssertionError(action)
        return actions

    # -- hosts ---------------------------------------------------------------------------------

    def _received(self, host: int, frame: bytes) -> None:
        if frame[:6] != host_mac(host):
            return
        try:
            packet = RocePacket.decode_frame(frame)
            RocePacket.decode_frame(frame, verify=True)
        except DecodeError:
            return
        if packet.opcode == 0x11:
            flow = self._by_send_qp.get(packet.bth.dest_qp)
            if flow is not None and packet.aeth is not None and packet.aeth.is_nak:
                flow.next = min(flow.next, max(flow.index_of(packet.bth.psn), 0))
            return
        flow = self.flows.get((packet.ip.src, packet.ip.dst, packet.bth.dest_qp))
        assert flow is not None, f"seed {self.seed}: {packet} on no connection of the ring"
        assert flow.receiver == host
        index = flow.index_of(packet.bth.psn)
        self._check(flow, index, packet)
        if index == flow.expected:
            flow.expected += 1
            flow.nak_sent = False
        elif index > flow.expected and not flow.nak_sent:
            flow.nak_sent = True
            self._send(("host", host), flow.nak())

    def _check(self, flow: Flow, index: int, got: RocePacket) -> None:
        """A result is what the tree makes of all packets, under headers as its sender's."""
        where = f"seed {self.seed}, rank {flow.rank}, packet {index}"
        assert 0 <= index < len(flow.packets), where
        packet = flow.packets[index]
        wanted = packet.template
        skip = INA_HEADER_BYTES if packet.offset == 0 else 0
        head = bytearray(wanted.payload[:skip])
        if head:
            head[FLAGS_OFFSET] |= FLAG_RESULT
        assert packet.result is not None
        assert got.payload == bytes(head) + packet.result, where
        assert (got.eth, got.reth, got.imm, got.pad) == (
            wanted.eth,
            wanted.reth,
            wanted.imm,
            -len(wanted.payload) % 4,
        ), where
        assert got.udp.src_port == wanted.udp.src_port, where
        assert (got.bth.opcode, got.bth.psn) == (wanted.bth.opcode, wanted.bth.psn), where

    def check_ledger(self) -> None:
        """Every frame that came into a switch is counted once."""
        for name, accelerator in self.switches.items():
            counters = accelerator.counters
            told = counters.aggregated_in + counters.results_in + counters.notes_in
            told += counters.bridged + counters.steered + sum(counters.dropped.values())
            told += accelerator.waiting
            assert told == self.frames_in[name], f"seed {self.seed}, {name}: {counters}"


def is_sound(frame: bytes) -> bool:
    """Whether a frame is a whole RoCEv2 packet with right checksums."""
    try:
        RocePacket.decode_frame(frame, verify=True)
    except DecodeError:
        return False
    return True


def nested(tree: TreeSwitch, header: InaHeader, packets: tuple[Packet, ...]) -> bytes:
    """The exact reduction of one packet of every rank, each aggregating switch a level of its own."""
    skip = INA_HEADER_BYTES if packets[0].offset == 0 else 0

    def inputs(switch: TreeSwitch) -> list[bytes]:
        found: list[bytes] = []
        for child in switch.children:
            if isinstance(child, int):
                found.append(packets[child].template.payload[skip:])
            elif child.aggregates:
                found.append(exact(header.dtype, header.op, inputs(child)))
            else:
                found += inputs(child)
        return found

    return exact(header.dtype, header.op, inputs(tree))


def blocks_of(frames: list[bytes]) -> list[Frames]:
    """Frames as a port hands them over: blocks of one length."""
    groups: list[list[bytes]] = []
    for frame in frames:
        if groups and len(groups[-1][0]) == len(frame):
            groups[-1].append(frame)
        else:
            groups.append([frame])
    return [np.frombuffer(b"".join(group), np.uint8).reshape(len(group), -1) for group in groups]
