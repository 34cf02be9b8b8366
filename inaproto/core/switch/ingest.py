"""What the accelerator takes in: packets of registered connections, checked, placed and stored.

The general way handles every mix of packets. Two quick ways in front of it take what a lossless
stream consists of, and hand over whatever is not exactly that, with nothing changed: the middle
packets of a message in one vector, recognised by the flow's header template, and single packets,
decoded without building arrays. The tests hold all three to the same results
(``tests/property/test_accelerator_against_reference.py``).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inaproto.core.switch.early_packets import Early, EarlyPackets
from inaproto.core.switch.emission import Emission
from inaproto.core.switch.events import TURN_LOST, Action, Counters, RingFault, RingState
from inaproto.core.switch.lookup_table import Flow, LookupTable, MessageEntry, Rows
from inaproto.core.switch.message_packets import (
    DATA_OPCODES,
    FIRST,
    LAST_OPCODES,
    MIDDLE,
    ONLY_OPCODES,
    OPENING_OPCODES,
    UDP_CHECKSUM,
    constant_part,
    packet_fault,
    without_rank,
)
from inaproto.core.switch.region import Region, consecutive
from inaproto.core.switch.region_kernels import LIKE_WORD, LastPacket
from inaproto.core.switch.ring_spec import RingSpec
from inaproto.core.switch.slot_pools import Refusal, SlotPools
from inaproto.errors import Blame, DecodeError
from inaproto.units import Frames, Instant, PortId
from inaproto.wire.icrc import ICRC_BYTES
from inaproto.wire.ina_header import INA_HEADER_BYTES, InaHeader
from inaproto.wire.outer import addresses_of
from inaproto.wire.packet import Packet
from inaproto.wire.run_template import RunTemplate
from inaproto.wire.vector import BTH_END, RoceRun, decode_runs
from inaproto.wire.vlan import vlan_of

_CONNECTION: Final = slice(26, 50)
"""Columns from the IP addresses to the destination QP: all that tells flows and lengths apart."""


class Ingest:
    def __init__(
        self,
        table: LookupTable,
        rings: Mapping[int, RingState],
        emission: Emission,
        counters: Counters,
        pools: SlotPools,
        early: EarlyPackets,
    ) -> None:
        self._table = table
        self._rings = rings
        self._emission = emission
        self._counters = counters
        self._pools = pools
        self._early = early
        self.now = Instant(0)
        """When what is taken in now arrived."""
        self._templates: dict[bytes, tuple[Flow, RunTemplate]] = {}
        """Templates of the middle packets of each flow, by what identifies a connection in its headers."""
        self.tag = b""
        """VLAN tag that was taken off what is taken in now."""

    def forget(self, flow: Flow) -> None:
        """The flow's ring is removed."""
        self._templates = {key: known for key, known in self._templates.items() if known[0] is not flow}

    def middles(self, port: PortId, frames: Frames) -> Flow | None:
        """Consecutive middle packets of a known flow, none of which came before; None if anything differs."""
        known = self._templates.get(frames[0, _CONNECTION].tobytes()) if frames.shape[1] > BTH_END else None
        if known is None:
            return None
        flow, template = known
        ring = self._rings[flow.ring_id]
        matched = template.match(frames)
        if matched is None or ring.failed or flow.replay_next is not None:
            return None
        if flow.ingress != port or flow.tag != self.tag:
            return None
        psn, share, headers = matched
        found = flow.find(psn)
        if found is None:
            return None
        entry, offset = found
        region = ring.array.region_of(entry.serial)
        past = offset + len(frames)
        if region.serial != entry.serial or offset < 1 or past > region.packets - 1:
            return None
        right = region.store_fresh(
            flow.row,
            slice(offset, past),
            frames[:, BTH_END:-ICRC_BYTES],
            headers,
            share,
            frames[:, -ICRC_BYTES:].view("<u4")[:, 0],
        )
        if right is None:
            return None
        self._counters.aggregated_in += right
        if right < len(frames):
            self._counters.drop("wrong ICRC", len(frames) - right)
            if not right:
                return flow
            past = offset + 1 + int(np.flatnonzero(region.seen[flow.row, offset:past])[-1])
        # Where its results go already, nothing would follow of it.
        if template.src_mac != flow.src_mac or template.dst_mac != flow.dst_mac:
            psn = entry.psn0 + past - 1 & flow.psn_mask
            flow.settle(port, template.src_mac, template.dst_mac, psn, self.tag)
        flow.reached = region.serial * ring.spec.message_packets + past - 1
        ring.dirty[region.serial] = region
        return flow

    def single(self, port: PortId, packet: Packet, actions: list[Action]) -> Flow | None:
        """One packet with nothing to object to, that its rank has not sent before, or on a selective ring;
        else None."""
        flow, opcode = self._table.get(packet.src_ip, packet.dst_ip, packet.dest_qp), packet.opcode
        if flow is None or opcode not in DATA_OPCODES or flow.replay_next is not None:
            return None
        ring = self._rings[flow.ring_id]
        if ring.failed or not packet.payload_bytes or (flow.ingress != port and not flow.may_come(port)):
            return None
        share = packet.header_share()
        if share is None:
            return None
        psn, src_mac = packet.psn & flow.psn_mask, packet.src_mac
        if opcode not in OPENING_OPCODES:
            if not flow.is_at(port, src_mac, self.tag):
                return None
        elif not self.opens(ring, flow, psn, bytes(packet.payload()[:INA_HEADER_BYTES])):
            return None
        found = flow.find(psn)
        if found is None:
            return None
        entry, offset = found
        serial = entry.serial
        rank = flow.row
        region = ring.array.region_of(serial)
        if region.serial != serial or not self._fits(ring, region, offset, packet):
            return None
        data, header_bytes = packet.data, packet.header_bytes
        again = ring.spec.selective and ring.spec.role is None
        fresh = region.store_single(rank, offset, data[:header_bytes], packet.tail, share, again=again)
        if not fresh and not again:
            return None
        if offset == 0:
            region.keep_header(rank, np.frombuffer(data, np.uint8, INA_HEADER_BYTES, header_bytes))
            dst_mac = packet.dst_mac
            if flow.vlans and (src_mac, dst_mac, self.tag) == (flow.src_mac, flow.dst_mac, flow.tag):
                flow.shown = src_mac, dst_mac, psn  # as ever: what ``show`` does, without the call
            else:
                flow.show(src_mac, dst_mac, psn, self.tag)
        self._counters.aggregated_in += 1
        flow.settle(port, src_mac, packet.dst_mac, psn, self.tag)
        if offset == 0 and flow.src_mac != src_mac:
            self._counters.strange_addresses += 1
        flow.reached = serial * ring.spec.message_packets + offset
        if fresh or not region.done[offset]:
            ring.dirty[serial] = region
        else:
            self._emission.one_came_again(ring, flow, region, offset, actions)
        return flow

    @staticmethod
    def opens(ring: RingState, flow: Flow, psn: int, header: bytes) -> bool:
        """Take a first packet that opens its message, or agrees in every byte with the one that did.

        False leaves it to the general way.
        """
        if len(header) < INA_HEADER_BYTES or int.from_bytes(header[24:26], "big") != flow.spec.rank:
            return False
        array = ring.array
        serial = array.serial_of(int.from_bytes(header[20:24], "big"))
        region = array.regions[serial % len(array.regions)]
        if serial < array.first_serial:
            return False
        if region.serial == serial:
            if without_rank(header) != region.agreed:
                return False
        elif region.serial < serial < array.next_serial + ring.spec.window_messages:
            constant, known = constant_part(header), ring.opened_by
            if known is not None and known[0] == ring.epoch and known[1] == constant:
                region.take_over(serial, known[2], header)
                region.opening = header
            elif (ina := _opening(ring, flow, header)) is not None:
                known = ring.opened_by = ring.epoch, constant, ina, 1 if known is None else known[3] + 1
                region.take_over(serial, ina, header)
            else:
                return False
            if region.kernels is not None:
                region.kernels.words[LIKE_WORD] = known[3]
        else:
            return False
        if not flow.open_message(MessageEntry(serial, psn, region.packets)):
            return False
        if region.kernels is not None:
            region.kernels.psn0[flow.row] = psn
        return True

    @staticmethod
    def _fits(ring: RingState, region: Region, offset: int, packet: Packet) -> bool:
        """Whether a packet's layout is right at ``offset``; the first last one sets that of the others."""
        if offset < region.packets - 1:
            whole = packet.payload_bytes == ring.spec.mtu and not packet.pad
            return whole and packet.opcode == (FIRST if offset == 0 else MIDDLE)
        layout = LastPacket(packet.opcode, packet.header_bytes, packet.payload_bytes, packet.pad)
        if region.last is not None:
            return layout == region.last
        if packet.payload_bytes % region.itemsize:
            return False
        expected = ONLY_OPCODES if offset == 0 else LAST_OPCODES
        if packet.opcode not in expected or packet.payload_bytes > ring.spec.mtu:
            return False
        if packet.pad != -packet.payload_bytes % 4:
            return False
        region.last = layout
        if region.kernels is not None and offset:  # by which no message of one packet goes
            region.kernels.expect(layout)
        return True

    def general(self, ring: RingState, flow: Flow, port: PortId, run: RoceRun, actions: list[Action]) -> None:
        """Any packets of a registered connection."""
        if ring.failed:
            self._counters.drop("ring failed", len(run.frames))
            return
        if not run.intact():
            right = run.verify()
            self._counters.drop("wrong ICRC", int(len(right) - right.sum()))
            if not right.any():
                return
            run = run.select(right)
        if run.opcode not in DATA_OPCODES:
            self._refuse(run, "not an RDMA WRITE", f"opcode {run.opcode:#04x}", actions, len(run.frames))
            return
        if run.opcode in OPENING_OPCODES:
            opened = [self._open(ring, flow, run, row, actions) for row in range(len(run.frames))]
            if _has_failed(ring):
                self._drop_failed(sum(opened))
                return
            if not any(opened):
                return
            if not all(opened):
                run = run.select(np.array(opened))
            flow.show(run.src_mac, run.dst_mac, int(run.psn[-1]), self.tag)
            flow.settle(port, run.src_mac, run.dst_mac, int(run.psn[-1]), self.tag)
            if flow.src_mac != run.src_mac:
                self._counters.strange_addresses += len(run.frames)
        elif flow.is_at(port, run.src_mac, self.tag):
            flow.settle(port, run.src_mac, run.dst_mac, int(run.psn[-1]), self.tag)
        else:
            evidence = f"port {port}, address {run.src_mac.hex(':')}"
            if self.tag:
                evidence += f", VLAN {vlan_of(self.tag)}"
            self._refuse(run, "not from where its rank is", evidence, actions, len(run.frames))
            return
        placed = 0
        for entry, rows, offsets in flow.locate(run.psn):
            region = ring.array.region_of(entry.serial)
            count = offsets.stop - offsets.start if isinstance(offsets, slice) else len(offsets)
            placed += count
            if region.serial != entry.serial:
                self._counters.drop("older than the tenant", count)
            elif _has_failed(ring) or not self._layout_holds(ring, flow, run, region, offsets, actions):
                self._counters.drop("layout", count)
            else:
                self._store(ring, flow, region, run, rows, offsets, actions)
        if placed < len(run.frames):
            self._keep_early(ring, flow, port, run)
        elif run.opcode == MIDDLE and not ring.failed:
            self._remember(flow, run)

    def _keep_early(self, ring: RingState, flow: Flow, port: PortId, run: RoceRun) -> None:
        """Packets that no known message has may be of one whose first packet they overtook."""
        left = np.ones(len(run.frames), np.bool_)
        for _, rows, _ in flow.locate(run.psn):
            left[rows] = False
        until = Instant(self.now + self._early.wait_ns(ring.spec))
        self._early.keep(flow, ring.spec, Early(until, port, self.tag, run.frames[left], run.psn[left]))

    def take_early(self, flow: Flow, actions: list[Action]) -> None:
        """Take in what waited for messages that are open now.

        It was sent before what came last: a sender that went back has not come past it again.
        """
        ring = self._rings[flow.ring_id]
        reached, tag = flow.reached, self.tag
        for early in self._early.opened(flow, ring.spec):
            self.tag = early.tag
            for run in decode_runs(early.frames):
                if isinstance(run, RoceRun):
                    self.general(ring, flow, early.port, run, actions)
        flow.reached, self.tag = reached, tag

    def _remember(self, flow: Flow, run: RoceRun) -> None:
        """Make the headers of right middle packets the flow's template; one for each flow."""
        key = run.frames[0, _CONNECTION].tobytes()
        whole = run.frames.shape[1] == run.header_bytes + run.payload_bytes + ICRC_BYTES
        whole = whole and not run.frames[0, UDP_CHECKSUM].any()
        known = self._templates.get(key)
        if whole and (known is None or known[1].src_mac != run.src_mac or known[1].dst_mac != run.dst_mac):
            self.forget(flow)
            self._templates[key] = (flow, RunTemplate(run))

    def _open(self, ring: RingState, flow: Flow, run: RoceRun, row: int, actions: list[Action]) -> bool:
        """Take a message's first packet into the table and its region; False if it is dropped."""
        if ring.failed:  # by a packet before it in this run
            self._drop_failed(1)
            return False
        rank = flow.spec.rank
        try:
            header = run.payload()[row, :INA_HEADER_BYTES].tobytes()
            ina = InaHeader.decode(header)
        except DecodeError as error:
            return self._refuse(run, "no INA header", str(error), actions)
        if ina.is_result:
            return self._refuse(run, "no INA header", "a result, where a rank's own payload must be", actions)
        spec = ring.spec
        foreign = foreign_field(ina, spec, ring.epoch if spec.pool is None else ina.epoch, rank)
        if foreign:
            return self._refuse(run, *foreign, actions)
        if ina.msg_len > spec.message_packets:
            evidence = f"{ina.msg_len} packets, at most {spec.message_packets}"
            return self._refuse(run, "message too long", evidence, actions)
        array = ring.array
        serial = array.serial_of(ina.msg_id)
        if ina.epoch != ring.epoch:
            refusal = self.begin_turn(ring, ina.epoch, serial, actions)
            if refusal is not None and refusal.evidence:
                return self._refuse(run, refusal.rule, refusal.evidence, actions)
            if refusal is not None:
                self._counters.drop(refusal.rule, 1)
                return False
        region = array.region_of(serial)
        if serial < max(region.serial, array.first_serial):
            self._counters.drop("older than the tenant", 1)
            return False
        if serial >= array.next_serial + spec.window_messages:
            evidence = f"message {ina.msg_id}, {serial - array.next_serial} past the first unfinished one"
            return self._refuse(run, "window passed", evidence, actions)
        if serial == region.serial and region.ina is not None:
            difference = _disagreement(region.ina, ina)
            if difference:
                self._counters.drop("operations differ", 1)
                self._fault(ring, rank, "operations differ", difference, actions)
                return False
        elif serial != region.serial:
            region.take_over(serial, ina, header)
        entry = MessageEntry(serial, int(run.psn[row]), ina.msg_len)
        if not flow.open_message(entry):
            return self._refuse(run, "message has another PSN", f"message {ina.msg_id}", actions)
        if region.kernels is not None:
            region.kernels.psn0[flow.row] = entry.psn0
        return True

    def begin_turn(self, ring: RingState, epoch: int, serial: int, actions: list[Action]) -> Refusal | None:
        """Let a ring of a pool have its turn ``epoch``, of which a message came; or say why it has none."""
        refusal = self._pools.refusal(ring, epoch, serial)
        if refusal is not None:
            return refusal
        for loser in self._pools.take(ring, epoch):
            pool = "" if loser.spec.pool is None else f" of pool {loser.spec.pool.name}"
            evidence = f"ring {ring.spec.ring_id} has turn {epoch}{pool}, and messages were unfinished"
            self._fault(loser, loser.flows[0].spec.rank, TURN_LOST, evidence, actions)
        return Refusal("ring failed") if ring.failed else None

    def is_stale(self, ring: RingState, epoch: int) -> bool:
        """Whether what came of a ring of a pool is of a turn that is over."""
        return self._pools.is_stale(ring, epoch)

    def _layout_holds(
        self, ring: RingState, flow: Flow, run: RoceRun, region: Region, offsets: Rows, actions: list[Action]
    ) -> bool:
        """Whether the packets have the layout that all ranks must share at these offsets."""
        spec = ring.spec
        fault = packet_fault(run, offsets, region.packets, spec.mtu)
        if fault is not None:
            self._fault(ring, flow.spec.rank, "packet layout", fault, actions)
            return False
        if run.payload_bytes % region.itemsize:
            assert region.ina is not None, "an open region has the header that opened it"
            evidence = f"{run.payload_bytes} bytes are no whole number of {region.ina.dtype.name} elements"
            self._fault(ring, flow.spec.rank, "packet layout", evidence, actions)
            return False
        high = offsets.stop - 1 if isinstance(offsets, slice) else int(offsets.max())
        if high < region.packets - 1:
            return True
        last = LastPacket(run.opcode, run.header_bytes, run.payload_bytes, run.pad)
        if region.last is None:
            region.last = last
            if region.kernels is not None:
                region.kernels.expect(last)
        elif region.last != last:
            assert region.ina is not None, "an open region has the header that opened it"
            evidence = (
                f"last packet of operation {region.ina.op_index} has {last.payload_bytes} bytes, "
                f"another rank's {region.last.payload_bytes}"
            )
            self._fault(ring, flow.spec.rank, "operations differ", evidence, actions)
            return False
        return True

    def _store(
        self,
        ring: RingState,
        flow: Flow,
        region: Region,
        run: RoceRun,
        rows: Rows,
        offsets: Rows,
        actions: list[Action],
    ) -> None:
        count = offsets.stop - offsets.start if isinstance(offsets, slice) else len(offsets)
        self._counters.aggregated_in += count
        finished = region.store(flow.row, run, rows, offsets)
        base = region.serial * ring.spec.message_packets
        flow.reached = base + (offsets.stop - 1 if isinstance(offsets, slice) else int(offsets[-1]))
        if ring.spec.selective:
            if finished is not None and finished.any():
                self._emission.came_again(ring, flow, region, _offsets(offsets)[finished], actions)
        elif finished is not None or flow.replay_next is not None:
            spans = [(offsets.start, offsets.stop)] if isinstance(offsets, slice) else consecutive(offsets)
            for begin, past in spans:
                self._emission.replay(ring, flow, base + begin, base + past - 1, actions)
        if finished is None or not finished.all():
            ring.dirty[region.serial] = region

    def _drop_failed(self, packets: int) -> None:
        if packets:
            self._counters.drop("ring failed", packets)

    # -- refusals ------------------------------------------------------------------------------

    def _refuse(
        self, run: RoceRun, rule: str, evidence: str, actions: list[Action], packets: int = 1
    ) -> bool:
        self._counters.drop(rule, packets)
        actions.append(Blame(peer_of(run, self.tag), rule, evidence))
        return False

    def _fault(self, ring: RingState, rank: int, rule: str, evidence: str, actions: list[Action]) -> None:
        if not ring.failed:
            ring.failed = True
            actions.append(RingFault(ring.spec.ring_id, rank, rule, evidence))


def _opening(ring: RingState, flow: Flow, header: bytes) -> InaHeader | None:
    """The INA header of a first packet, if a message of the ring and rank may open with it."""
    try:
        ina = InaHeader.decode(header)
    except DecodeError:
        return None
    if foreign_field(ina, ring.spec, ring.epoch, flow.spec.rank):
        return None
    if ina.msg_len > ring.spec.message_packets or ina.is_result:
        return None
    return ina


def _has_failed(ring: RingState) -> bool:
    """``ring.failed``, asked again: a packet of this very run may have faulted the ring."""
    return ring.failed


def _offsets(offsets: Rows) -> NDArray[np.intp]:
    return np.arange(offsets.start, offsets.stop) if isinstance(offsets, slice) else offsets


def foreign_field(ina: InaHeader, spec: RingSpec, epoch: int, rank: int) -> tuple[str, str] | None:
    """(rule, evidence) for the first field of a header that is not that of its ring, turn and rank."""
    if (ina.ring_id, ina.key, ina.epoch, ina.rank, ina.ring_size) == (
        spec.ring_id,
        spec.key,
        epoch,
        rank,
        spec.size,
    ):
        return None
    who = f"ring {spec.ring_id}, rank {rank}"
    for rule, got, expected in (
        ("wrong ring", ina.ring_id, spec.ring_id),
        ("wrong key", ina.key, spec.key),
        ("wrong epoch", ina.epoch, epoch),
        ("wrong rank", ina.rank, rank),
    ):
        if got != expected:
            # A key is a secret: say that it is wrong, not what it is.
            return rule, who if rule == "wrong key" else f"{who}: {got}, expected {expected}"
    return "wrong ring size", f"{who}: {ina.ring_size}, expected {spec.size}"


def peer_of(run: RoceRun | Packet, outer: bytes = b"") -> str:
    """A sender and whom it meant, for people; ``outer``: the outer part that was taken off, if one was."""
    addresses = addresses_of(outer)
    source = ipaddress.ip_address(run.src_ip if addresses is None else addresses[0])
    return f"{source} to queue pair {run.dest_qp}"


def _disagreement(first: InaHeader, other: InaHeader) -> str:
    """How two ranks' headers of one message differ where they must agree; empty if they do not."""
    fields = ("op_index", "dtype", "op", "msg_len", "flags", "signature")
    if all(getattr(first, name) == getattr(other, name) for name in fields):
        return ""

    def describe(header: InaHeader) -> str:
        ends = " (its last)" if header.flags else ""
        return (
            f"rank {header.rank} sent operation {header.op_index} {header.op.name.lower()} of "
            f"{header.dtype.name.lower()}, {header.msg_len} packets{ends}, "
            f"digest of type, operation and shape {header.signature:#06x}"
        )

    return f"{describe(other)}; {describe(first)}"
