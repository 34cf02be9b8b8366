"""What reaches a switch of a tree beside its inputs: results, notes, packets to steer (NetReduce 3.3).

Inputs go through :class:`~inaproto.core.switch.ingest.Ingest`, those of a switch below like those of a rank.
Here:

- *Results* from the switch above are checked as inputs are (ICRC, port, address, layout, the whole header of
  a first packet), placed by PSN alone, and take the place of the sums that went up. A result of a slot whose
  sum is not complete here is dropped: it cannot be one.
- *Notes* carry the ring's key; each switch on their way checks and sends them on.
- *Steering*: packets of ranks that a switch above adds up, and virtual connections of their ring, leave
  towards it unchanged. A result from there goes where its receiver's own packets come from, the rest is
  bridged. The source address of a result is that of its rank, which may be on this side: not learnt.
- Packets on connections of a ring that are no inputs here, and between switches of a ring that is not here
  (this switch restarted), are dropped by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inaproto.core.plan.aggregation_tree import VIRTUAL_QP_BASE
from inaproto.core.switch.events import Action, Counters
from inaproto.core.switch.ingest import Ingest, peer_of
from inaproto.core.switch.lookup_table import LookupTable
from inaproto.core.switch.message_packets import (
    DATA_OPCODES,
    LAST_OPCODES,
    ONLY_OPCODES,
    OPENING_OPCODES,
    TOS,
    packet_fault,
)
from inaproto.core.switch.region_kernels import LastPacket
from inaproto.core.switch.ring_spec import RingSpec
from inaproto.core.switch.slot_pools import STALE, Refusal
from inaproto.core.switch.tree.region import TreeRegion
from inaproto.core.switch.tree.ring import TreeFlow, TreeRing, install_tree
from inaproto.core.switch.tree.selective import SelectiveTreeEmission
from inaproto.core.switch.tree.translation import Connection, is_virtual
from inaproto.errors import Blame, DecodeError
from inaproto.units import PortId
from inaproto.wire.ina_header import INA_HEADER_BYTES
from inaproto.wire.roce import Opcode
from inaproto.wire.tree_note import NoteKind, TreeNote
from inaproto.wire.vector import RoceRun

NOT_AN_INPUT: Final = "not an input of this switch"
NO_RING: Final = "virtual connection of no ring here"
_MARK: Final = 3
"""Congestion experienced (ECN)."""
_ADDRESSES_END: Final = 12
"""End of the Ethernet addresses in a header."""
ELSEWHERE: Final = "not from where its switch is"


@dataclass(slots=True)
class SteeredRing:
    """A ring whose packets this switch does not add up."""

    spec: RingSpec
    steer_to: PortId
    steered: frozenset[int]
    connections: dict[Connection, int]
    """Those that begin or end below this switch: the rank that sends on each."""
    port_of: dict[int, PortId] = field(default_factory=dict)
    """Where the packets of steered ranks come from."""
    port_of_switch: dict[bytes, PortId] = field(default_factory=dict)
    """Ports to the switches whose sums it passes on, by IP address."""
    below: frozenset[PortId] | None = None
    """As in its role."""
    passes_sums: bool = False
    """What switches below add up has come by here. So a rank whose packets have not may still be below,
    though its results come from above: they no longer say where it is."""

    def receiver_port(self, connection: Connection) -> PortId | None:
        """Where the results of a connection go, if its receiver has shown where it is, or is a switch."""
        rank = self.connections.get(connection)
        if rank is None:
            return self.port_of_switch.get(connection[1])
        return self.port_of.get((rank + 1) % self.spec.size)

    def teaches(self, port: PortId) -> bool:
        """Whether where its packets come from says where ordinary traffic finds their sender."""
        return self.below is None or (port != self.steer_to and port not in self.below)

    def port_down(self, port: PortId) -> None:
        self.port_of = {rank: at for rank, at in self.port_of.items() if at != port}

    @property
    def virtual_qp(self) -> int:
        return VIRTUAL_QP_BASE | self.spec.ring_id & (VIRTUAL_QP_BASE - 1)


class TreeTraffic:
    """Rings that span several switches, beyond what they have in common with those of one."""

    def __init__(
        self,
        table: LookupTable,
        ingest: Ingest,
        emission: SelectiveTreeEmission,
        counters: Counters,
        ports_up: frozenset[PortId] = frozenset(),
    ) -> None:
        """``ports_up``: those to all switches above."""
        self._ports_up = ports_up
        self._table = table
        self._ingest = ingest
        self._emission = emission
        self._counters = counters
        self._others: dict[Connection, tuple[TreeRing, TreeFlow]] = {}
        """Connections of rings that are no inputs here."""
        self._steered: dict[int, SteeredRing] = {}
        self._steered_by: dict[Connection, SteeredRing] = {}

    @property
    def steered(self) -> Sequence[SteeredRing]:
        return tuple(self._steered.values())

    def knows(self, connection: Connection) -> bool:
        """Whether the connection belongs to a ring here without being an input."""
        return connection in self._others or connection in self._steered_by

    # -- rings ---------------------------------------------------------------------------------

    def install(self, spec: RingSpec) -> TreeRing | None:
        """Take a ring with a role on; None if its packets are only steered."""
        role = spec.role
        assert role is not None, "a ring of one switch needs nothing of this"
        if not role.inputs:
            assert role.steer_to is not None, "a role without inputs steers"
            steered = frozenset(role.steered)
            connections = {
                flow.connection: flow.rank
                for flow in spec.flows
                if flow.rank in steered or (flow.rank + 1) % spec.size in steered
            }
            ring = SteeredRing(
                spec,
                role.steer_to,
                steered,
                connections,
                port_of_switch={link.there_ip: link.port for link in role.passes},
                below=None if role.below is None else frozenset(role.below),
            )
            self._steered[spec.ring_id] = ring
            self._steered_by.update(dict.fromkeys(connections, ring))
            return None
        state = install_tree(spec, role, self._table, self._ports_up)
        for flow in state.flows:
            if flow.spec.connection not in self._table and isinstance(flow, TreeFlow):
                self._others[flow.spec.connection] = state, flow
        return state

    def remove(self, ring: TreeRing) -> None:
        for flow in ring.flows:
            self._others.pop(flow.spec.connection, None)

    def remove_steered(self, ring_id: int) -> SteeredRing | None:
        ring = self._steered.pop(ring_id, None)
        if ring is not None:
            for connection in ring.connections:
                del self._steered_by[connection]
        return ring

    def is_steered(self, ring_id: int) -> bool:
        return ring_id in self._steered

    # -- steering ------------------------------------------------------------------------------

    def steering(self, run: RoceRun) -> SteeredRing | None:
        """The ring whose packets these are, if this switch steers them."""
        if not self._steered or run.opcode == Opcode.RC_ACK:
            return None
        found = self._steered_by.get((run.src_ip, run.dst_ip, run.dest_qp))
        if found is None and is_virtual(run):
            found = next((ring for ring in self._steered.values() if ring.virtual_qp == run.dest_qp), None)
        return found

    # -- packets -------------------------------------------------------------------------------

    def input(
        self, ring: TreeRing, flow: TreeFlow, port: PortId, run: RoceRun, actions: list[Action]
    ) -> None:
        """Packets on a connection that is an input here."""
        if not flow.may_come(port):
            if not flow.below:
                # A result that was sent everywhere because nobody knew where its receiver is.
                self._counters.drop(NOT_AN_INPUT, len(run.frames))
            elif (right := self._intact(ring, run)) is not None:
                self._refuse(right, ELSEWHERE, f"port {port}", actions)
        elif not flow.below or run.opcode != Opcode.RC_SEND_ONLY:
            self._ingest.general(ring, flow, port, run, actions)
        elif (right := self._intact(ring, run)) is not None:
            self._notes(ring, right, actions)

    def other(self, port: PortId, run: RoceRun, actions: list[Action]) -> TreeRing | None:
        """Packets on any other connection, less those that nothing here says anything of: ``takes`` them.

        Returns the ring that may have moved.
        """
        known = self._others.get((run.src_ip, run.dst_ip, run.dest_qp))
        if known is None:
            self._counters.drop(NO_RING, len(run.frames))
            return None
        ring, flow = known
        if flow is not ring.from_parent or ring.parent is None:
            self._counters.drop(NOT_AN_INPUT, len(run.frames))
            return None
        right = self._intact(ring, run)
        if right is None:
            return None
        if port != ring.parent.port:
            self._refuse(right, ELSEWHERE, f"port {port}", actions)
        elif right.opcode == Opcode.RC_SEND_ONLY:
            self._notes(ring, right, actions)
        elif right.opcode in DATA_OPCODES:
            self._results(ring, right, actions)
        else:
            self._refuse(right, "not an RDMA WRITE", f"opcode {run.opcode:#04x}", actions)
        return ring

    def takes(self, run: RoceRun) -> bool:
        """Whether ``other`` is to have these packets."""
        return (run.src_ip, run.dst_ip, run.dest_qp) in self._others or is_virtual(run)

    def _intact(self, ring: TreeRing, run: RoceRun) -> RoceRun | None:
        """What of the packets is right; None if nothing is, or the ring has failed."""
        if ring.failed:
            self._counters.drop("ring failed", len(run.frames))
            return None
        if run.intact():
            return run
        right = run.verify()
        self._counters.drop("wrong ICRC", int(len(right) - right.sum()))
        return run.select(right) if right.any() else None

    def _refuse(
        self, run: RoceRun, rule: str, evidence: str, actions: list[Action], packets: int = 0
    ) -> None:
        self._counters.drop(rule, packets or len(run.frames))
        actions.append(Blame(peer_of(run, self._ingest.tag), rule, evidence))

    # -- results from above --------------------------------------------------------------------

    def _results(self, ring: TreeRing, run: RoceRun, actions: list[Action]) -> None:
        array = ring.tree_array
        half = 1 << (ring.spec.psn_bits - 1)
        frontier = array.frontier
        mask = 2 * half - 1
        positions = frontier - half + ((run.psn - array.start_psn - frontier + half) & mask)
        serials = positions // ring.spec.message_packets
        breaks = np.flatnonzero(np.diff(serials)) + 1
        for begin, end in pairwise([0, *breaks.tolist(), len(positions)]):
            rows = slice(begin, end)
            serial = int(serials[begin])
            offsets: NDArray[np.intp] = positions[rows] - serial * ring.spec.message_packets
            region = None if serial < 0 else ring.region_at(serial)
            if region is None:
                self._counters.drop("result of no message here", end - begin)
                continue
            if not self._fits(ring, region, run, rows, offsets, actions):
                continue
            self._counters.results_in += end - begin
            region.marked[offsets] |= run.frames[rows, TOS] & _MARK == _MARK
            spans = region.keep_results(offsets, run.tail[rows], (run.icrc ^ run.header_crc)[rows])
            if spans:
                position = serial * ring.spec.message_packets + spans[-1][1] - 1
                array.done_high = max(array.done_high, position)
                ring.answered.add(serial)
                self._emission.results_down(ring, region, spans, actions)

    def _fits(
        self,
        ring: TreeRing,
        region: TreeRegion,
        run: RoceRun,
        rows: slice,
        offsets: NDArray[np.intp],
        actions: list[Action],
    ) -> bool:
        """Whether packets can be the results of these slots."""
        count = len(offsets)
        fault = packet_fault(run, offsets, region.packets, ring.spec.mtu)
        if fault is None and run.opcode in LAST_OPCODES | ONLY_OPCODES:
            layout = LastPacket(run.opcode, run.header_bytes, run.payload_bytes, run.pad)
            fault = None if layout == region.last else "another last packet than the inputs have"
        if fault is not None:
            self._refuse(run, "layout", fault, actions, count)
            return False
        if not region.done[offsets].all():
            self._counters.drop("result before its sum", count)
            return False
        if run.opcode in OPENING_OPCODES and ring.parent is not None:
            said = run.payload()[rows.start, :INA_HEADER_BYTES].tobytes()
            if said != region.ina_of(ring.parent.connection.rank, result=True):
                self._refuse(run, "no result of this message", f"message {region.serial}", actions, count)
                return False
        return True

    # -- notes ---------------------------------------------------------------------------------

    def _notes(self, ring: TreeRing, run: RoceRun, actions: list[Action]) -> None:
        for record in run.payload():
            data = record.tobytes()
            try:
                note = TreeNote.decode(data)
            except DecodeError as error:
                self._refuse(run, "no tree note", str(error), actions, 1)
                continue
            spec = ring.spec
            epoch = ring.epoch if spec.pool is None else note.epoch
            if (note.ring_id, note.epoch, note.key) != (spec.ring_id, epoch, spec.key):
                self._refuse(run, "note of another ring", str(note), actions, 1)
                continue
            link = ring.note_links.get(note.rank)
            flow = ring.learnt.get(note.rank)
            refusal = None if note.epoch == ring.epoch else self._other_turn(ring, flow, note, actions)
            if refusal is not None and refusal.evidence:
                self._refuse(run, refusal.rule, refusal.evidence, actions, 1)
            elif refusal is not None:
                self._counters.drop(refusal.rule, 1)
            elif flow is not None and not self._is_current(ring, note):  # late, and nobody is to blame
                self._counters.drop("note of another message", 1)
            elif flow is not None and self._is_about(ring, flow, note):
                self._counters.notes_in += 1
                self._heed(ring, flow, note, actions)
            elif link is not None and note.rank not in ring.role.ranks:
                self._counters.notes_in += 1
                self._emission.send_note(link, data, actions)
            else:
                self._refuse(run, "note for nobody here", str(note), actions, 1)

    def _other_turn(
        self, ring: TreeRing, flow: TreeFlow | None, note: TreeNote, actions: list[Action]
    ) -> Refusal | None:
        """Why a note of a turn that is not the ring's present one is not heeded.

        That a message opens elsewhere begins its turn here, as its first packet would. Other notes follow
        that one, and may come though it was lost. What only passes here is for others to judge, if it is not
        stale.
        """
        if flow is None or note.kind is not NoteKind.OPENS:
            stale = self._ingest.is_stale(ring, note.epoch)
            return Refusal(STALE) if stale else None if flow is None else Refusal("note of a turn to come")
        if not self._is_about(ring, flow, note):
            return Refusal("note for nobody here", str(note))
        return self._ingest.begin_turn(ring, note.epoch, ring.array.serial_of(note.msg_id), actions)

    @staticmethod
    def _is_current(ring: TreeRing, note: TreeNote) -> bool:
        """Whether the message may be under way."""
        array = ring.tree_array
        serial = array.serial_of(note.msg_id)
        regions = ring.spec.regions
        return max(0, array.next_serial - regions) <= serial < array.next_serial + regions

    @staticmethod
    def _is_about(ring: TreeRing, flow: TreeFlow, note: TreeNote) -> bool:
        """Whether a note can be about packets of this connection."""
        if note.kind is not NoteKind.OPENS:
            return note.offset < ring.spec.message_packets
        header = note.header
        connection = (header[26:30], header[30:34], int.from_bytes(header[47:50], "big"))
        return connection == flow.spec.connection

    def _heed(self, ring: TreeRing, flow: TreeFlow, note: TreeNote, actions: list[Action]) -> None:
        array = ring.tree_array
        serial = array.serial_of(note.msg_id)
        position = serial * ring.spec.message_packets + note.offset
        match note.kind:
            case NoteKind.OPENS:
                index = serial % len(flow.openings)
                known = flow.openings[index]
                if known is not None and known[0] > serial:
                    return
                is_news = known is None or known[0] < serial
                flow.openings[index] = serial, flow.spec.addresses + note.header[_ADDRESSES_END:]
                region = ring.region_at(serial)
                if region is not None:
                    region.undress(flow.row)
                if not ring.spec.selective:
                    self._emission.catch_up(ring, flow, actions)
                elif is_news:
                    self._emission.opened(ring, flow, serial, actions)
            case NoteKind.REPEATS:
                self._emission.repeated_elsewhere(ring, flow, position, position + note.count - 1, actions)
            case NoteKind.GAP:
                if position > flow.hole:  # holes are told in order: this one is no late copy
                    flow.hole = position
                    self._emission.signal_told_gap(ring, flow, actions)
