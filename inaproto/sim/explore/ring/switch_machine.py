"""The accelerator of the explored ring: the production core, as a finite machine.

Like ``rank_machine``, a table ``(local state, packet) -> (local state, packets sent)`` that the real core
fills, step by step. There is one accelerator; its state is written into it before a step and read from
it afterwards, in a canonical form that is the state's fingerprint too. What it leaves out or overwrites:

- counters, configuration, output memory, the cut views of buffers, and header templates (which only the way
  for vectors of packets reads: packets arrive here one at a time);
- the bridge, whose ports and addresses are settled before the ring starts; ``bridge`` holds it to that;
- slots that nothing was stored in: their bytes are what the memory held before. The input of a
  finished slot, which nothing reads any more. What lies behind the end of a short last packet;
- which rank opened a region: only the words of a fault tell;
- the compiled kernels' words of a region: where its arrays are, which stay, and what is set from the region's
  own state before each use; a payload buffer that was exchanged is told to them;
- ``finished_last``, which ``finish`` sets before anybody reads it;
- packets that wait for the first one of their message: here none do, and are dropped at once. Of waiting
  nothing follows that does not follow from the same packets' coming later;
- which table entry was hit last: a hint, as long as the entries' PSN ranges are disjoint. Where they are not,
  it stays in the fingerprint.

Everything else is in it, even what follows from the rest. An attribute that this file does not know is
``InvariantBroken``: whoever adds one to the core says here what it means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from inaproto.core.switch.accelerator import (
    Accelerator,
    AcceleratorConfig,
    EmitFrames,
    FramesArrived,
    InstallRing,
    PortUp,
)
from inaproto.core.switch.aggregator import AggregatorArray
from inaproto.core.switch.events import RingState
from inaproto.core.switch.lookup_table import Flow
from inaproto.core.switch.message_packets import HEADER_BYTES
from inaproto.core.switch.region import Region
from inaproto.errors import InvariantBroken
from inaproto.sim.explore.ring.config import RING_ID, RingWorldConfig, mac
from inaproto.sim.explore.ring.packet_table import PATHS, Channel, PacketTable, Path, Sent
from inaproto.units import Instant, PortId

NOW: Final = Instant(0)
Snapshot = tuple[Any, ...]


class SwitchMachine(Protocol):
    """What sums in the middle; its states are numbers from 0."""

    violations: dict[int, str]
    newest: list[int]
    """Newest message that has a slot in each state, -1 for none."""

    def __len__(self) -> int: ...

    def step(self, state: int, packet: int) -> tuple[int, Sent]:
        """A data packet arrives."""
        ...

    def bridge(self, packet: int) -> None:
        """An acknowledgement passes; raises ``InvariantBroken`` if it does not just pass."""
        ...

    def holds(self, state: int, flow: int, message: int, offset: int) -> bool:
        """Whether the flow's packet waits here for those of other ranks, its result not yet sent."""
        ...

    def slots(self, state: int) -> dict[str, str]:
        """Whose message lies in each slot, and which ranks' packets, by the slot's name for people."""
        ...


_REGION_ARRAYS: Final = ("seen", "done", "header", "share", "ina_bytes", "result", "result_crc", "summed")
_REGION_VALUES: Final = (
    "serial",
    "packets",
    "_ina",
    "itemsize",
    "agreed",
    "last",
    "pending",
    "missing",
    "_stored_from",
    "_stored_to",
    "filled",
    "sums",
)
_REGION_REST: Final = {
    "told": "of selective rings alone, which are not explored",
    "opening": "empty once ina is read",
    "_everyone": "constant",
    "_nobody": "constant",
    "_nothing": "constant",
    "silent": "copied",
    "top": "copied",
    "payload": "copied while it is held",
    "finished_last": "set before it is read",
    "pool": "buffers that nobody holds",
    "result_cuts": "views of result",
    "_seen_bytes": "memory of seen",
    "_done_bytes": "memory of done",
    "_final_bytes": "the same",
    "_header_bytes": "views of header",
    "_share_words": "views of share",
    "kernels": "where the arrays are, and what is told again of what is copied",
}
_FLOW_VALUES: Final = (
    "gap_signalled",
    "reached",
    "replay_next",
    "src_mac",
    "dst_mac",
    "ingress",
    "latest",
)
_FLOW_REST: Final = {
    "spec": "constant",
    "ring_id": "constant",
    "psn_mask": "constant",
    "untold": "constant: a switch is given it with the ring",
    "entries": "copied",
    "tag": "constant: no packet has one",
    "vlans": "only packets of other VLANs than the hosts' would be told apart by it",
    "sources": "only packets from other addresses than the hosts' would be",
    "is_routed": "constant: nobody routes",
    "repair": "of selective rings alone, which are not explored",
    "shown": "addresses are the hosts' own, which are settled",
    "sightings": "constant: no packet comes from elsewhere",
}
_ARRAY_VALUES: Final = ("next_serial", "next_offset", "done_high")
_ARRAY_REST: Final = {
    "spec": "constant",
    "first_serial": "constant",
    "id_mask": "constant",
    "regions": "copied one by one",
    "_none": "of pools alone",
}
_RING_REST: Final = {
    "spec": "constant",
    "array": "copied",
    "flows": "copied one by one",
    "failed": "copied",
    "is_repaired": "of selective rings alone, which are not explored",
    "lossy_until": "of selective rings alone, which are not explored",
    "dirty": "empty between steps",
    "epoch": "constant where slots are its own",
    "opened_by": "spares a look at what is known",
    "egress": "the same",
    "inlet": "told what is copied before each use",
}


class AcceleratorMachine:
    """The table of the product's accelerator."""

    def __init__(self, config: RingWorldConfig, packets: PacketTable) -> None:
        self._config = config
        self._packets = packets
        self._accelerator = fresh_accelerator(config)
        self._ring: RingState = vars(self._accelerator)["_rings"][RING_ID]
        check_attributes(self._ring)
        self._bytes: dict[bytes, bytes] = {}
        self._number: dict[Snapshot, int] = {}
        self._snapshots: list[Snapshot] = []
        self._steps: dict[tuple[int, int], tuple[int, Sent]] = {}
        self._loaded = 0
        self.violations: dict[int, str] = {}
        self.newest: list[int] = []
        self._enter(None)

    def __len__(self) -> int:
        return len(self._snapshots)

    def step(self, state: int, packet: int) -> tuple[int, Sent]:
        known = self._steps.get((state, packet))
        if known is None:
            self._load(state)
            frontier = self._ring.array.frontier
            sent, violation = emissions(self._accelerator, self._packets, packet)
            violation = violation or self._out_of_order(sent, frontier) or self._misplaced()
            known = self._steps[state, packet] = self._enter(violation), sent
        return known

    def bridge(self, packet: int) -> None:
        before = self._loaded
        known = self._packets[packet]
        ingress = PortId((known.flow + 1) % self._config.ranks)
        actions = self._accelerator.step(FramesArrived(ingress, [known.frames]), NOW)
        passed = [
            (action.port, action.frames.tobytes()) for action in actions if isinstance(action, EmitFrames)
        ]
        if passed != [(known.flow, known.frames.tobytes())] or self._enter(None) != before:
            raise InvariantBroken(f"the accelerator does not simply pass on {self._packets.describe(packet)}")

    def holds(self, state: int, flow: int, message: int, offset: int) -> bool:
        self._load(state)
        array = self._ring.array
        region = array.region_of(message)
        sent = (message, offset) < (array.next_serial, array.next_offset)
        return not sent and region.serial == message and bool(region.seen[flow, offset])

    def slots(self, state: int) -> dict[str, str]:
        self._load(state)
        told = {}
        for number, region in enumerate(self._ring.array.regions):
            for offset in range(self._config.length):
                ranks = [rank for rank in range(self._config.ranks) if region.seen[rank, offset]]
                summed = bool(ranks) and bool(region.done[offset])
                name = f"slot {number * self._config.length + offset}"
                told[name] = slot_words(self._config, region.serial, offset, ranks) + ", summed" * summed
        return told

    # -- rules ---------------------------------------------------------------------------------

    def _out_of_order(self, sent: Sent, frontier: int) -> str | None:
        """Results leave in PSN order: all up to the frontier, or one beyond it, past a gap of that flow."""
        array = self._ring.array
        length = self._config.length
        flows: dict[int, list[int]] = {}
        for channel, number in sent:
            packet = self._packets[number]
            flows.setdefault(channel // PATHS, []).append(packet.message * length + packet.offset)
        fresh = list(range(frontier, array.frontier))
        short = length - (self._config.last_packets or length)
        fresh = [at for at in fresh if at < self._config.packets - short]
        for flow in range(self._config.ranks):
            positions = flows.get(flow, [])
            past = [at for at in positions if at >= array.frontier]
            if [at for at in positions if frontier <= at < array.frontier] != fresh:
                return f"flow {flow} gets the results {positions} where {fresh} are due"
            if positions != sorted(positions):
                return f"flow {flow} gets its results out of order: {positions}"
            if len(past) > 1 or (past and self._has_no_gap(flow, past[0])):
                return f"flow {flow} gets results past the frontier without a gap of its own: {positions}"
        return None

    def _has_no_gap(self, flow: int, until: int) -> bool:
        array = self._ring.array
        for position in range(array.frontier, until):
            message, offset = divmod(position, self._config.length)
            region = array.region_of(message)
            if region.serial != message or not region.seen[flow, offset]:
                return False
        return True

    def _misplaced(self) -> str | None:
        array = self._ring.array
        for index, region in enumerate(array.regions):
            if region.serial < 0:
                continue
            if region.serial % len(array.regions) != index:
                return f"message {region.serial} lies in region {index} of {len(array.regions)}"
            if region.serial >= array.next_serial + self._config.window:
                return f"message {region.serial} has slots, {array.next_serial} is the first unfinished one"
        return None

    # -- states --------------------------------------------------------------------------------

    def _enter(self, violation: str | None) -> int:
        snapshot = (self._save(), violation)
        number = self._number.get(snapshot)
        if number is None:
            number = self._number[snapshot] = len(self._snapshots)
            self._snapshots.append(snapshot)
            self.newest.append(max(region.serial for region in self._ring.array.regions))
            if violation is not None:
                self.violations[number] = f"accelerator: {violation}"
        self._loaded = number
        self._write(snapshot)
        return number

    def _load(self, state: int) -> None:
        if self._loaded != state:
            self._write(self._snapshots[state])
            self._loaded = state

    def _save(self) -> Snapshot:
        ring = self._ring
        if ring.dirty and not ring.failed:
            raise InvariantBroken("packets that came were not looked at")
        array = ring.array
        flows = tuple(_save_flow(flow) for flow in ring.flows)
        regions = tuple(self._save_region(region) for region in array.regions)
        return ring.failed, tuple(getattr(array, name) for name in _ARRAY_VALUES), flows, regions

    def _save_region(self, region: Region) -> Snapshot:
        if region.serial < 0:
            return ()
        seen, done = region.seen, region.done
        opcodes = region.header[:, :, 42]
        arrays: dict[str, NDArray[Any]] = {name: getattr(region, name).copy() for name in _REGION_ARRAYS}
        arrays["header"][~seen] = 0
        arrays["share"][~seen] = 0
        arrays["ina_bytes"][~seen[:, 0]] = 0
        arrays["result"][~done & (region.summed == 0)] = 0
        arrays["result_crc"][~done] = 0
        for rank, offset in np.argwhere(seen).tolist():
            arrays["header"][rank, offset, HEADER_BYTES[int(opcodes[rank, offset])] :] = 0
        payload = None
        if region.payload is not None:
            payload = region.payload.array.copy()
            payload[~(seen & ~done)] = 0
            payload[np.arange(len(seen))[:, None] < region.summed] = 0  # nobody reads them again
        if region.last is not None:
            tail = region.last.payload_bytes + region.last.pad
            arrays["result"][region.packets - 1, tail:] = 0
            if payload is not None:
                payload[:, region.packets - 1, tail:] = 0
        ina = None if region.ina is None else replace(region.ina, rank=0)  # which leaves opening empty
        values = tuple(ina if name == "_ina" else getattr(region, name) for name in _REGION_VALUES)
        return (
            values,
            tuple(sorted(region.silent)),
            tuple(region.top),
            None if payload is None else self._shared(payload),
            tuple(self._shared(arrays[name]) for name in _REGION_ARRAYS),
        )

    def _shared(self, values: NDArray[Any]) -> bytes:
        data = values.tobytes()
        return self._bytes.setdefault(data, data)

    def _write(self, snapshot: Snapshot) -> None:
        (failed, numbers, flows, regions), _ = snapshot
        ring = self._ring
        ring.failed = failed
        ring.dirty.clear()
        for name, value in zip(_ARRAY_VALUES, numbers, strict=True):
            setattr(ring.array, name, value)
        for flow, (entries, values) in zip(ring.flows, flows, strict=True):
            flow.entries[:] = entries
            for name, value in zip(_FLOW_VALUES, values, strict=True):
                setattr(flow, name, value)
        for region, saved in zip(ring.array.regions, regions, strict=True):
            _write_region(region, saved)
            _tell_kernels(region, ring.flows)


def _save_flow(flow: Flow) -> Snapshot:
    ranges = [
        {(entry.psn0 + offset) & flow.psn_mask for offset in range(entry.packets)}
        for entry in flow.entries
        if entry is not None
    ]
    disjoint = sum(map(len, ranges)) == len(set().union(*ranges))
    hint = 0 if disjoint else flow.latest
    values = tuple(hint if name == "latest" else getattr(flow, name) for name in _FLOW_VALUES)
    return tuple(flow.entries), values


def _write_region(region: Region, saved: Snapshot) -> None:
    if not saved:
        region.serial = -1
        region.silent, region.ina, region.last = set(), None, None
        region.packets = region.pending = region.missing = region.filled = 0
        region.sums = None
        region.seen[:] = region.done[:] = False
        region.summed[:] = 0
        if region.payload is not None:
            region.pool.give_back(region.payload)
            region.payload = None
        return
    values, silent, top, payload, arrays = saved
    for name, value in zip(_REGION_VALUES, values, strict=True):
        setattr(region, name, value)
    region.opening = b""
    region.silent, region.top = set(silent), list(top)
    if payload is None and region.payload is not None:
        region.pool.give_back(region.payload)
        region.payload = None
    elif payload is not None:
        if region.payload is None:
            region.payload = region.pool.take()
        region.payload.array[:] = np.frombuffer(payload, np.uint8).reshape(region.payload.array.shape)
    for name, data in zip(_REGION_ARRAYS, arrays, strict=True):
        array = getattr(region, name)
        array[:] = np.frombuffer(data, array.dtype).reshape(array.shape)


def _tell_kernels(region: Region, flows: Sequence[Flow]) -> None:
    kernels, payload = region.kernels, region.payload
    if kernels is None:
        return
    at = 0 if payload is None else payload.address
    kernels.opened(at, region.serial, region.packets, region.itemsize, region.sums, region.agreed.ljust(38))
    if region.last is not None:
        kernels.expect(region.last)
    for flow in flows:
        for entry in flow.entries:
            if entry is not None and entry.serial == region.serial:
                kernels.psn0[flow.row] = entry.psn0


def slot_words(config: RingWorldConfig, message: int, offset: int, ranks: list[int]) -> str:
    if not ranks:
        return "free"
    packet = f", packet {offset}" if config.length > 1 else ""
    return f"message {message}{packet}, has rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def fresh_accelerator(config: RingWorldConfig) -> Accelerator:
    """An accelerator with a port and a known address for each host, and the ring installed."""
    accelerator = Accelerator(AcceleratorConfig(early_packets_max=0))
    for host in range(config.ranks):
        accelerator.step(PortUp(PortId(host)), NOW)
    for host in range(config.ranks):
        hello = np.frombuffer(b"\xff" * 6 + mac(host) + bytes(48), np.uint8)[None]
        accelerator.step(FramesArrived(PortId(host), [hello]), NOW)
    if accelerator.step(InstallRing(config.spec), NOW):
        raise InvariantBroken("the accelerator refuses the ring")
    return accelerator


def emissions(accelerator: Accelerator, packets: PacketTable, packet: int) -> tuple[Sent, str | None]:
    """A data packet arrives at the accelerator: what it sends, and the rule that it finds broken, if any."""
    known = packets[packet]
    sent: list[tuple[Channel, int]] = []
    violation = None
    ranks = len(vars(accelerator)["_rings"][RING_ID].flows)
    for action in accelerator.step(FramesArrived(PortId(known.flow), [known.frames]), NOW):
        if not isinstance(action, EmitFrames):
            violation = violation or str(action)
            continue
        for row in action.frames:
            number = packets.number(row.tobytes())
            result = packets[number]
            if action.port != (result.flow + 1) % ranks:
                violation = violation or f"a result of flow {result.flow} leaves on port {action.port}"
            sent.append((result.flow * PATHS + Path.RESULT, number))
    return tuple(sent), violation


def check_attributes(ring: RingState) -> None:
    """Raises ``InvariantBroken`` for an attribute of the core that this file says nothing about."""
    regions = {*_REGION_ARRAYS, *_REGION_VALUES, *_REGION_REST}
    for kind, names, known in (
        (Region, Region.__slots__, regions),
        (Flow, Flow.__slots__, {*_FLOW_VALUES, *_FLOW_REST}),
        (AggregatorArray, tuple(vars(ring.array)), {*_ARRAY_VALUES, *_ARRAY_REST}),
        (RingState, RingState.__slots__, set(_RING_REST)),
    ):
        if set(names) != known:
            raise InvariantBroken(
                f"{kind.__name__} has the attributes {sorted(set(names) ^ known)} more or less than the "
                f"exploration knows: say in {__name__} what they mean for its future"
            )
