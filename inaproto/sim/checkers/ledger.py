"""Every frame is delivered, dropped by the weather, or dropped under a name; none is lost or made up.

Links: what was sent, and the copies that the weather made, are delivered, under way, or dropped under a
name. Nodes: what was delivered was taken in or refused under a name, and each frame taken in is in one
of the node's counters. Switch: every packet that it says it sent on a flow left at that flow's receiver,
and every acknowledgement that came in left at the port of its host, once and unchanged; these two are
demanded as long as the weather has damaged nothing (a flipped bit in an Ethernet header goes anywhere).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inaproto.sim.checkers.checker import Checker, Violated, each_frame

if TYPE_CHECKING:
    from inaproto.core.ring_spec import RingSpec
    from inaproto.sim.host import SimHost
    from inaproto.sim.link import SimLink
    from inaproto.sim.world import World
    from inaproto.units import Frames, PortId

_ARRIVALS = ("packets_received", "icrc_errors", "not_for_us", "unknown_qp", "wrong_source", "other_frames")
_ACK_FRAME_BYTES = 62
_ACK = 0x11


class Ledger(Checker):
    name = "ledger"

    def begin(self, world: World) -> None:
        self._world = world
        self._receivers: dict[bytes, tuple[int, SimHost]] = {}
        """(ring, receiving host) by connection."""
        self._acks: list[tuple[PortId, bytes]] = []
        """That came in this step and must leave at this port."""
        self._results = 0
        self._told = 0

    # --- the switch, step by step

    def ring_installed(self, spec: RingSpec) -> None:
        hosts = {host.ip: host for host in self._world.hosts}
        for flow in spec.flows:
            key = flow.src_ip + flow.dst_ip + flow.dst_qp.to_bytes(3, "big")
            self._receivers[key] = spec.ring_id, hosts[flow.dst_ip]

    def ring_removed(self, ring_id: int) -> None:
        self._receivers = {key: found for key, found in self._receivers.items() if found[0] != ring_id}

    def switch_rebooted(self) -> None:
        self._receivers.clear()
        self._told = 0

    def switch_received(self, port: PortId, blocks: list[Frames]) -> None:
        if self._world.damage:
            return
        for block in blocks:
            if block.shape[1] != _ACK_FRAME_BYTES:
                continue
            for frame in each_frame(block):
                target = self._world.switch.port_of_mac(frame[:6]) if frame[42] == _ACK else None
                if target is not None and target != port:
                    self._acks.append((target, frame))

    def switch_sent(self, port: PortId, frames: Frames) -> None:
        if self._world.damage:
            return
        is_ack = frames.shape[1] == _ACK_FRAME_BYTES
        for frame in each_frame(frames):
            if is_ack:
                if (port, frame) in self._acks:
                    self._acks.remove((port, frame))
                elif self._world.switch.port_of_mac(frame[:6]) == port:
                    raise Violated(self.name, f"the switch sent an ACK at port {port} that did not come in")
                continue
            found = self._receivers.get(frame[26:34] + frame[47:50])
            if found is not None and self._world.switch.port_of_mac(found[1].mac) == port:
                self._results += 1

    def switch_stepped(self) -> None:
        counters = self._world.switch.accelerator.counters
        told = counters.results_out + counters.replayed + counters.gaps_signalled
        sent, self._results = self._results, 0
        before, self._told = self._told, told
        acks, self._acks = self._acks, []
        if self._world.damage:  # perhaps in this very step
            return
        if acks:
            port, _ = acks[0]
            raise Violated(self.name, f"an ACK came in and did not leave at port {port}, where its host is")
        if self._world.switch.has_detached:
            return
        if sent != told - before:
            raise Violated(
                self.name, f"the switch says it sent {told - before} packets on its flows; {sent} left"
            )

    # --- all nodes, now and then

    def sample(self, world: World) -> None:
        arrived = 0
        for host in world.hosts:
            downlink = world.downlinks[host.number]
            for link in (host.uplink, downlink):
                self._link(link)
            arrived += host.uplink.delivered
            took = host.frames_taken + host.frames_waiting + sum(host.lost_in.values())
            if took != downlink.delivered:
                raise Violated(
                    self.name, f"{host}: {downlink.delivered} frames were delivered, {took} taken or refused"
                )
            if host.is_up:
                self._nic(host)
        switch = world.switch
        if arrived != switch.frames_taken + switch.lost_in:
            raise Violated(
                self.name,
                f"{arrived} frames were delivered to the switch, {switch.frames_taken} taken, "
                f"{switch.lost_in} refused",
            )
        if switch.is_up:
            counters = switch.accelerator.counters
            told = counters.aggregated_in + counters.bridged + sum(counters.dropped.values())
            if told != switch.frames_in:
                raise Violated(
                    self.name,
                    f"the switch took {switch.frames_in} frames in and accounts for {told}: {counters}",
                )

    def end(self, world: World) -> None:
        self.sample(world)
        for host in world.hosts:
            for link in (host.uplink, world.downlinks[host.number]):
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
        if statistics["packets_sent"] != host.frames_out:
            raise Violated(
                self.name,
                f"{host}: its NIC says it sent {statistics['packets_sent']} frames, not {host.frames_out}",
            )
