"""The in-network accelerator: a switch that sums RoCEv2 packets in flight (NetReduce sections 3.1, 3.2, 4).

It composes the connection lookup table, the aggregator arrays of its rings and a learning bridge.
Packets of a registered connection are checked (ICRC), placed, kept and, once every rank has sent
them, replaced by the reduction under their own headers; everything else is bridged.

Rules beyond the paper's text, each with its reason:

- *Order*: on every flow results leave in PSN order. All flows of a ring carry the same sequence of
  (message, packet), so one frontier per ring decides; what is finished beyond it is held.
- *Gap*: a flow whose own packet is missing gets one later finished packet, once per gap. Its receiver
  sees the gap, NAKs, and the sender goes back at once; the other flows stay quiet. Without this a
  loss before the accelerator costs a full retransmission timeout.
- *Replay*: a packet that comes again for a result that was emitted gets the kept result, on its own
  flow only. A short hole in such a resend is filled from kept results: the receiver then sees no
  second gap, for which some stacks send no second NAK.
- *Refusal*: ranks that disagree about an operation fault the whole ring; nothing of it is forwarded
  any more, so nobody takes a partial or raw payload for a result.
- Packets with the INA magic on a connection that no ring registered are dropped, never bridged: the
  receiver would take a raw gradient for the sum.

Invariants: a payload that was not verified is never forwarded on a registered connection; a slot
holds packets of one message only; memory is bounded by ``AcceleratorConfig.memory_bytes_max``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Final, assert_never

from inaproto.core.aggregator import (
    DATA_OPCODES,
    MIDDLE,
    OPENING_OPCODES,
    AggregatorArray,
    LastPacket,
    OutputArena,
    Region,
    bytes_needed,
    packet_fault,
)
from inaproto.core.bridge import Bridge
from inaproto.core.lookup_table import Flow, LookupTable, MessageEntry, Rows
from inaproto.core.ring_spec import RingSpec
from inaproto.errors import Blame, DecodeError
from inaproto.units import Frames, Instant, PortId
from inaproto.wire.ina_header import INA_HEADER_BYTES, MAGIC, InaHeader
from inaproto.wire.vector import PlainRun, RoceRun, decode_runs

_MAGIC_BYTES: Final = MAGIC.to_bytes(4, "big")


@dataclass(frozen=True, slots=True)
class AcceleratorConfig:
    rings_max: int = 64
    memory_bytes_max: int = 1 << 30
    """All aggregator arrays together."""
    output_bytes_max: int = 64 << 20
    """Packets of one step that are kept in reused memory."""
    addresses_max: int = 4096
    replay_fill_packets_max: int = 32
    """Longest hole in a resend that is filled from kept results."""


@dataclass(frozen=True, slots=True)
class FramesArrived:
    """Blocks of frames in arrival order, as a port received them at once."""

    port: PortId
    blocks: Sequence[Frames]


@dataclass(frozen=True, slots=True)
class PortUp:
    port: PortId


@dataclass(frozen=True, slots=True)
class PortDown:
    port: PortId


@dataclass(frozen=True, slots=True)
class InstallRing:
    spec: RingSpec


@dataclass(frozen=True, slots=True)
class RemoveRing:
    ring_id: int


Event = FramesArrived | PortUp | PortDown | InstallRing | RemoveRing


@dataclass(frozen=True, slots=True)
class EmitFrames:
    """Send ``frames`` on ``port``.

    They are views of the frames that arrived or of memory that the accelerator uses again: copy them
    before the next step.
    """

    port: PortId
    frames: Frames


@dataclass(frozen=True, slots=True)
class RingFault:
    """The ring cannot go on: ``rank`` disagrees with the others. ``rule`` is a stable short name."""

    ring_id: int
    rank: int
    rule: str
    evidence: str


@dataclass(frozen=True, slots=True)
class RingRefused:
    """The ring was not installed; it gets no acceleration here."""

    ring_id: int
    reason: str


Action = EmitFrames | Blame | RingFault | RingRefused


@dataclass(slots=True)
class Counters:
    """Monotonic; in packets unless named otherwise."""

    aggregated_in: int = 0
    results_out: int = 0
    replayed: int = 0
    replay_filled: int = 0
    gaps_signalled: int = 0
    bridged: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    """By rule."""

    def drop(self, rule: str, packets: int) -> None:
        self.dropped[rule] = self.dropped.get(rule, 0) + packets


@dataclass(frozen=True, slots=True)
class AcceleratorView:
    rings: dict[int, dict[str, int | bool]]
    counters: Counters
    memory_bytes: int
    connections: int

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(slots=True)
class _Ring:
    spec: RingSpec
    array: AggregatorArray
    flows: list[Flow]
    failed: bool = False
    dirty: dict[int, Region] = field(default_factory=dict)
    """Regions that got packets in this step, by serial."""


class Accelerator:
    """See the module. ``step`` is total: no input of a peer makes it raise."""

    def __init__(self, config: AcceleratorConfig | None = None) -> None:
        self._config = config or AcceleratorConfig()
        self._table = LookupTable()
        self._rings: dict[int, _Ring] = {}
        self._bridge = Bridge(addresses_max=self._config.addresses_max)
        self._counters = Counters()
        self._memory_bytes = 0
        self._arena = OutputArena(self._config.output_bytes_max)

    @property
    def deadline(self) -> Instant | None:
        """The accelerator has no timers: senders retransmit."""
        return None

    def view(self) -> AcceleratorView:
        rings = {
            ring_id: {
                "ranks": ring.spec.size,
                "next_message": ring.array.next_serial,
                "next_packet": ring.array.next_offset,
                "failed": ring.failed,
            }
            for ring_id, ring in self._rings.items()
        }
        copied = Counters(**{**asdict(self._counters), "dropped": dict(self._counters.dropped)})
        return AcceleratorView(rings, copied, self._memory_bytes, len(self._table))

    def step(self, event: Event, now: Instant) -> list[Action]:
        actions: list[Action] = []
        self._arena.reset()
        match event:
            case FramesArrived(port, blocks):
                self._frames(port, blocks, actions)
            case PortUp(port):
                self._bridge.port_up(port)
            case PortDown(port):
                self._bridge.port_down(port)
            case InstallRing(spec):
                self._install(spec, actions)
            case RemoveRing(ring_id):
                self._remove(ring_id)
            case _:
                assert_never(event)
        return actions

    # -- rings ---------------------------------------------------------------------------------

    def _install(self, spec: RingSpec, actions: list[Action]) -> None:
        if spec.ring_id in self._rings:
            actions.append(RingRefused(spec.ring_id, f"ring {spec.ring_id} is installed already"))
            return
        if len(self._rings) >= self._config.rings_max:
            actions.append(RingRefused(spec.ring_id, f"all {self._config.rings_max} rings are in use"))
            return
        taken = next((flow for flow in spec.flows if flow.connection in self._table), None)
        if taken is not None:
            reason = f"the connection of rank {taken.rank} belongs to another ring"
            actions.append(RingRefused(spec.ring_id, reason))
            return
        need = bytes_needed(spec)
        if self._memory_bytes + need > self._config.memory_bytes_max:
            free = self._config.memory_bytes_max - self._memory_bytes
            actions.append(RingRefused(spec.ring_id, f"needs {need} bytes of memory, {free} are free"))
            return
        self._memory_bytes += need
        flows = [
            self._table.add(
                flow, ring_id=spec.ring_id, messages=spec.regions, psn_mask=(1 << spec.psn_bits) - 1
            )
            for flow in spec.flows
        ]
        self._rings[spec.ring_id] = _Ring(spec, AggregatorArray(spec), flows)

    def _remove(self, ring_id: int) -> None:
        ring = self._rings.pop(ring_id, None)
        if ring is None:
            return
        for flow in ring.spec.flows:
            self._table.remove(flow)
        self._memory_bytes -= bytes_needed(ring.spec)

    # -- frames --------------------------------------------------------------------------------

    def _frames(self, port: PortId, blocks: Sequence[Frames], actions: list[Action]) -> None:
        touched: dict[int, _Ring] = {}
        for frames in blocks:
            for run in decode_runs(frames):
                self._bridge.learn(run.src_mac, port)
                if isinstance(run, RoceRun) and run.opcode in DATA_OPCODES:
                    flow = self._table.get(run.src_ip, run.dst_ip, run.dest_qp)
                    if flow is not None:
                        ring = self._rings[flow.ring_id]
                        touched[flow.ring_id] = ring
                        flow.ingress = port
                        flow.dst_mac = run.dst_mac
                        self._ingest(ring, flow, run, actions)
                        continue
                    if run.opcode in OPENING_OPCODES and self._is_stray(run, actions):
                        continue
                self._forward(port, run, actions)
        for ring in touched.values():
            if not ring.failed:
                self._advance(ring, actions)

    def _forward(self, port: PortId, run: RoceRun | PlainRun, actions: list[Action]) -> None:
        if not run.dst_mac:
            self._counters.drop("frame shorter than an Ethernet header", len(run.frames))
            return
        self._counters.bridged += len(run.frames)
        egress = self._bridge.egress(run.dst_mac, port)
        actions.extend(EmitFrames(PortId(out), run.frames) for out in egress)

    def _is_stray(self, run: RoceRun, actions: list[Action]) -> bool:
        """INA messages on a connection that no ring registered: dropped and blamed."""
        payload = run.payload()
        if run.payload_bytes < INA_HEADER_BYTES or payload[0, :4].tobytes() != _MAGIC_BYTES:
            return False
        try:
            header = InaHeader.decode(payload[0, :INA_HEADER_BYTES].tobytes())
        except DecodeError:
            return False
        known = header.ring_id in self._rings
        rule = "connection not registered" if known else "unknown ring"
        self._counters.drop(rule, len(run.frames))
        evidence = f"ring {header.ring_id}, rank {header.rank}, message {header.msg_id}"
        actions.append(Blame(_peer(run), rule, evidence))
        return True

    def _ingest(self, ring: _Ring, flow: Flow, run: RoceRun, actions: list[Action]) -> None:
        if ring.failed:
            self._counters.drop("ring failed", len(run.frames))
            return
        if run.opcode == MIDDLE and len(run.frames) > 1 and self._ingest_fresh(ring, flow, run):
            return
        if not run.intact():
            right = run.verify()
            self._counters.drop("wrong ICRC", int(len(right) - right.sum()))
            if not right.any():
                return
            run = run.select(right)
        if run.opcode in OPENING_OPCODES:
            for row in range(len(run.frames)):
                if not self._open(ring, flow, run, row, actions):
                    return
        placed = 0
        for entry, rows, offsets in flow.locate(run.psn):
            region = ring.array.region_of(entry.serial)
            count = offsets.stop - offsets.start if isinstance(offsets, slice) else len(offsets)
            placed += count
            if region.serial != entry.serial:
                self._counters.drop("older than the tenant", count)
            elif self._layout_holds(ring, flow, run, region, offsets, actions):
                self._store(ring, flow, region, run, rows, offsets, actions)
            else:
                self._counters.drop("layout", count)
        if placed < len(run.frames):
            self._counters.drop("first packet of the message not seen", len(run.frames) - placed)

    def _ingest_fresh(self, ring: _Ring, flow: Flow, run: RoceRun) -> bool:
        """The common case, quickly: consecutive middle packets, none of which came before.

        False, with nothing changed, where any of that does not hold; the general way takes over.
        """
        if run.payload_bytes != ring.spec.mtu or flow.replay_next is not None:
            return False
        located = next(flow.locate(run.psn), None)
        if located is None:
            return False
        entry, _, offsets = located
        if not isinstance(offsets, slice) or offsets.stop - offsets.start != len(run.frames):
            return False
        region = ring.array.region_of(entry.serial)
        if region.serial != entry.serial or offsets.start < 1 or offsets.stop > region.packets - 1:
            return False
        right = region.store_fresh(flow.spec.rank, run, offsets)
        if right is None:
            return False
        self._counters.aggregated_in += right
        if right < len(run.frames):
            self._counters.drop("wrong ICRC", len(run.frames) - right)
        if right:
            filled = region.seen[flow.spec.rank, offsets]
            last = offsets.stop - 1 - int(filled[::-1].argmax())
            flow.high = max(flow.high, region.serial * ring.spec.message_packets + last)
            ring.dirty[region.serial] = region
        return True

    def _open(self, ring: _Ring, flow: Flow, run: RoceRun, row: int, actions: list[Action]) -> bool:
        """Take a message's first packet into the table and its region; False if it is dropped."""
        rank = flow.spec.rank
        try:
            ina = InaHeader.decode(run.payload()[row, :INA_HEADER_BYTES].tobytes())
        except DecodeError as error:
            return self._refuse(run, "no INA header", str(error), actions)
        spec = ring.spec
        if (ina.ring_id, ina.key, ina.epoch, ina.rank, ina.ring_size) != (
            spec.ring_id,
            spec.key,
            spec.epoch,
            rank,
            spec.size,
        ):
            return self._refuse_header(run, flow, spec, ina, actions)
        if ina.msg_len > spec.message_packets:
            evidence = f"{ina.msg_len} packets, at most {spec.message_packets}"
            return self._refuse(run, "message too long", evidence, actions)
        array = ring.array
        serial = array.serial_of(ina.msg_id)
        region = array.region_of(serial)
        if serial < region.serial or serial < 0:
            self._counters.drop("older than the tenant", 1)
            return False
        if serial >= array.next_serial + spec.window_messages:
            evidence = f"message {ina.msg_id}, {serial - array.next_serial} past the first unfinished one"
            return self._refuse(run, "window passed", evidence, actions)
        if serial == region.serial and region.ina is not None:
            difference = _disagreement(region.ina, ina)
            if difference:
                self._fault(ring, rank, "operations differ", difference, actions)
                return False
        elif serial != region.serial:
            region.take_over(serial, ina)
        entry = MessageEntry(serial, int(run.psn[row]), ina.msg_len)
        if not flow.open_message(entry):
            return self._refuse(run, "message has another PSN", f"message {ina.msg_id}", actions)
        return True

    def _layout_holds(
        self, ring: _Ring, flow: Flow, run: RoceRun, region: Region, offsets: Rows, actions: list[Action]
    ) -> bool:
        """Whether the packets have the layout that all ranks must share at these offsets."""
        spec = ring.spec
        fault = packet_fault(run, offsets, region.packets, spec.mtu)
        if fault is not None:
            self._fault(ring, flow.spec.rank, "packet layout", fault, actions)
            return False
        assert region.ina is not None, "an open region has the header that opened it"
        itemsize = region.ina.dtype.itemsize
        if run.payload_bytes % itemsize:
            evidence = f"{run.payload_bytes} bytes are no whole number of {region.ina.dtype.name} elements"
            self._fault(ring, flow.spec.rank, "packet layout", evidence, actions)
            return False
        high = offsets.stop - 1 if isinstance(offsets, slice) else int(offsets.max())
        if high < region.packets - 1:
            return True
        last = LastPacket(run.opcode, run.header_bytes, run.payload_bytes, run.pad)
        if region.last is None:
            region.last = last
        elif region.last != last:
            evidence = (
                f"last packet of operation {region.ina.op_index} has {last.payload_bytes} bytes, "
                f"another rank's {region.last.payload_bytes}"
            )
            self._fault(ring, flow.spec.rank, "operations differ", evidence, actions)
            return False
        return True

    def _store(
        self,
        ring: _Ring,
        flow: Flow,
        region: Region,
        run: RoceRun,
        rows: Rows,
        offsets: Rows,
        actions: list[Action],
    ) -> None:
        rank = flow.spec.rank
        count = offsets.stop - offsets.start if isinstance(offsets, slice) else len(offsets)
        self._counters.aggregated_in += count
        finished = region.store(rank, run, rows, offsets)
        base = region.serial * ring.spec.message_packets
        if isinstance(offsets, slice):
            low, high = base + offsets.start, base + offsets.stop - 1
        else:
            low, high = base + int(offsets.min()), base + int(offsets.max())
        flow.high = max(flow.high, high)
        if finished is not None or flow.replay_next is not None:
            self._replay(ring, flow, low, high, count, actions)
        if finished is None or not finished.all():
            ring.dirty[region.serial] = region

    # -- emission ------------------------------------------------------------------------------

    def _replay(
        self, ring: _Ring, flow: Flow, low: int, high: int, count: int, actions: list[Action]
    ) -> None:
        """Answer a resend from kept results, up to the frontier, filling short holes in PSN order."""
        array = ring.array
        frontier = array.frontier
        expected = flow.replay_next
        begin = low
        if expected is not None and 0 < low - expected <= self._config.replay_fill_packets_max:
            begin = expected
        end = min(high + 1, frontier)
        flow.replay_next = end if end < frontier else None
        if end <= begin:
            return
        self._counters.replay_filled += max(0, end - begin - count)
        rank = flow.spec.rank
        for region, first, past in array.spans_from(begin, end):
            self._counters.replayed += past - first
            for block in region.packets_out(slice(rank, rank + 1), first, past, self._arena):
                self._emit(flow, block[0], actions)

    def _advance(self, ring: _Ring, actions: list[Action]) -> None:
        array = ring.array
        for serial, touched in ring.dirty.items():
            if touched.serial == serial and touched.finish():
                position = serial * ring.spec.message_packets + touched.finished_last
                array.done_high = max(array.done_high, position)
        ring.dirty.clear()
        everyone = slice(0, ring.spec.size)
        for region, begin, end in array.advance():
            self._counters.results_out += (end - begin) * ring.spec.size
            for block in region.packets_out(everyone, begin, end, self._arena):
                for flow, frames in zip(ring.flows, block, strict=True):
                    self._emit(flow, frames, actions)
        if array.done_high >= array.frontier:
            self._signal_gaps(ring, actions)

    def _signal_gaps(self, ring: _Ring, actions: list[Action]) -> None:
        """Results are finished beyond the frontier: let each flow with a hole of its own know, once."""
        array = ring.array
        spans = array.spans_from(array.frontier, array.done_high + 1)
        length = ring.spec.message_packets
        for flow in ring.flows:
            hole: int | None = None
            for region, begin, end in spans:
                first = begin
                base = region.serial * length
                if hole is None:
                    missing = ~region.seen[flow.spec.rank, begin:end]
                    if not missing.any():
                        continue
                    first = begin + int(missing.argmax())
                    hole = base + first
                    if flow.gap_signalled == hole:
                        break
                done = region.done[first:end]
                if done.any():
                    at = first + int(done.argmax())
                    flow.gap_signalled = hole
                    self._counters.gaps_signalled += 1
                    rank = flow.spec.rank
                    for block in region.packets_out(slice(rank, rank + 1), at, at + 1, self._arena):
                        self._emit(flow, block[0], actions)
                    break

    def _emit(self, flow: Flow, frames: Frames, actions: list[Action]) -> None:
        egress = self._bridge.egress(flow.dst_mac, flow.ingress)
        actions.extend(EmitFrames(PortId(port), frames) for port in egress)

    # -- refusals ------------------------------------------------------------------------------

    def _refuse(self, run: RoceRun, rule: str, evidence: str, actions: list[Action]) -> bool:
        self._counters.drop(rule, 1)
        actions.append(Blame(_peer(run), rule, evidence))
        return False

    def _refuse_header(
        self, run: RoceRun, flow: Flow, spec: RingSpec, ina: InaHeader, actions: list[Action]
    ) -> bool:
        """Refuse a header that is not that of the flow's ring and rank, naming the first field."""
        rank = flow.spec.rank
        for rule, got, expected in (
            ("wrong ring", ina.ring_id, spec.ring_id),
            ("wrong key", ina.key, spec.key),
            ("wrong epoch", ina.epoch, spec.epoch),
            ("wrong rank", ina.rank, rank),
            ("wrong ring size", ina.ring_size, spec.size),
        ):
            if got != expected:
                # A key is a secret: say that it is wrong, not what it is.
                shown = "" if rule == "wrong key" else f": {got}, expected {expected}"
                return self._refuse(run, rule, f"ring {spec.ring_id}, rank {rank}{shown}", actions)
        return self._refuse(run, "wrong header", f"ring {spec.ring_id}, rank {rank}", actions)

    def _fault(self, ring: _Ring, rank: int, rule: str, evidence: str, actions: list[Action]) -> None:
        if not ring.failed:
            ring.failed = True
            actions.append(RingFault(ring.spec.ring_id, rank, rule, evidence))


def _peer(run: RoceRun) -> str:
    source = ".".join(str(byte) for byte in run.src_ip)
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
            f"shape digest {header.signature:#06x}"
        )

    return f"{describe(other)}; {describe(first)}"
