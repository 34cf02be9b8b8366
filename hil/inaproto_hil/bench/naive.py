"""The per-packet accelerator: the rules of :mod:`inaproto.core.switch.accelerator`, one packet at a time.

A second implementation, written from the rules and not from the core: frames are ``bytes``, headers are
taken apart with ``struct``, every ICRC is a whole zlib CRC, tables are dicts. It is the baseline of
the benchmark and the judge of ``tests/property/test_accelerator_against_reference.py``, so it is plain
but not slow on purpose: compiled formats, header and payload cut once, no copies it can avoid.

Differences from the core that whoever compares them must know: nothing here bounds memory but the window, and
without a clock packets wait for the first one of their message without end, and the connections of a removed
ring stay closed until a ring has them again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

import numpy as np

from inaproto.core.switch.ring_spec import RingSpec
from inaproto.errors import Blame
from inaproto.wire.connection import lenient_connection
from inaproto_hil.bench.naive_tables import (
    ITEMSIZE,
    Flow,
    Ina,
    Message,
    Position,
    Ring,
    Slot,
    crc,
    reduce_packet,
)

Output = list[tuple[int, bytes]]

# Ethernet, IPv4, UDP and BTH, without what no rule asks for.
_HEADERS: Final = struct.Struct(">12xHBxHxxHxBxx4s4sxxHHxxBBxxII")
_ICRC: Final = struct.Struct("<I")
# Bytes of headers before the payload of a request, SEND or WRITE, by opcode.
_HEADER_BYTES: Final = {
    **dict.fromkeys((0x00, 0x01, 0x02, 0x04, 0x07, 0x08), 54),
    **dict.fromkeys((0x03, 0x05, 0x09), 58),
    **dict.fromkeys((0x06, 0x0A), 70),
    0x0B: 74,
}
_OPENING: Final = frozenset({0x06, 0x0A, 0x0B})
_ENDING: Final = frozenset({0x08, 0x09})


class NaiveAccelerator:
    """See the module. ``blames`` and ``faults`` (ring, rank, rule) grow in the order of events."""

    def __init__(
        self, specs: Iterable[RingSpec] = (), *, replay_fill_packets_max: int = 32, addresses_max: int = 4096
    ) -> None:
        self._fill_max = replay_fill_packets_max
        self._addresses_max = addresses_max
        self._rings: dict[int, Ring] = {}
        self._flows: dict[tuple[bytes, bytes, int], Flow] = {}
        self._closed: set[tuple[bytes, bytes, int]] = set()
        self._ports: dict[int, None] = {}
        self._port_of: dict[bytes, int] = {}
        self.blames: list[Blame] = []
        self.faults: list[tuple[int, int, str]] = []
        self.counters = dict.fromkeys(
            (
                *("aggregated_in", "results_out", "replayed", "replay_filled", "gaps_signalled", "bridged"),
                *("early", "early_taken"),
            ),
            0,
        )
        self.dropped: dict[str, int] = {}
        for spec in specs:
            self.install(spec)

    def install(self, spec: RingSpec) -> None:
        ring = Ring(spec, [None] * spec.regions)
        self._rings[spec.ring_id] = ring
        for flow in spec.flows:
            entry = Flow(ring, flow.rank, [None] * spec.regions)
            ring.flows.append(entry)
            self._flows[flow.connection] = entry
            self._closed.discard(flow.connection)

    def remove(self, ring_id: int) -> None:
        for flow in self._rings.pop(ring_id).spec.flows:
            del self._flows[flow.connection]
            self._closed.add(flow.connection)

    def port_up(self, port: int) -> None:
        self._ports[port] = None

    def port_down(self, port: int) -> None:
        self._ports.pop(port, None)
        self._port_of = {mac: at for mac, at in self._port_of.items() if at != port}
        for flow in self._flows.values():
            if flow.port == port:
                flow.port = -1

    def receive(self, port: int, frame: bytes) -> Output:
        """One frame in, (port, frame) out in the order of sending."""
        return self.receive_batch(port, (frame,))

    def receive_batch(self, port: int, frames: Iterable[bytes]) -> Output:
        """The frames of one arrival; results and gap signals follow when all of them are taken in."""
        out: Output = []
        touched: dict[int, Ring] = {}
        with np.errstate(all="ignore"):
            for frame in frames:
                self._packet(port, frame, touched, out)
            for flow in self._flows.values():
                if flow.early and flow.ring.spec.ring_id in touched:
                    self._take_early(flow, touched, out)
        for ring in touched.values():
            if not ring.failed:
                self._advance(ring, out)
        return out

    # -- one packet in -------------------------------------------------------------------------

    def _packet(self, port: int, frame: bytes, touched: dict[int, Ring], out: Output) -> None:
        length = len(frame)
        if length < 14:
            self._drop("frame shorter than an Ethernet header")
            return
        source = frame[6:12]
        regular = False
        if length >= 58:
            (
                ethertype,
                version,
                total,
                fragment,
                protocol,
                src,
                dst,
                udp_port,
                udp_length,
                opcode,
                bits,
                qp,
                psn,
            ) = _HEADERS.unpack_from(frame)
            header_bytes = _HEADER_BYTES.get(opcode)
            end = 10 + total  # of the payload: the ICRC is behind it
            if (
                header_bytes is not None
                and ethertype == 0x0800
                and version == 0x45
                and protocol == 17
                and not fragment & 0x3FFF
                and udp_port == 4791
                and udp_length == total - 20
                and header_bytes + (bits >> 4 & 3) <= end <= length - 4
            ):
                regular = True
                connection = (src, dst, qp & 0xFF_FFFF)
                flow = self._flows.get(connection)
                if flow is not None:
                    touched[flow.ring.spec.ring_id] = flow.ring
                    self._data(
                        flow, port, frame, opcode, header_bytes, end, bits >> 4 & 3, psn & 0xFF_FFFF, out
                    )
                    if flow.port == port:  # a damaged packet says nothing of where its sender is
                        self._learn(source, port)
                    return
                if connection in self._closed:
                    self._drop("ring removed")
                    return
                self._learn(source, port)
                if opcode in _OPENING and self._stray(frame, header_bytes, end):
                    return
        if not regular:
            self._learn(source, port)
        lenient = lenient_connection(frame)
        of_ring = lenient is not None and (lenient[:3] in self._flows or lenient[:3] in self._closed)
        if lenient is not None and of_ring and not regular and lenient[3] != 0x11:
            self._drop("malformed packet of a ring")
            return
        self.counters["bridged"] += 1
        for egress in self._egress(frame[:6], port):
            out.append((egress, frame))

    def _data(
        self,
        flow: Flow,
        port: int,
        frame: bytes,
        opcode: int,
        header_bytes: int,
        end: int,
        pad: int,
        psn: int,
        out: Output,
    ) -> None:
        """A request on a registered connection: check, place and keep it; replay its result."""
        ring = flow.ring
        if ring.failed:
            self._drop("ring failed")
            return
        # The INA header of a first packet counts as header: it is the sender's own and never summed.
        begin = min(header_bytes + 40, end) if opcode in _OPENING else header_bytes
        head, tail = frame[:begin], frame[begin:end]
        if crc(head, tail) != _ICRC.unpack_from(frame, end)[0]:
            self._drop("wrong ICRC")
            return
        if opcode < 0x06:
            self._refuse(frame, "not an RDMA WRITE")
            return
        if opcode in _OPENING:
            if not self._open(flow, frame, header_bytes, end - pad, psn):
                return
        elif flow.port != -1 and (flow.port != port or frame[6:12] not in (flow.mac, flow.mac_before)):
            self._refuse(frame, "not from where its rank is")
            return
        if flow.port != port:
            flow.mac_before = b""
        elif flow.mac != frame[6:12]:
            flow.mac_before = flow.mac
        flow.port, flow.mac = port, frame[6:12]
        mask = (1 << ring.spec.psn_bits) - 1
        entry = flow.opened[flow.latest]
        if entry is None or (psn - entry[1]) & mask >= entry[2]:
            for index, entry in enumerate(flow.opened):
                if entry is not None and (psn - entry[1]) & mask < entry[2]:
                    flow.latest = index
                    break
            else:
                if self._may_open(flow, psn):
                    self.counters["early"] += 1
                    flow.early.append((port, frame, psn))
                else:
                    self._drop("first packet of the message not seen")
                return
        assert entry is not None, "an entry was hit"
        serial = entry[0]
        message = ring.at(serial)
        if message is None:
            self._drop("older than the tenant")
            return
        offset = (psn - entry[1]) & mask
        rule = self._layout(ring.spec, message, opcode, offset, end - pad - header_bytes, pad)
        if rule:
            ring.failed = True
            self.faults.append((ring.spec.ring_id, flow.rank, rule))
            self._drop("layout")
            return
        self.counters["aggregated_in"] += 1
        slot = message.slots[offset]
        rank = flow.rank
        if opcode in _OPENING:  # marked as a result: bit 1 of the INA header's flags
            at = header_bytes + 7
            head = head[:at] + bytes([head[at] | 2]) + head[at + 1 :]
        if head[40] or head[41]:  # the UDP checksum of another payload
            head = head[:40] + b"\0\0" + head[42:]
        slot.heads[rank] = head
        flow.reached = (serial, offset)
        if slot.result is None:
            if slot.tails[rank] is None:
                slot.missing -= 1
            slot.tails[rank] = tail
            if not slot.missing:
                slot.result = reduce_packet(message.agreed[1], message.agreed[2], slot.tails, pad)
                slot.tails = []
                ring.done_high = max(ring.done_high, (serial, offset))
        if flow.replay_next is not None or (serial, offset) < (ring.serial, ring.offset):
            self._replay(flow, (serial, offset), out)

    @staticmethod
    def _may_open(flow: Flow, psn: int) -> bool:
        """Whether a message that the flow does not know yet may have that PSN."""
        spec = flow.ring.spec
        mask = (1 << spec.psn_bits) - 1
        known = sorted(entry for entry in flow.opened if entry is not None)
        if not known:
            return True
        serial, first, packets = known[-1]
        begin = first - (spec.window_messages - 1) * spec.message_packets
        for older, psn0, length in known:
            if older <= serial - spec.window_messages:  # all results of that one were sent
                begin = psn0 + length
        span = (first + packets - begin) & mask
        return (psn - begin) & mask < span + spec.window_messages * spec.message_packets

    def _take_early(self, flow: Flow, touched: dict[int, Ring], out: Output) -> None:
        """A message may have opened: its packets that came before its first one come in now."""
        mask = (1 << flow.ring.spec.psn_bits) - 1
        waiting, flow.early = flow.early, []
        reached = flow.reached
        for port, frame, psn in waiting:
            offsets = [
                (psn - e[1]) & mask for e in flow.opened if e is not None and (psn - e[1]) & mask < e[2]
            ]
            if any(offsets):
                self.counters["early_taken"] += 1
                self._packet(port, frame, touched, out)
            elif not offsets and self._may_open(flow, psn):
                flow.early.append((port, frame, psn))
            else:
                self._drop("first packet of the message not seen")
        flow.reached = reached

    def _open(self, flow: Flow, frame: bytes, begin: int, end: int, psn: int) -> bool:
        """Take a message's first packet into the tables; False if it is refused."""
        ring = flow.ring
        spec = ring.spec
        ina = Ina.read(frame[begin:end])
        if ina is None:
            return self._refuse(frame, "no INA header")
        for rule, got, wanted in (
            ("wrong ring", ina.ring_id, spec.ring_id),
            ("wrong key", ina.key, spec.key),
            ("wrong epoch", ina.epoch, spec.epoch),
            ("wrong rank", ina.rank, flow.rank),
            ("wrong ring size", ina.ring_size, spec.size),
        ):
            if got != wanted:
                return self._refuse(frame, rule)
        if ina.msg_len > spec.message_packets:
            return self._refuse(frame, "message too long")
        ids = 1 << spec.msg_id_bits
        serial = ring.serial + (ina.msg_id - ring.serial + ids // 2) % ids - ids // 2
        index = serial % spec.regions
        tenant = ring.messages[index]
        if serial < 0 or (tenant is not None and serial < tenant.serial):
            self._drop("older than the tenant")
            return False
        if serial >= ring.serial + spec.window_messages:
            return self._refuse(frame, "window passed")
        if tenant is None or tenant.serial != serial:
            ring.messages[index] = Message(serial, ina, spec.size)
        elif tenant.agreed != ina.agreed:
            ring.failed = True
            self.faults.append((spec.ring_id, flow.rank, "operations differ"))
            self._drop("operations differ")
            return False
        entry = (serial, psn, ina.msg_len)
        known = flow.opened[index]
        if known is not None and known[0] == serial and known != entry:
            return self._refuse(frame, "message has another PSN")
        flow.opened[index] = entry
        flow.latest = index
        return True

    @staticmethod
    def _layout(spec: RingSpec, message: Message, opcode: int, offset: int, payload: int, pad: int) -> str:
        """The rule that a packet breaks by its form, or nothing."""
        final = offset == message.packets - 1
        if opcode == 0x07:
            right = offset > 0 and not final and payload == spec.mtu
        elif opcode == 0x06:
            right = offset == 0 and not final and payload == spec.mtu
        else:
            right = final and (offset > 0) == (opcode in _ENDING) and 0 < payload <= spec.mtu
        if not right or pad != -payload % 4 or payload % ITEMSIZE[message.agreed[1]]:
            return "packet layout"
        if final:
            if message.last is None:
                message.last = (opcode, payload)
            elif message.last != (opcode, payload):
                return "operations differ"
        return ""

    def _stray(self, frame: bytes, begin: int, end: int) -> bool:
        """An INA message on a connection that no ring registered is dropped, whoever sent it."""
        ina = Ina.read(frame[begin : end - (frame[43] >> 4 & 3)])
        if ina is None:
            return False
        if crc(frame[:begin], frame[begin:end]) != _ICRC.unpack_from(frame, end)[0]:
            self._drop("wrong ICRC")  # damaged on its way: nobody to blame
        else:
            self._refuse(frame, "connection not registered" if ina.ring_id in self._rings else "unknown ring")
        return True

    # -- results out ---------------------------------------------------------------------------

    def _replay(self, flow: Flow, position: Position, out: Output) -> None:
        """Answer a packet that came again, after what a short hole before it left out."""
        ring = flow.ring
        frontier = (ring.serial, ring.offset)
        begin = position
        if flow.replay_next is not None and flow.replay_next < position:
            hole = sum(1 for _ in ring.walk(flow.replay_next, position))
            if hole <= self._fill_max:
                begin = flow.replay_next
        for serial, offset, slot in ring.walk(begin, min(ring.after(position), frontier)):
            self.counters["replayed"] += 1
            self.counters["replay_filled"] += (serial, offset) != position
            self._emit(flow, slot, out)
        following = ring.after(position)
        flow.replay_next = following if following < frontier else None

    def _advance(self, ring: Ring, out: Output) -> None:
        """Send the results that are next in PSN order, then tell flows with a gap of their own."""
        while (message := ring.at(ring.serial)) is not None:
            slot = message.slots[ring.offset]
            if slot.result is None:
                break
            self.counters["results_out"] += ring.spec.size
            for flow in ring.flows:
                self._emit(flow, slot, out)
            ring.offset += 1
            if ring.offset == message.packets:
                ring.serial, ring.offset = ring.serial + 1, 0
        if ring.done_high >= (ring.serial, ring.offset):
            for flow in ring.flows:
                self._signal_gap(flow, out)

    def _signal_gap(self, flow: Flow, out: Output) -> None:
        """Send the first result behind a packet that this flow has not brought, once for that gap.

        Not while its sender is before the gap: it went back, and brings the packet unasked.
        """
        ring = flow.ring
        gap: Position | None = None
        for serial in range(ring.serial, ring.done_high[0] + 1):
            message = ring.at(serial)
            if message is None:  # nobody's first packet came
                gap = gap or (serial, 0)
                continue
            begin = ring.offset if serial == ring.serial else 0
            for offset in range(begin, message.packets):
                slot = message.slots[offset]
                if slot.result is None:
                    if gap is None and slot.tails[flow.rank] is None:
                        gap = (serial, offset)
                elif gap is not None:
                    if flow.gap_signalled != gap and flow.reached > gap:
                        flow.gap_signalled = gap
                        self.counters["gaps_signalled"] += 1
                        self._emit(flow, slot, out)
                    return

    def _emit(self, flow: Flow, slot: Slot, out: Output) -> None:
        head, tail = slot.heads[flow.rank], slot.result
        assert tail is not None, "only results go out"
        packet = head + tail + _ICRC.pack(crc(head, tail))
        for egress in self._egress(packet[:6], flow.port):
            out.append((egress, packet))

    # -- bridge and books ----------------------------------------------------------------------

    def _learn(self, mac: bytes, port: int) -> None:
        if mac[0] & 1 or self._port_of.get(mac) == port:
            return
        if mac not in self._port_of and len(self._port_of) >= self._addresses_max:
            del self._port_of[next(iter(self._port_of))]
        self._port_of[mac] = port

    def _egress(self, mac: bytes, ingress: int) -> list[int]:
        port = self._port_of.get(mac)
        if port is not None and port in self._ports:
            return [port] if port != ingress else []
        return [other for other in self._ports if other != ingress]

    def _drop(self, rule: str) -> None:
        self.dropped[rule] = self.dropped.get(rule, 0) + 1

    def _refuse(self, frame: bytes, rule: str) -> bool:
        self._drop(rule)
        peer = ".".join(map(str, frame[26:30]))
        self.blames.append(Blame(peer, rule, f"to queue pair {int.from_bytes(frame[47:50], 'big')}"))
        return False
