"""The in-network accelerator: a switch that sums RoCEv2 packets in flight (NetReduce sections 3.1, 3.2, 4).

It composes the connection lookup table, the aggregator arrays of its rings and a learning bridge.
Packets of a registered connection are checked (ICRC), placed, kept and, once every rank has sent
them, replaced by the reduction under their own headers; everything else is bridged. What a ring that spans
several switches (section 3.3) needs beyond that is in ``tree_emission`` and ``tree_traffic``.

Rules beyond the paper's text, each with its reason:

- *Arrival*: what a port received at once is taken flow by flow, so that the packets of jobs that share it are
  vectors though they alternate. ``flow_order`` says which orders matter and stay.
- *Order*: on every flow results leave in PSN order. All flows of a ring carry the same sequence of
  (message, packet), so one frontier per ring decides; what is finished beyond it is held.
- *Gap*: a flow whose own packet is missing gets one later finished packet, once per gap. Its receiver
  sees the gap, NAKs, and the sender goes back at once; the other flows stay quiet. Without this a
  loss before the accelerator costs a full retransmission timeout. A sender that went back and is not
  past the gap again brings it unasked: it is told nothing, for a needless NAK would make it go back twice.
- *Replay*: a packet that comes again for a result that was emitted gets the kept result, on its own
  flow only. A short hole in such a resend is filled from kept results: the receiver then sees no
  second gap, for which some stacks send no second NAK.
- *Refusal*: ranks that disagree about an operation fault the whole ring; nothing of it is forwarded
  any more, so nobody takes a partial or raw payload for a result.
- *Identity*: the first packet of a message carries the ring's key; it says at which port its rank is. Packets
  without the key must come from there, from the Ethernet address that the control plane knows or one of the
  latest first packets (a router's), and in a VLAN of these. No packet takes away what others taught: the ICRC
  covers neither, and damage would shut the rank out. Without a control plane that knows the address, port and
  VLAN alone count.
- *Early packets*, which overtook the first one of their message, wait for it a while (``early_packets``).
- *Outer parts* (VLAN tags, IPv6, IPv4 options; :mod:`inaproto.wire.outer`) are taken off what comes in, and
  put back on what passes; results have that of the latest packet of their flow. Inside, IPv6 addresses are
  short.
- *Path probes* (:mod:`inaproto.wire.path_probe`) are answered where they come, and passed no further.
- *Trunks for rings*: what comes there and is of no ring is dropped, and nothing else leaves there.
- Packets with the INA magic on a connection that no ring registered are dropped, never bridged: the
  receiver would take a raw gradient for the sum.

Invariants: a payload that was not verified is never forwarded on a registered connection; a slot
holds packets of one message only; memory is bounded by ``AcceleratorConfig.memory_bytes_max``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, assert_never

import numpy as np

from inaproto.core.kernels import active
from inaproto.core.switch.aggregator import AggregatorArray, bytes_needed
from inaproto.core.switch.bridge import OF_A_LINK, Bridge, is_of_a_link
from inaproto.core.switch.bursts import UNREAD, Bursts
from inaproto.core.switch.early_packets import EarlyPackets
from inaproto.core.switch.events import (
    AcceleratorConfig,
    AcceleratorView,
    Action,
    Counters,
    EmitFrames,
    Event,
    ForLink,
    FramesArrived,
    InstallRing,
    PortDown,
    PortUp,
    RemoveRing,
    RingFault,
    RingRefused,
    RingState,
    RoundArrived,
)
from inaproto.core.switch.flow_order import flow_by_flow
from inaproto.core.switch.ingest import Ingest, peer_of
from inaproto.core.switch.lookup_table import NOWHERE, Flow, FlowRepair, LookupTable
from inaproto.core.switch.message_packets import OPENING_OPCODES
from inaproto.core.switch.repairs import Repairs
from inaproto.core.switch.ring_spec import RingSpec
from inaproto.core.switch.slot_pools import SlotPools
from inaproto.core.switch.tree.ring import TreeFlow, TreeRing
from inaproto.core.switch.tree.selective import SelectiveTreeEmission
from inaproto.core.switch.tree.traffic import TreeTraffic
from inaproto.core.switch.tree.translation import Connection, inward
from inaproto.errors import Blame, DecodeError
from inaproto.units import Frames, Instant, PortId
from inaproto.wire.connection import contradicts_itself, is_plainly_other, lenient_connection
from inaproto.wire.ina_header import INA_HEADER_BYTES, MAGIC, InaHeader
from inaproto.wire.messages.switch import VirtualConnection
from inaproto.wire.outer import PLAIN_TYPE_MAX, dress, is_dressed, peel
from inaproto.wire.packet import ACK_BYTES, Packet, ack_key, decode_packet
from inaproto.wire.path_probe import TO_SWITCHES, answers_to
from inaproto.wire.roce import Opcode
from inaproto.wire.vector import PlainRun, RoceRun, decode_runs
from inaproto.wire.vlan import TAG_BEGIN

__all__ = [
    "Accelerator",
    "AcceleratorConfig",
    "AcceleratorView",
    "Action",
    "Counters",
    "EmitFrames",
    "Event",
    "ForLink",
    "FramesArrived",
    "InstallRing",
    "PortDown",
    "PortUp",
    "RemoveRing",
    "RingFault",
    "RingRefused",
    "RoundArrived",
]

NO_RING_THERE: Final = "of no ring, on a trunk for rings"
_ACK: Final = Opcode.RC_ACK
_LENIENT_BYTES: Final = 160
"""As much of a frame as VLAN tags, IP options and a BTH can take."""
_ACKS_MAX: Final = 1024
_Ack = tuple[bytes, bytes, bytes]
"""What tells acknowledgements apart: source address, source IP address, destination address."""
_MAGIC_BYTES: Final = MAGIC.to_bytes(4, "big")


class Accelerator:
    """See the module. ``step`` is total: no input of a peer makes it raise."""

    def __init__(self, config: AcceleratorConfig | None = None) -> None:
        self._config = config or AcceleratorConfig()
        self._table = LookupTable()
        self._rings: dict[int, RingState] = {}
        self._bridge = Bridge(addresses_max=self._config.addresses_max, aside=self._config.ring_ports)
        self._counters = Counters()
        self._memory_bytes = 0
        self._retired: dict[tuple[bytes, bytes, int], Instant] = {}
        """Connections of removed rings, and until when nothing passes on them."""
        self._emission = SelectiveTreeEmission(
            self._bridge,
            self._counters,
            output_bytes_max=self._config.output_bytes_max,
            fill_packets_max=self._config.replay_fill_packets_max,
        )
        self._tag = b""
        """VLAN tag that was taken off what is taken in now."""
        self._acks: dict[bytes, _Ack] = {}
        """Headers of acknowledgements that were decoded; the next one of a connection has the same."""
        self._pools = SlotPools(self._counters)
        self._early = EarlyPackets(
            self._counters,
            packets_max=self._config.early_packets_max,
            flow_packets_max=self._config.early_flow_packets_max,
            wait_ns=self._config.early_ns,
            selective_ns=self._config.early_selective_ns,
        )
        self._ingest = Ingest(
            self._table, self._rings, self._emission, self._counters, self._pools, self._early
        )
        kernels = active()
        self._bursts = (
            None
            if kernels is None
            else Bursts(kernels, self._table, self._rings, self._ingest, self._counters, self._is_of_ring)
        )
        self._repairs = Repairs(self._emission, self._early, self._counters)
        self._looks: dict[Connection, tuple[RingState, Flow, FlowRepair]] = {}
        """Flows of which something came in this step whose losses are looked after here."""
        self._trees = TreeTraffic(
            self._table, self._ingest, self._emission, self._counters, self._config.ports_up
        )

    @property
    def deadline(self) -> Instant | None:
        """The accelerator has no timers: senders retransmit, and what waits is looked at when frames come."""
        return None

    @property
    def rings(self) -> Mapping[int, RingState]:
        """The rings that are installed, for checkers: to be read only."""
        return self._rings

    @property
    def counters(self) -> Counters:
        """The live ones, to be read only; a view has a copy."""
        return self._counters

    @property
    def waiting(self) -> int:
        """Packets that wait for the first one of their message."""
        return self._early.waiting

    @property
    def addresses(self) -> Mapping[bytes, int]:
        """Port behind which each known Ethernet address is."""
        return self._bridge.addresses

    def view(self) -> AcceleratorView:
        rings: dict[int, dict[str, int | bool]] = {
            ring_id: {
                "ranks": ring.spec.size,
                "next_message": ring.array.next_serial,
                "next_packet": ring.array.next_offset,
                "failed": ring.failed,
            }
            for ring_id, ring in self._rings.items()
        }
        for ring_id, ring in self._rings.items():
            if isinstance(ring, TreeRing):
                rings[ring_id] |= {"inputs": len(ring.role.inputs), "root": ring.parent is None}
        for steered in self._trees.steered:
            rings[steered.spec.ring_id] = {"ranks": steered.spec.size, "steered": len(steered.steered)}
        copied = replace(self._counters, dropped=dict(self._counters.dropped))
        pools = self._pools.view()
        waiting = self._early.waiting
        return AcceleratorView(rings, copied, self._memory_bytes, len(self._table), pools, waiting)

    def step(self, event: Event, now: Instant) -> list[Action]:
        actions: list[Action] = []
        touched: dict[int, RingState] = {}
        self._emission.begin_step()
        match event:
            case FramesArrived(port, blocks):
                self._frames(port, blocks, now, touched, actions)
            case RoundArrived(arrivals):
                for port, blocks in arrivals:
                    self._frames(port, blocks, now, touched, actions)
            case PortUp(port, lender):
                self._bridge.port_up(port)
                self._emission.ports.port_up(port, lender)
            case PortDown(port):
                self._emission.ports.port_down(port)
                self._bridge.port_down(port)
                for steered in self._trees.steered:
                    steered.port_down(port)
                for ring in self._rings.values():
                    for flow in ring.flows:
                        if flow.ingress == port:
                            flow.ingress = NOWHERE
            case InstallRing(spec):
                self._install(spec, actions)
                self._forget_flows()
            case RemoveRing(ring_id):
                self._remove(ring_id, now)
                self._forget_flows()
            case _:
                assert_never(event)
        if touched and self._early.waiting:
            self._take_early(touched, actions)
        for ring in touched.values():
            if isinstance(ring, TreeRing) and not ring.failed:
                self._emission.advance_tree(ring, actions)
            elif not ring.failed:
                self._emission.advance(ring, actions)
        if self._looks:
            for ring, flow, repair in self._looks.values():
                self._repairs.look(ring, flow, repair, actions)
            self._looks.clear()
        return actions

    # -- rings ---------------------------------------------------------------------------------

    def _install(self, spec: RingSpec, actions: list[Action]) -> None:
        if spec.ring_id in self._rings or self._trees.is_steered(spec.ring_id):
            actions.append(RingRefused(spec.ring_id, f"ring {spec.ring_id} is installed already"))
            return
        if len(self._rings) + len(self._trees.steered) >= self._config.rings_max:
            actions.append(RingRefused(spec.ring_id, f"all {self._config.rings_max} rings are in use"))
            return
        short = spec.shortened()
        if short is None:
            actions.append(RingRefused(spec.ring_id, "two IPv6 addresses of its hosts have one short form"))
            return
        spec = short
        taken = next((flow for flow in spec.flows if self._is_of_ring(flow.connection)), None)
        if taken is not None:
            reason = f"the connection of rank {taken.rank} belongs to another ring"
            actions.append(RingRefused(spec.ring_id, reason))
            return
        if any(self._is_of_ring(inward(link)) for link in _links(spec)):
            reason = "a ring between the same switches has the same low bits of its id"
            actions.append(RingRefused(spec.ring_id, reason))
            return
        need = bytes_needed(spec)
        if spec.pool is not None and need:
            contradiction = self._pools.contradiction(spec.pool)
            if contradiction:
                actions.append(RingRefused(spec.ring_id, contradiction))
                return
            need = self._pools.growth(spec)
        if self._memory_bytes + need > self._config.memory_bytes_max:
            actions.append(self._without_room(spec, need))
            return
        self._memory_bytes += need
        for flow in spec.flows:
            self._retired.pop(flow.connection, None)
        if spec.role is not None:
            tree = self._trees.install(spec)
            if tree is not None:
                for link in _links(spec):
                    self._retired.pop(inward(link), None)
                self._add(tree)
            return
        flows = [
            self._table.add(
                flow, ring_id=spec.ring_id, messages=spec.regions, psn_mask=(1 << spec.psn_bits) - 1
            )
            for flow in spec.flows
        ]
        ring = RingState(spec, AggregatorArray(spec), flows)
        self._repairs.add(ring)
        self._add(ring)

    def _without_room(self, spec: RingSpec, need: int) -> RingRefused:
        in_all, whole = self._config.memory_bytes_max, bytes_needed(spec)
        if spec.pool is not None:
            whole *= spec.pool.capacity
        if whole > in_all:
            reason = f"needs {whole} bytes of memory, it has {in_all} in all"
            return RingRefused(spec.ring_id, reason, until_switch=True)
        return RingRefused(
            spec.ring_id, f"needs {need} bytes of memory, {in_all - self._memory_bytes} are free"
        )

    def _add(self, ring: RingState) -> None:
        self._rings[ring.spec.ring_id] = ring
        if ring.spec.pool is not None:
            self._pools.join(ring.spec)

    def _forget_flows(self) -> None:
        if self._bursts is not None:
            self._bursts.forget()

    def _is_of_ring(self, connection: Connection) -> bool:
        return connection in self._table or self._trees.knows(connection)

    def _remove(self, ring_id: int, now: Instant) -> None:
        steered = self._trees.remove_steered(ring_id)
        ring = self._rings.pop(ring_id, None)
        if ring is None and steered is None:
            return
        for retired in [key for key, expiry in self._retired.items() if expiry <= now]:
            del self._retired[retired]
        for connection in () if steered is None else steered.connections:
            self._retired[connection] = Instant(now + self._config.retired_ns)
        if isinstance(ring, TreeRing):
            self._trees.remove(ring)
        elif ring is not None:
            self._repairs.remove(ring)
        for flow in () if ring is None else ring.flows:
            self._table.remove(flow.spec)
            self._ingest.forget(flow)
            self._early.forget(flow)
            # Its host may not know yet and go on sending: raw, the receiver would take it for results.
            self._retired[flow.spec.connection] = Instant(now + self._config.retired_ns)
        while len(self._retired) > self._config.retired_max:  # the oldest makes room
            del self._retired[next(iter(self._retired))]
        if ring is not None and ring.spec.pool is not None:
            self._memory_bytes -= self._pools.leave(ring)
        elif ring is not None:
            self._memory_bytes -= bytes_needed(ring.spec)

    # -- frames --------------------------------------------------------------------------------

    def _frames(
        self,
        port: PortId,
        blocks: Sequence[Frames],
        now: Instant,
        touched: dict[int, RingState],
        actions: list[Action],
    ) -> None:
        self._ingest.now = now
        if self._early.waiting:
            self._early.expire(now)
        looks = self._looks

        def taken(flow: Flow) -> None:
            touched[flow.ring_id] = ring = self._rings[flow.ring_id]
            if flow.repair is not None:
                looks[flow.spec.connection] = ring, flow, flow.repair
            # The usual case of ``teaches`` first, without its call.
            if port not in flow.untold and (
                (flow.shown[0] == flow.src_mac and not flow.is_routed) or flow.teaches
            ):
                self._bridge.learn(flow.src_mac, port, flow.spec.src_ip)

        classes, left, several = UNREAD, None, len(blocks) > 1 or (blocks and len(blocks[0]) > 1)
        if several and self._bursts is not None:
            classes, left = self._bursts.read(port, blocks, taken)
        groups: list[tuple[bytes, Sequence[Frames]]] = [(b"", blocks if left is None else left)]
        if left is None:
            try:
                for block in blocks:
                    if block[0, TAG_BEGIN] > PLAIN_TYPE_MAX:
                        groups = peel(blocks)
                        break
            except IndexError:  # an empty block, or short frames: rare, and asking first is not free
                groups = peel(blocks)
        for tag, group in groups:  # to which more may come
            if tag != self._tag:
                self._tag = self._ingest.tag = tag
            vectors: Iterable[Frames] = group
            if group is not left and group is not blocks:
                several = len(group) > 1 or (group and len(group[0]) > 1)
            if several and group is not left:
                if self._bursts is None:
                    vectors = flow_by_flow(group, self._is_of_ring)
                else:
                    vectors = self._bursts.take(port, group, classes if group is blocks else UNREAD, taken)
            for frames in vectors:
                ack, single = None, len(frames) == 1
                if frames.shape[1] == ACK_BYTES:  # half of all single frames
                    ack = self._acks.get(ack_key(frames.tobytes())) if single else None
                    ack = ack or self._ack_of_all(frames)
                if ack is not None:
                    src_mac, src_ip, dst_mac = ack
                    self._bridge.learn(src_mac, port, src_ip)
                    self._pass(port, dst_mac, frames, actions)
                    continue
                if single:
                    packet = decode_packet(frames.tobytes())
                    if packet is None:
                        flow = None
                    elif packet.opcode != _ACK:
                        flow = self._ingest.single(port, packet, actions)
                    elif self._nak(port, packet, actions):
                        continue
                    else:
                        flow = None
                else:
                    flow = self._ingest.middles(port, frames) if len(frames) else None
                if flow is not None:
                    taken(flow)
                else:
                    groups += self._runs(port, frames, now, touched, actions)
        if self._tag:
            self._tag = self._ingest.tag = b""

    def _nak(self, port: PortId, packet: Packet, actions: list[Action]) -> bool:
        """Do what ``_run`` does with a NAK that ends here; False, and nothing is done, for all others."""
        flow = self._repairs.asked(packet)
        if flow is None:
            return False
        self._bridge.learn(packet.src_mac, port, packet.src_ip)
        self._repairs.nak(flow, packet, actions)
        return True

    def _take_early(self, touched: dict[int, RingState], actions: list[Action]) -> None:
        """Messages may have opened for which packets wait that came before their first."""
        for connection in self._early.connections:
            flow = self._table.get(*connection)
            if flow is not None and flow.ring_id in touched:
                self._ingest.take_early(flow, actions)

    def _ack_of_all(self, frames: Frames) -> _Ack | None:
        """What acknowledgements that came together have in common; None for other frames and strange ones."""
        found: _Ack | None = None
        for row in frames:
            data = row.tobytes()
            ack = self._acks.get(ack_key(data))
            if ack is None:
                packet = decode_packet(data)
                if packet is None or packet.opcode != Opcode.RC_ACK:
                    return None
                ack = self._remembered(data, packet)
            if found is not None and ack != found:
                return None
            found = ack
        return found

    def _remembered(self, data: bytes, packet: Packet) -> _Ack:
        if len(self._acks) >= _ACKS_MAX:
            self._acks.clear()
        found = self._acks[ack_key(data)] = packet.src_mac, packet.src_ip, packet.dst_mac
        return found

    def _runs(
        self, port: PortId, frames: Frames, now: Instant, touched: dict[int, RingState], actions: list[Action]
    ) -> list[tuple[bytes, Sequence[Frames]]]:
        """What no quick way takes; returns those with an outer part that was not taken off yet."""
        dressed: list[tuple[bytes, Sequence[Frames]]] = []
        for run in decode_runs(frames):
            if isinstance(run, PlainRun) and not self._tag and is_dressed(run.frames):
                dressed += peel([run.frames])  # it was behind others in its block
            else:
                self._run(port, run, now, touched, actions)
        return dressed

    def _run(
        self,
        port: PortId,
        run: RoceRun | PlainRun,
        now: Instant,
        touched: dict[int, RingState],
        actions: list[Action],
    ) -> None:
        """What no quick way takes."""
        if isinstance(run, PlainRun):
            if not contradicts_itself(run.frames[0].tobytes()):
                self._bridge.learn(run.src_mac, port)
            if run.dst_mac == TO_SWITCHES and (answers := answers_to(run.frames)) is not None:
                self._counters.path_probes += len(answers)
                actions.append(EmitFrames(port, answers))
            elif not self._belongs_to_ring(run, now):
                if run.dst_mac[:5] == OF_A_LINK and is_of_a_link(run.dst_mac):
                    actions.append(ForLink(port, run.frames))
                self._forward(port, run, actions)
        elif self._steered(port, run, actions):
            pass
        elif run.opcode == Opcode.RC_ACK:
            self._bridge.learn(run.src_mac, port, run.src_ip)
            if not self._repairs.naks(run, actions):
                self._forward(port, run, actions)
        else:
            ring = self._request(port, run, now, actions)
            if ring is not None:
                touched[ring.spec.ring_id] = ring

    def _request(self, port: PortId, run: RoceRun, now: Instant, actions: list[Action]) -> RingState | None:
        """Requests on any connection; returns the ring that may have moved.

        Of a ring's packets the bridge learns where their rank is, by its own address. It learns nothing from
        what no ring takes: results have their rank's address, which may be elsewhere.
        """
        connection = (run.src_ip, run.dst_ip, run.dest_qp)
        flow = self._table.get(*connection)
        if flow is not None:
            ring = self._rings[flow.ring_id]
            if isinstance(ring, TreeRing) and isinstance(flow, TreeFlow):
                self._trees.input(ring, flow, port, run, actions)
            else:
                self._ingest.general(ring, flow, port, run, actions)
                if flow.repair is not None:
                    self._looks[connection] = ring, flow, flow.repair
            is_told = flow.ingress == port and port not in flow.untold
            # As above: ``teaches`` is called where a first packet came from elsewhere.
            if is_told and ((flow.shown[0] == flow.src_mac and not flow.is_routed) or flow.teaches):
                self._bridge.learn(flow.src_mac, port, run.src_ip)
            return ring
        if self._trees.takes(run):
            return self._trees.other(port, run, actions)
        if now < self._retired.get(connection, now):
            self._counters.drop("ring removed", len(run.frames))
        else:
            self._bridge.learn(run.src_mac, port, run.src_ip)
            self._unregistered(port, run, actions)
        return None

    def _steered(self, port: PortId, run: RoceRun, actions: list[Action]) -> bool:
        """Packets of a ring that another switch sums are sent there, or come from there; False for others."""
        ring = self._trees.steering(run)
        if ring is None:
            return False
        connection = (run.src_ip, run.dst_ip, run.dest_qp)
        rank = ring.connections.get(connection)
        if port == ring.steer_to:
            if rank not in ring.steered and (rank is None or not ring.passes_sums) and ring.teaches(port):
                self._bridge.learn(run.src_mac, port, run.src_ip)
            out = ring.receiver_port(connection)
            if out is not None and out != port:
                self._counters.bridged += len(run.frames)
                actions.append(EmitFrames(out, dress(run.frames, self._tag)))
            elif port in self._config.ring_ports:
                self._pass_down(run, actions)
            else:
                self._forward(port, run, actions)
        elif ring.steer_to in self._bridge.ports:
            if ring.teaches(port):
                self._bridge.learn(run.src_mac, port, run.src_ip)
            if rank in ring.steered:
                ring.port_of[rank] = port
            elif rank is None:
                ring.passes_sums = True
            self._counters.steered += len(run.frames)
            actions.append(EmitFrames(ring.steer_to, dress(run.frames, self._tag)))
        else:
            self._counters.drop("port to the switch above is down", len(run.frames))
        return True

    def _belongs_to_ring(self, run: PlainRun, now: Instant) -> bool:
        """Frames that no NIC of a ring emits, but that its receiver's stack might accept: dropped."""
        if is_plainly_other(run.frames[0, :_LENIENT_BYTES].tobytes()):
            return False  # all rows agree in what says so
        dropped = 0
        for row in run.frames[:, :_LENIENT_BYTES]:
            found = lenient_connection(row.tobytes())
            if found is None:
                continue
            source, target, qp, opcode = found
            expiry = self._retired.get((source, target, qp), now)
            if opcode != Opcode.RC_ACK and (self._is_of_ring((source, target, qp)) or now < expiry):
                dropped += 1
        if dropped:
            self._counters.drop("malformed packet of a ring", len(run.frames))
        return dropped > 0

    def _unregistered(self, port: PortId, run: RoceRun, actions: list[Action]) -> None:
        """Requests on a connection of no ring: bridged, unless they are or may be INA traffic."""
        if run.opcode in OPENING_OPCODES:
            for row in range(len(run.frames)):
                one = run.select(np.arange(len(run.frames)) == row) if len(run.frames) > 1 else run
                if not self._is_stray(one, actions):
                    self._forward(port, one, actions)
        else:
            self._forward(port, run, actions)

    def _forward(self, port: PortId, run: RoceRun | PlainRun, actions: list[Action]) -> None:
        if not run.dst_mac:
            self._counters.drop("frame shorter than an Ethernet header", len(run.frames))
            return
        self._pass(port, run.dst_mac, run.frames, actions)

    def _pass_down(self, run: RoceRun, actions: list[Action]) -> None:
        """A result that came on a trunk for rings: to its receiver by address, and never back up."""
        self._counters.bridged += len(run.frames)
        ports = self._bridge.egress(run.dst_mac, NOWHERE)
        down = (PortId(out) for out in ports if out not in self._config.ports_up)
        frames = dress(run.frames, self._tag)
        actions.extend(EmitFrames(out, frames) for out in down)

    def _pass(self, port: PortId, dst_mac: bytes, frames: Frames, actions: list[Action]) -> None:
        if port in self._config.ring_ports and not is_of_a_link(dst_mac):
            self._counters.drop(NO_RING_THERE, len(frames))
            return
        self._counters.bridged += len(frames)
        if dst_mac[0] & 1 and is_of_a_link(dst_mac):
            self._counters.for_links += len(frames)
        if self._tag:
            frames = dress(frames, self._tag)
        for out in self._bridge.egress(dst_mac, port):
            actions.append(EmitFrames(PortId(out), frames))  # noqa: PERF401  half of all single frames

    def _is_stray(self, run: RoceRun, actions: list[Action]) -> bool:
        """An INA message on a connection that no ring registered (one packet): dropped and blamed."""
        payload = run.payload()
        if run.payload_bytes < INA_HEADER_BYTES or payload[0, :4].tobytes() != _MAGIC_BYTES:
            return False
        try:
            header = InaHeader.decode(payload[0, :INA_HEADER_BYTES].tobytes())
        except DecodeError:
            return False
        if header.is_result:  # another accelerator's, on its way to its receiver
            return False
        if not run.intact():
            self._counters.drop("wrong ICRC", 1)  # damaged on its way: nobody is to blame
            return True
        known = header.ring_id in self._rings
        rule = "connection not registered" if known else "unknown ring"
        self._counters.drop(rule, 1)
        evidence = f"ring {header.ring_id}, rank {header.rank}, message {header.msg_id}"
        actions.append(Blame(peer_of(run, self._tag), rule, evidence))
        return True


def _links(spec: RingSpec) -> tuple[VirtualConnection, ...]:
    """The virtual connections that end at this switch."""
    role = spec.role
    if role is None:
        return ()
    return role.children if role.parent is None else (*role.children, role.parent)
