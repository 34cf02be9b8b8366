"""A slot's bits are its tenant's (NetReduce sections 3.1, 3.2): no message is completed by another's.

Whenever a slot is written, it is for an intact packet of a connection that was put in, and

- its bits are those that came for the same message, and the one of the packet's own rank; bits of another
  message count as none;
- the slot is the one of the packet's place in that message, which has the region, and lies in the ring's own
  part of the array;
- a region goes to a newer message only, what the ranks agreed on does not change under its message, and who
  says something else is not summed.

Of rings that have slots of their own: those of a pool, which have them by turns, are not part of it.

Nothing is assumed of the control plane. Of the parser: a header without a fault has a message of at least one
packet. Of the ranks: none lags behind the others by 2**31 messages, half of what serial numbers can tell.
"""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Cat, Mux, Signal, Value

from inaproto.wire.roce import Opcode
from inaproto_hil.rtl.engine import COMMAND, TABLE_RING, TABLE_STATE
from inaproto_hil.rtl.parameters import Parameters
from inaproto_hil.rtl.parser import WITH_RETH
from inaproto_hil.rtl.proofs.frames import EngineProof
from inaproto_hil.rtl.tables import CONNECTION, POSITION, RING, flow_layout, region_layout, slot_layout

AGREED = ("packets", "dtype", "op", "flags", "op_index", "signature")
LAST = ("last_known", "last_opcode", "last_payload")
FIXED = ("valid", "size", "window", "message_packets", "mtu", "base")
"""Of a ring: what does not change while it is in."""
BEFORE_THE_RING = ("CLASSIFY", "LEARN_PLAIN", "LEARN_ACK", "LEARN_OTHER", "PLAIN", "UNREGISTERED")
BRIDGED = ("BRIDGE", "BRIDGE_OUT", "BRIDGE_WAIT", "DONE")
CLEARS = ("CLEAR_REGIONS", "CLEAR_SLOTS")
WRITES_A_RING = ("FORGET_MESSAGES", *CLEARS, "RING_LEAVES", "RING_LEAVES_PLACE", "RING_WRITE")
PUTS_A_RING = ("COMMAND", "RING", "RING_READ", "RING_PUT", *WRITES_A_RING)
PLACED = ("PLACE", "PLACED", "LAYOUT", "SLOT", "COPY")
"""States in which the packet's message is known and its slot is not written yet."""
OF_TURNS = (
    "TURN",
    "TURN_PLACE",
    "TURN_CHECK",
    "TURN_NEXT",
    "TURN_LOOK",
    "LOSE",
    "LOSE_REGIONS",
    "LOSE_REGION",
    "LOSE_FLOW",
    "LOSE_REPLAY",
    "LOSE_ENTRIES",
    "LOSE_RING",
    "LOST_PLACE",
    "TURN_TAKE",
    "TURN_CLEAR",
    "OPEN_AGAIN",
)
CHECKED = ("OPEN", "OPEN_REGION", "TENANT", "ENTRY", "SHOW", "WHERE", "SETTLE", "LATEST", "SEARCH", *PLACED)


def behind(a: Value, b: Value) -> Value:
    """Whether serial number ``a`` is older than ``b``."""
    return (a - b)[31]


def same(a: Any, b: Any, names: tuple[str, ...]) -> Value:
    return Cat(a[name] == b[name] for name in names).all()


class Tenants(EngineProof):
    def __init__(self, parameters: Parameters) -> None:
        super().__init__(parameters, ("slots", "regions", "entries", "rings"))
        p, inside = parameters, self.inside
        self.number = inside.signal("number")
        self.ring_number, self.child = inside.signal("ring_number"), inside.signal("child")
        self.ring = inside.signal("ring", RING)
        self.place = inside.signal("place", POSITION)
        self.region = inside.signal("region", region_layout(p))
        self.latest = inside.signal("flow", flow_layout(p)).latest
        self.slot, self.slot_at = inside.signal("slot", slot_layout(p)), inside.signal("slot_at")
        self.held = self.row_at("held", inside.rows("slots"), self.slot_at)
        low = Signal(range(p.regions))
        self.m.d.comb += low.eq(self.place.serial & ((self.ring.window << 1) - 1))
        self.low = low
        self.held_region = self.row_at(
            "held_region", inside.rows("regions"), self.ring_number * p.regions + low
        )
        self.entry = self.row_at("own_entry", inside.rows("entries"), self.number * p.regions + self.latest)
        self.assume(self.seen.ina_fault | (self.seen.msg_len != 0))
        self.show("ring", self.ring_number)
        self.show("child", self.child)
        self.show("serial", self.place.serial)
        self.show("offset", self.place.offset)
        self._packet()
        self._rings()
        self._messages()
        self._region()
        self._slot()

    def _states(self, without: tuple[str, ...] = ()) -> Value:
        """A packet of a ring is worked on."""
        left_out = (*BEFORE_THE_RING, *BRIDGED, *without)
        return self.inside.ongoing(*(name for name in self.of_frames() if name not in left_out))

    def _packet(self) -> None:
        """It is of connection ``number``."""
        p, seen, inside = self.parameters, self.seen, self.inside
        rows = [inside.signal(f"connection_{at}", CONNECTION) for at in range(p.connections)]
        hits = [
            row.valid
            & (row.src_ip == seen.src_ip)
            & (row.dst_ip == seen.dst_ip)
            & (row.dst_qp == seen.dest_qp)
            for row in rows
        ]
        hit = Array(hits)[self.number]
        classified = inside.ongoing("CLASSIFY")
        self.step("a_hit_is_the_packets", hit, classified & Cat(hits).any())
        self.step("it_is_the_packets", seen.roce & hit & (seen.opcode != Opcode.RC_ACK), self._states())
        self.step(
            "rank_and_ring_are_its",
            (self.number == self.ring_number * p.children + self.child)
            & (self.child < p.children)
            & (self.ring_number < p.rings),
            classified | self._states(),
        )

    def _rings(self) -> None:
        p, inside, command = self.parameters, self.inside, self.inside.signal("command", COMMAND)
        rows = inside.rows("rings")
        held = self.row_at("held_ring", rows, self.ring_number)
        self.step(
            "a_ring_is_read", same(inside.read_port("rings").data, held, FIXED), inside.ongoing("LOADED")
        )
        self._pools(rows)
        loaded = self._states(("LOAD", "LOADED"))
        self.step("a_ring_is_loaded", same(self.ring, held, FIXED), loaded)
        self.step("it_is_in", self.ring.valid, self._states(("LOAD", "LOADED", "CHECK")))

        def fits(ring: Any) -> Value:
            end = ring.base + ring.window * ring.message_packets * 2
            return ~ring.valid | (
                (ring.size >= 2)
                & (ring.size <= p.children)
                & (ring.window >= 1)
                & (ring.window <= p.window)
                & (ring.message_packets >= 1)
                & (end <= p.slots)
            )

        self.step("rings_fit", Cat(fits(row) for row in rows).all())
        writes = inside.ongoing(*WRITES_A_RING)
        self.step("a_ring_that_comes_fits", fits(self.ring), writes)

        # Nothing is remembered of a ring's connections when it comes: its messages are cleared one by one.
        count = p.children * p.regions
        forgotten = inside.signal("forgotten")
        self.step("messages_are_counted", forgotten < count)
        self.step("they_are_counted_anew", inside.ongoing("FORGET_MESSAGES") | (forgotten == 0))
        comes = inside.ongoing(*CLEARS, "RING_WRITE") & self.ring.valid
        for at in range(p.rings):
            is_it = self.ring_number == at
            valid = Cat(entry.valid for entry in self._entries_of(at))
            to_do = Cat(
                entry.valid & (number >= forgotten) for number, entry in enumerate(self._entries_of(at))
            )
            self.step(
                f"messages_of_ring_{at}_are_forgotten_in_order",
                valid == to_do,
                inside.ongoing("FORGET_MESSAGES") & is_it,
            )
            self.step(f"nothing_is_remembered_of_ring_{at}", valid == 0, comes & is_it)
        numbered = inside.ongoing(*(name for name in PUTS_A_RING if name != "COMMAND"))
        self.step(
            "it_is_the_ring_of_the_command",
            (self.ring_number == command.index) & (command.index < p.rings),
            numbered,
        )
        self.step(
            "a_ring_comes_by_its_command",
            command.put
            & (command.table == TABLE_RING)
            & (self.ring.valid == command.row.word_select(5, 32)[31]),
            writes,
        )
        self.step("a_ring_that_is_cleared_comes", self.ring.valid, inside.ongoing("FORGET_MESSAGES", *CLEARS))
        self.step(
            "a_ring_that_leaves_is_none", ~self.ring.valid, inside.ongoing("RING_LEAVES", "RING_LEAVES_PLACE")
        )
        self.step(
            "its_regions_alone_are_cleared",
            inside.signal("scan") < p.regions,
            inside.ongoing("FORGET_MESSAGES", "CLEAR_REGIONS"),
        )
        self.step(
            "a_rings_command",
            (command.table == TABLE_RING) | (command.table == TABLE_STATE),
            inside.ongoing("RING", "RING_READ"),
        )
        self.step(
            "a_ring_is_put_by_its_command",
            command.put & (command.table == TABLE_RING),
            inside.ongoing("RING_PUT"),
        )

    def _pools(self, rows: list[Any]) -> None:
        """There is none."""
        inside, command = self.inside, self.inside.signal("command", COMMAND)

        def pooled(command: Any) -> Value:
            return (command.table == TABLE_RING) & command.put & command.row.word_select(5, 32)[16]

        self.assume(~pooled(self.engine.command.payload))
        self.step("no_command_makes_a_pool", ~pooled(command), inside.ongoing(*PUTS_A_RING))
        self.step("no_ring_is_of_a_pool", ~Cat(row.pooled for row in rows).any())
        comes = inside.ongoing(*WRITES_A_RING)
        self.step("no_ring_of_a_pool_comes", ~self.ring.pooled, comes | self._states(("LOAD", "LOADED")))
        self.step(
            "no_ring_of_a_pool_is_read", ~inside.read_port("rings").data.pooled, inside.ongoing("LOADED")
        )
        self.step("no_turn_begins", ~inside.ongoing(*OF_TURNS))

    def _entries_of(self, ring: int) -> list[Any]:
        p = self.parameters
        begin = ring * p.children * p.regions
        return list(self.inside.rows("entries")[begin : begin + p.children * p.regions])

    def _messages(self) -> None:
        """What is remembered of messages agrees with who has the regions."""
        p, inside, seen, place = self.parameters, self.inside, self.seen, self.place
        regions = inside.rows("regions")
        write = inside.write_port("regions")
        for at, ring in enumerate(inside.rows("rings")):
            agree = []
            for number, entry in enumerate(self._entries_of(at)):
                low = number % p.regions
                region = regions[at * p.regions + low]
                agree.append(
                    ~(ring.valid & entry.valid)
                    | (
                        (entry.packets >= 1)
                        & (entry.packets <= ring.message_packets)
                        & ((entry.serial & ((ring.window << 1) - 1)) == low)
                        & region.valid
                        & ~behind(region.serial, entry.serial)
                        & ((region.serial != entry.serial) | (region.packets == entry.packets))
                    )
                )
                # No rank lags behind by half of all serial numbers.
                written = write.en & write.data.valid & (write.addr == at * p.regions + low)
                self.assume(~(written & entry.valid) | ~behind(write.data.serial, entry.serial))
            self.step(f"messages_of_ring_{at}_agree", Cat(agree).all())

        scanned = self.row_at(
            "scanned", inside.rows("entries"), self.number * p.regions + inside.signal("scan")
        )
        found = inside.read_port("entries").data
        self.step("the_latest_is_read", found == self.entry, inside.ongoing("LATEST"))
        self.step("the_scan_begins", inside.signal("scan") == 0, inside.ongoing("LATEST"))
        self.step(
            "the_next_is_read",
            (found == scanned) & (inside.signal("scan") < (self.ring.window << 1)),
            inside.ongoing("SEARCH"),
        )
        distance = (seen.psn - self.entry.psn0)[:24]
        self.placed = Signal()
        self.m.d.comb += self.placed.eq(
            self.entry.valid
            & (self.entry.serial == place.serial)
            & (distance < self.entry.packets)
            & (place.offset == distance)
        )
        opening = seen.opcode.matches(*WITH_RETH)
        self.step("it_opens_none", ~opening, inside.ongoing("WHERE", "LATEST", "SEARCH"))
        opens = opening & inside.ongoing("SHOW", "SETTLE")
        self.step("the_packet_is_of_its_message", self.placed, opens | inside.ongoing(*PLACED))

    def _region(self) -> None:
        inside, region, held, place, seen = self.inside, self.region, self.held_region, self.place, self.seen
        write = inside.write_port("regions")
        old = self.row_at("old_region", inside.rows("regions"), write.addr)
        new = write.data
        writes, stays = write.en & new.valid, old.valid & (old.serial == new.serial)
        self.show("region_written", write.en)
        self.claim(
            "a_region_goes_to_a_newer_message",
            ~old.valid | (old.serial == new.serial) | behind(old.serial, new.serial),
            writes,
        )
        self.claim("what_was_agreed_on_stays", same(old, new, AGREED), writes & stays)
        self.claim("the_last_packet_stays", same(old, new, LAST), writes & stays & old.last_known)
        self.claim("a_region_is_cleared_whole", new.as_value() == 0, write.en & ~new.valid)

        taken_over = (
            region.valid
            & (region.serial == place.serial)
            & (~held.valid | ~behind(region.serial, held.serial))
            & (~(held.valid & (held.serial == region.serial)) | (region.as_value() == held.as_value()))
        )
        opens = seen.opcode.matches(*WITH_RETH) & (place.serial == seen.msg_id)
        self.step("it_opens_a_message", opens, inside.ongoing("OPEN", "OPEN_REGION", "TENANT", "ENTRY"))
        self.step(
            "its_header_is_right",
            ~seen.ina_fault & (seen.msg_len <= self.ring.message_packets),
            inside.ongoing("OPEN_REGION", "TENANT", "ENTRY"),
        )
        read = inside.read_port("regions").data
        self.step("the_region_is_read", read == held, inside.ongoing("OPEN_REGION", "PLACED"))
        self.step("the_region_is_loaded", region == held, inside.ongoing("TENANT", "LAYOUT"))
        self.step("the_region_is_taken", taken_over & self._says(region), inside.ongoing("ENTRY"))
        opened = inside.ongoing("SHOW", "SETTLE", *PLACED) & seen.opcode.matches(*WITH_RETH)
        agrees = held.valid & (held.serial == place.serial) & self._says(held)
        self.step("the_region_is_as_the_packet_says", agrees, opened)
        self.step(
            "the_region_is_the_messages",
            held.valid & (held.serial == place.serial) & (held.packets == self.entry.packets),
            inside.ongoing("SLOT", "COPY"),
        )
        self.step(
            "the_region_is_kept",
            same(region, held, ("valid", "serial", *AGREED)) & (~held.last_known | same(region, held, LAST)),
            inside.ongoing("SLOT"),
        )

    def _says(self, region: Any) -> Value:
        """Whether the header of the packet says the same of the operation."""
        header = ("msg_len" if name == "packets" else name for name in AGREED)
        return Cat(region[name] == self.seen[field] for name, field in zip(AGREED, header, strict=True)).all()

    def _slot(self) -> None:
        p, inside, seen, place, ring = self.parameters, self.inside, self.seen, self.place, self.ring
        write = inside.write_port("slots")
        new = write.data
        old = self.row_at("old_slot", inside.rows("slots"), write.addr)
        own = Signal(p.children)
        self.m.d.comb += own.eq(1 << self.child)

        def came(slot: Any, serial: Any) -> Value:
            """Bits that came for a message."""
            return Mux(slot.valid & (slot.serial == serial), slot.seen, 0)

        writes = write.en & new.valid
        at = ring.base + self.low * ring.message_packets + place.offset
        self.show("slot_written", write.en)
        self.show("bits_before", old.seen)
        self.show("bits", new.seen)
        self.claim("bits_are_those_of_the_message", new.seen == came(old, new.serial) | own, writes)
        self.claim(
            "the_bit_is_the_connections",
            self.registered & seen.roce & (own == 1 << (self.connection % p.children)),
            writes & (self.number == self.connection),
        )
        self.claim(
            "the_slot_is_the_packets", self.placed & (new.serial == place.serial) & (write.addr == at), writes
        )
        self.claim(
            "the_message_has_the_region",
            self.held_region.valid
            & (self.held_region.serial == new.serial)
            & (place.offset < self.held_region.packets),
            writes,
        )
        opens = seen.opcode.matches(*WITH_RETH)
        self.claim("a_first_packet_agrees_with_those_before", self._says(self.held_region), writes & opens)
        intact = self.engine.arrival.intact & seen.whole
        self.claim("a_damaged_packet_is_not_summed", intact, writes)
        self.step("it_is_intact", intact, inside.ongoing(*CHECKED))
        end = ring.base + ring.window * ring.message_packets * 2
        self.claim("the_slot_is_the_rings", (write.addr >= ring.base) & (write.addr < end), writes)
        self.claim("a_slot_is_cleared_whole", new.as_value() == 0, write.en & ~new.valid)

        self.step("the_slot_is_the_place", self.slot_at == at, inside.ongoing("LAYOUT", "SLOT", "COPY"))
        self.step("the_slot_is_read", inside.read_port("slots").data == self.held, inside.ongoing("SLOT"))
        self.step(
            "the_slot_has_its_bits",
            self.slot.valid
            & (self.slot.serial == place.serial)
            & (self.slot.seen == came(self.held, place.serial) | own),
            inside.ongoing("COPY"),
        )
