"""Every frame is delivered, dropped by the weather, or dropped under a name; none is lost or made up.

Links: what was sent, and the copies that the weather made, are delivered, under way, or dropped under a
name. Nodes: what was delivered was taken in or refused under a name, and each frame taken in is in one
of the node's counters. Each switch: every packet that it says it sent on a flow left towards that flow's
receiver, and every acknowledgement that came in left towards its host, once and unchanged; these two are
demanded as long as the weather has damaged nothing (a flipped bit in an Ethernet header goes anywhere).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from inaproto.sim.frames.checkers.checker import Checker, each_frame
from inaproto.sim.kernel.violated import Violated
from inaproto.units import PSN_MASK

if TYPE_CHECKING:
    from inaproto.core.switch.ring_spec import RingSpec
    from inaproto.sim.frames.host.host import SimHost
    from inaproto.sim.frames.link import SimLink
    from inaproto.sim.frames.switch import SimSwitch
    from inaproto.sim.frames.world import World
    from inaproto.units import Frames, PortId

_ARRIVALS = (
    "packets_received",
    "icrc_errors",
    "not_for_us",
    "unknown_qp",
    "wrong_source",
    "other_frames",
    "pauses",
)
_ACK_FRAME_BYTES = 62
_OPCODE = 42
_ACK = 0x11


@dataclass(slots=True)
class _Books:
    """What went in and out of one switch."""

    receivers: dict[bytes, tuple[int, SimHost]] = field(default_factory=dict)
    """(ring, receiving host) by connection."""
    acks: list[tuple[PortId, bytes]] = field(default_factory=list)
    """Acknowledgements that came in this step and must leave at this port."""
    naks: set[bytes] = field(default_factory=set)
    """Addresses, queue pair and PSN before that of NAKs that came in this step: an ACK may go on in their
    place (docs/protocol.md 6.14)."""
    results: dict[bytes, dict[PortId, int]] = field(default_factory=dict)
    """That left in this step, by connection and port."""
    told: int = 0


def _answer(frame: bytes) -> bytes:
    """Addresses, queue pair and PSN of an acknowledgement."""
    return frame[26:34] + frame[47:50] + frame[51:54]


class Ledger(Checker):
    name = "ledger"

    def begin(self, world: World) -> None:
        self._world = world
        self._books = {switch.number: _Books() for switch in world.switches}

    # --- each switch, step by step

    def ring_installed(self, switch: SimSwitch, spec: RingSpec) -> None:
        hosts = {host.ip: host for host in self._world.hosts}
        for flow in spec.flows:
            if spec.role is not None and flow.rank not in spec.role.delivers:
                continue
            key = flow.src_ip + flow.dst_ip + flow.dst_qp.to_bytes(3, "big")
            self._books[switch.number].receivers[key] = spec.ring_id, hosts[flow.dst_ip]

    def ring_removed(self, switch: SimSwitch, ring_id: int) -> None:
        books = self._books[switch.number]
        books.receivers = {key: found for key, found in books.receivers.items() if found[0] != ring_id}

    def switch_rebooted(self, switch: SimSwitch) -> None:
        self._books[switch.number] = _Books()

    def switch_received(self, switch: SimSwitch, port: PortId, blocks: list[Frames]) -> None:
        if self._world.damage:
            return
        books = self._books[switch.number]
        acks = books.acks
        for block in blocks:
            if block.shape[1] > _ACK_FRAME_BYTES:  # as long as these, data may be in the block, too
                for frame in each_frame(block[block[:, _OPCODE] == _ACK]):
                    before = (int.from_bytes(frame[51:54], "big") - 1) & PSN_MASK
                    books.naks.add(frame[26:34] + frame[47:50] + before.to_bytes(3, "big"))
            if block.shape[1] != _ACK_FRAME_BYTES:
                continue
            for frame in each_frame(block):
                target = switch.port_of_mac(frame[:6]) if frame[_OPCODE] == _ACK else None
                if target is not None and target != port:
                    acks.append((target, frame))

    def switch_sent(self, switch: SimSwitch, port: PortId, frames: Frames) -> None:
        if self._world.damage:
            return
        books = self._books[switch.number]
        is_ack = frames.shape[1] == _ACK_FRAME_BYTES
        for frame in each_frame(frames):
            if is_ack:
                if (port, frame) in books.acks:
                    books.acks.remove((port, frame))
                elif switch.port_of_mac(frame[:6]) == port and _answer(frame) not in books.naks:
                    raise Violated(self.name, f"{switch} sent an ACK at port {port} that did not come in")
                continue
            found = books.receivers.get(frame[26:34] + frame[47:50])
            if found is not None and switch.leads_to(port, found[1]):
                at = books.results.setdefault(frame[26:34] + frame[47:50], {})
                at[port] = at.get(port, 0) + 1

    def switch_stepped(self, switch: SimSwitch) -> None:
        counters = switch.accelerator.counters
        books = self._books[switch.number]
        told = counters.results_out + counters.replayed + counters.gaps_signalled
        # Where a host's router is not known yet, results leave at all its ports.
        most = sum(sum(at.values()) for at in books.results.values())
        least = sum(max(at.values()) for at in books.results.values())
        books.results.clear()
        before, books.told = books.told, told
        acks, books.acks = books.acks, []
        books.naks.clear()
        if self._world.damage:  # perhaps in this very step
            return
        if acks:
            port, _ = acks[0]
            said = f"an ACK came in at {switch} and did not leave at port {port}, where its host is"
            raise Violated(self.name, said)
        if switch.has_detached:
            return
        if not least <= told - before <= most:
            raise Violated(
                self.name, f"{switch} says it sent {told - before} packets on its flows; {most} left"
            )

    # --- all nodes, now and then

    def sample(self, world: World) -> None:
        for link in world.links:
            self._link(link)
        arrived = dict.fromkeys(range(len(world.switches)), 0)
        for host in world.hosts:
            downlink = world.downlinks[host.number]
            arrived[host.switch.number] += host.uplink.delivered
            took = host.frames_taken + host.frames_waiting + sum(host.lost_in.values())
            delivered = downlink.delivered + host.frames_elsewhere
            if took != delivered:
                raise Violated(
                    self.name, f"{host}: {delivered} frames were delivered, {took} taken or refused"
                )
            if host.is_up:
                self._nic(host)
        for trunk in world.trunks:
            arrived[trunk.above.number] += trunk.up.delivered
            arrived[trunk.below.number] += trunk.down.delivered
        for switch in world.switches:
            self._switch(switch, arrived[switch.number])

    def _switch(self, switch: SimSwitch, arrived: int) -> None:
        if arrived != switch.frames_taken + switch.lost_in:
            raise Violated(
                self.name,
                f"{arrived} frames were delivered to {switch}, {switch.frames_taken} taken, "
                f"{switch.lost_in} refused",
            )
        if switch.is_up:
            counters = switch.accelerator.counters
            told = counters.aggregated_in + counters.bridged + sum(counters.dropped.values())
            told += counters.results_in + counters.notes_in + counters.steered + counters.naks_in
            told += switch.accelerator.waiting
            if told != switch.frames_in:
                raise Violated(
                    self.name,
                    f"{switch} took {switch.frames_in} frames in and accounts for {told}: {counters}",
                )

    def end(self, world: World) -> None:
        self.sample(world)
        for link in world.links:
            if link.under_way:
                raise Violated(self.name, f"{link.name}: {link.under_way} frames never arrived")

    def _link(self, link: SimLink) -> None:
        told = link.delivered + link.under_way + sum(link.dropped.values())
        if link.sent + link.copies != told:
            raise Violated(
                self.name, f"{link.name}: {link.sent} sent and {link.copies} copies, {told} accounted for"
            )

    def _nic(self, host: SimHost) -> None:
        statistics = host.nic.statistics()
        told = sum(statistics[name] for name in _ARRIVALS)
        if told != host.frames_in:
            raise Violated(
                self.name,
                f"{host}: its NIC took {host.frames_in} frames in and accounts for {told}: {statistics}",
            )
        if statistics["packets_sent"] != host.frames_out + host.nic.resources["output_frames"]:
            raise Violated(
                self.name,
                f"{host}: its NIC says it sent {statistics['packets_sent']} frames, not {host.frames_out}",
            )
