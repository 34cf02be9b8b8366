"""The accelerator as NetReduce section 3.2 can be read, where the paper leaves a choice.

Two places are open: how many messages the connection lookup table keeps for a connection, and what
"a gradient packet of message m deallocates the aggregator one window away" clears. Each reading is a
parameter; nothing else differs, so that a counterexample blames the reading. The product
(``inaproto.core.switch.aggregator``, ``lookup_table``) keeps ``2N`` entries and frees by tenant.

As printed, there is no memory of what was sent: a packet that comes again replaces its payload and, if
the slot is full, is answered with the sum of what lies there now. Hence a rank must resend what it sent
first: the hosts of these worlds keep their gradients apart from the results (``in_place`` false), while the
product's accelerator keeps its sums, and its hosts may overwrite. Results are not held back for order.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

import numpy as np

from inaproto.core.switch.message_packets import OPENING_OPCODES
from inaproto.sim.explore.ring.config import RingWorldConfig
from inaproto.sim.explore.ring.packet_table import PATHS, PacketTable, Path, Sent
from inaproto.sim.explore.ring.switch_machine import slot_words
from inaproto.wire.icrc import ICRC_BYTES, seal
from inaproto.wire.ina_header import FLAG_RESULT, FLAGS_OFFSET, INA_HEADER_BYTES, InaHeader

NOBODY: Final = -1


class Lookup(Enum):
    """Readings of the connection lookup table."""

    ONE = "one entry, offsets 0 to L-1"
    ONE_NEGATIVE = "one entry, offsets -N*L to L-1"
    ONE_LATEST_NEGATIVE = "one entry that never goes back to an older message, offsets -N*L to L-1"
    WINDOW = "2N entries"


class Freeing(Enum):
    """Readings of "a packet of message m deallocates the aggregator one window away"."""

    CLEAR_SLOT = "clear the whole slot"
    CLEAR_OWN_BIT = "clear the sender's own bit"
    TENANT = "the slot's message is remembered; only a later one takes it over"


class Entry(NamedTuple):
    message: int
    psn0: int
    length: int


class Slot(NamedTuple):
    packets: tuple[int, ...]
    """Packet of each rank whose header and payload are kept; ``NOBODY`` if none ever came."""
    bits: tuple[bool, ...]
    tenant: int = -1


class PaperState(NamedTuple):
    table: tuple[tuple[Entry, ...], ...]
    """Entries of each flow, the oldest message first."""
    slots: tuple[Slot, ...]


class PaperSwitchMachine:
    """A ``SwitchMachine`` of the readings ``lookup`` and ``freeing``."""

    def __init__(
        self, config: RingWorldConfig, packets: PacketTable, *, lookup: Lookup, freeing: Freeing
    ) -> None:
        self._config = config
        self._packets = packets
        self._lookup = lookup
        self._freeing = freeing
        self._size = 2 * config.window * config.length
        empty = Slot((NOBODY,) * config.ranks, (False,) * config.ranks)
        start = PaperState(((),) * config.ranks, (empty,) * self._size)
        self._states = [start]
        self._number = {start: 0}
        self._steps: dict[tuple[int, int], tuple[int, Sent]] = {}
        self.violations: dict[int, str] = {}
        self.newest = [-1]

    def __len__(self) -> int:
        return len(self._states)

    def step(self, state: int, packet: int) -> tuple[int, Sent]:
        known = self._steps.get((state, packet))
        if known is None:
            after, sent = self._arrive(self._states[state], packet)
            number = self._number.setdefault(after, len(self._states))
            if number == len(self._states):
                self._states.append(after)
                self.newest.append(-1)
            known = self._steps[state, packet] = number, sent
        return known

    def slots(self, state: int) -> dict[str, str]:
        now = self._states[state]
        told = {f"slot {index}": self._slot_words(slot) for index, slot in enumerate(now.slots)}
        if self._lookup is not Lookup.WINDOW:
            for flow, entries in enumerate(now.table):
                known = f"message {entries[0].message}" if entries else "nothing"
                told[f"lookup table entry of rank {flow}"] = known
        return told

    def _slot_words(self, slot: Slot) -> str:
        held = {
            rank: self._packets[number]
            for rank, (number, bit) in enumerate(zip(slot.packets, slot.bits, strict=True))
            if bit
        }
        if not held:
            return "free"
        message, offset = max((packet.message, packet.offset) for packet in held.values())
        strangers = []
        for rank, packet in held.items():
            if (packet.message, packet.offset) != (message, offset):
                where = f"packet {packet.offset} of " * (packet.offset != offset)
                strangers.append(f"{rank}: from {where}message {packet.message}")
        words = slot_words(self._config, message, offset, list(held))
        return words + (f" ({', '.join(strangers)})" if strangers else "")

    def bridge(self, packet: int) -> None:
        """This switch does nothing but aggregate."""

    def holds(self, state: int, flow: int, message: int, offset: int) -> bool:
        length = self._config.length
        slot = self._states[state].slots[message % (2 * self._config.window) * length + offset]
        if not slot.bits[flow] or all(slot.bits):
            return False
        kept = self._packets[slot.packets[flow]]
        return (kept.message, kept.offset) == (message, offset)

    # -- a packet ------------------------------------------------------------------------------

    def _arrive(self, state: PaperState, packet: int) -> tuple[PaperState, Sent]:
        """Lookup, freeing and aggregation; results go out when their slot is full."""
        flow = self._packets[packet].flow
        table, place = self._locate(state.table, packet)
        state = state._replace(table=table)
        if place is None:
            return state, ()
        message, index = place
        slots = list(state.slots)
        if self._freeing is Freeing.TENANT:
            tenant = slots[index].tenant
            if message < tenant:
                return state, ()
            if message > tenant:
                slots[index] = Slot((NOBODY,) * self._config.ranks, (False,) * self._config.ranks, message)
        else:
            away = (index + self._size // 2) % self._size
            bits = slots[away].bits
            cleared = (False,) * len(bits)
            if self._freeing is Freeing.CLEAR_OWN_BIT:
                cleared = _put(bits, flow, False)
            slots[away] = slots[away]._replace(bits=cleared)
        slot = slots[index]
        was_full = all(slot.bits)
        kept = was_full and self._freeing is Freeing.TENANT
        stored = slot.packets if kept else (*slot.packets[:flow], packet, *slot.packets[flow + 1 :])
        slot = slots[index] = slot._replace(packets=stored, bits=_put(slot.bits, flow, True))
        state = state._replace(slots=tuple(slots))
        if not all(slot.bits):
            return state, ()
        # A slot that just became full answers everybody; one that was full answers the sender alone.
        flows = (flow,) if was_full else range(self._config.ranks)
        return state, tuple((to * PATHS + Path.RESULT, self._result(slot.packets, to)) for to in flows)

    def _locate(
        self, table: tuple[tuple[Entry, ...], ...], packet: int
    ) -> tuple[tuple[tuple[Entry, ...], ...], tuple[int, int] | None]:
        """(table, (message, slot)); None for the latter where the packet cannot be placed."""
        config, run = self._config, self._packets[packet].run
        flow, psn = self._packets[packet].flow, int(run.psn[0])
        regions, entries = 2 * config.window, table[flow]
        if run.opcode in OPENING_OPCODES:
            header = InaHeader.decode(run.payload()[0, :INA_HEADER_BYTES].tobytes())
            entries = self._remember(entries, Entry(header.msg_id, psn, header.msg_len))
            table = (*table[:flow], entries, *table[flow + 1 :])
            return table, (header.msg_id, header.msg_id % regions * config.length)
        for entry in entries:
            distance = (psn - entry.psn0) & config.psn_mask
            if self._lookup is Lookup.WINDOW:
                in_reach = distance < entry.length
            elif self._lookup is Lookup.ONE:
                in_reach = distance < config.length
            else:
                if distance > config.psn_mask >> 1:
                    distance -= config.psn_mask + 1
                in_reach = -config.window * config.length <= distance < config.length
            if in_reach:
                linear = (entry.message % regions * config.length + distance) % self._size
                return table, (entry.message + distance // config.length, linear)
        return table, None

    def _remember(self, entries: tuple[Entry, ...], entry: Entry) -> tuple[Entry, ...]:
        if self._lookup is Lookup.WINDOW:
            keep = 2 * self._config.window
            rest = [old for old in entries if old.message != entry.message]
            return tuple(sorted((*rest, entry)))[-keep:]
        if self._lookup is Lookup.ONE_LATEST_NEGATIVE and entries and entries[0].message >= entry.message:
            return entries
        return (entry,)

    def _result(self, stored: tuple[int, ...], flow: int) -> int:
        """The sum of what is stored, under the header that is stored for ``flow``."""
        own = self._packets[stored[flow]]
        frame = bytearray(own.frames.tobytes())
        begin = self._body(stored[flow])
        if begin > own.run.header_bytes:
            frame[own.run.header_bytes + FLAGS_OFFSET] |= FLAG_RESULT
        end = len(frame) - ICRC_BYTES
        total = np.zeros((end - begin) // 4, np.uint32)
        for number in stored:
            # A packet in a wrong slot may be longer or shorter: the switch sums what it has.
            data = self._packets[number].frames[0, self._body(number) : -ICRC_BYTES].view("<u4")
            count = min(len(total), len(data))
            total[:count] += data[:count]
        frame[begin:end] = total.tobytes()
        seal(frame)
        return self._packets.number(bytes(frame))

    def _body(self, number: int) -> int:
        """Where the tensor bytes of a packet begin."""
        run = self._packets[number].run
        return run.header_bytes + (INA_HEADER_BYTES if run.opcode in OPENING_OPCODES else 0)


def _put(bits: tuple[bool, ...], index: int, value: bool) -> tuple[bool, ...]:
    return (*bits[:index], value, *bits[index + 1 :])
