"""Drives an accelerator in hardware by its registers: rings in and out of its tables, their state, counters.

A ring gets slots for 2NL packets (NetReduce section 3.1) in one piece, so that rings never touch each
other's. Its connections are registered before it is made live, and taken out after it was: packets of a
connection that is registered, but has no live ring, are dropped, while unknown ones are bridged, and a raw
gradient that is bridged would be taken for a result (docs/protocol.md 6.8). For that reason the hosts of a
ring must have stopped, and the ring must be drained, before it is removed.

Invariants: what is put in an accelerator was checked against its sizes; slots belong to one ring at most;
rows of one table command are never mixed with another's.

Rings of a pool (MINA III-C) share slots: its first ring says how large its places are, and the accelerator
sees turns in the packets, as the software core does.

An accelerator sums for rings whose results leave in PSN order; of several switches (NetReduce section 3.3) if
it was made with room for their connections, and if they have slots of their own. Others are refused with a
reason, as the software core refuses (``RingRefused``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Self

import trio

from inaproto.core.switch.events import TURN_LOST, RingRefused
from inaproto.core.switch.ring_spec import NO_TURN, RingSpec
from inaproto.errors import FabricError, LocalMisuse, Unsupported
from inaproto.units import PSN_BITS
from inaproto.wire.ina_header import Dtype
from inaproto.wire.messages.switch import PoolSpec, VirtualConnection
from inaproto_adapters.fpga.bus import WORD_MAX, RegisterBus
from inaproto_adapters.fpga.register_map import (
    CAPS,
    CAPS_CTT,
    CAPS_DTYPES,
    CAPS_ICRC_CHECK,
    CAPS_ICRC_GENERATION,
    CAPS_ORDER,
    CAPS_POOLS,
    CNT,
    CNT_STEP,
    COUNTER_NAMES,
    CTRL,
    CTRL_SNAPSHOT,
    FAULT,
    FAULT_CHILD,
    FAULT_COUNT,
    FAULT_RING,
    FAULT_RULE,
    ID,
    ID_VALUE,
    PARAMS0_CHILDREN,
    PARAMS0_PORTS,
    PARAMS0_RINGS,
    PARAMS0_WORDS,
    PARAMS2_ADDRESSES,
    PARAMS2_MTU,
    PARAMS2_WINDOW,
    PARAMS3,
    PARAMS3_TREE_RANKS,
    PLACE_ROW,
    PORTS,
    RING_ROW,
    ROW_WORDS,
    RULES,
    STATE_ROW,
    STATUS,
    STATUS_BUSY,
    STATUS_TABLE_BUSY,
    STATUS_TABLE_ERROR,
    TBL_CMD,
    TBL_CMD_GET,
    TBL_CMD_INDEX,
    TBL_CMD_PUT,
    TBL_CMD_TABLE,
    TBL_DATA,
    VERSION_MAJOR,
    VERSION_MAJOR_VALUE,
    VERSION_MINOR,
    WORD_BYTES,
    Counter,
    Table,
    pack,
    unpack,
)
from inaproto_adapters.fpga.table_rows import (
    MSG_ID_BITS,
    Placement,
    PoolPlacement,
    conn_row,
    links_of,
    ring_row,
    tree_row,
    virtual_row,
)

QUICK_POLLS: Final = 4000
"""In simulations time passes by polls alone, and a command takes two cycles for each slot of its ring."""
TABLE_POLLS: Final = QUICK_POLLS + 200
TABLE_POLL_S: Final = 0.005
DRAIN_POLL_S: Final = 0.001
WORD_BITS: Final = 32
BYTE_MAX: Final = 255
MTU_MAX: Final = 65_535
PLACES_MAX: Final = 8
"""Of a pool."""
_IPV4_BYTES: Final = 4
_SEVERAL: Final = "it spans several switches, this accelerator sums for rings of one"
_OF_NO_RING: Final = (Counter.DROP_UNKNOWN_RING, Counter.DROP_NOT_REGISTERED)
OF_FAULTS: Final[dict[int, str]] = {Counter.DROP_LAYOUT: "packet layout", Counter.POOL_CONFLICTS: TURN_LOST}
"""What the software core calls a fault other than the drop that comes with it."""
_RULES: Final = {int(counter): rule for counter, rule in RULES.items()}


@dataclass(frozen=True, slots=True)
class Identity:
    """What an accelerator is and can do."""

    version: tuple[int, int]
    ports: int
    words: int
    """32-bit words of its bus."""
    rings: int
    children: int
    """Ranks of a ring, at most."""
    slots: int
    mtu: int
    window: int
    addresses: int
    dtypes: frozenset[Dtype]
    pools: bool
    """Rings that have slots by turns."""
    tree_ranks: int
    """Ranks of a ring through several switches, at most; 0: there can be none."""

    @property
    def rows(self) -> int:
        """Connections of a ring."""
        return self.children + (self.tree_ranks + 1 if self.tree_ranks else 0)


def _why_impossible(said: Identity) -> str:
    """What no accelerator of this map has: garbage, which must not become rows or masks of ports."""
    sizes = {
        "ports": (said.ports, 1, WORD_BITS),
        "rings": (said.rings, 1, BYTE_MAX),
        "ranks of a ring": (said.children, 2, BYTE_MAX),
        "slots": (said.slots, 1, WORD_MAX),
        "bytes of payload": (said.mtu, 1, MTU_MAX),
        "messages of a window": (said.window, 1, BYTE_MAX),
        "connections of a ring": (said.rows, 2, BYTE_MAX + 1),  # a link among them is a byte
    }
    wrong = [
        f"{size} {of}, {least} to {most} are possible"
        for of, (size, least, most) in sizes.items()
        if not least <= size <= most
    ]
    return "; ".join(wrong)


@dataclass(frozen=True, slots=True)
class RingView:
    """What has become of a ring."""

    next_serial: int
    next_offset: int
    """The first result that has not left: packet ``next_offset`` of message ``next_serial``."""
    in_flight: int
    """Slots partly filled."""
    fault: tuple[str, int] | None
    """(rule, rank) if it has failed."""


@dataclass(frozen=True, slots=True)
class PlaceView:
    """Who has a place of a pool."""

    holder: int | None
    """Ring; None: nobody."""
    epoch: int
    """The latest turn; -1: none yet."""


@dataclass(frozen=True, slots=True)
class LastFault:
    """The last fault of a ring, or the last packet that somebody is to blame for."""

    rule: str
    ring_id: int | None
    """None: of no ring that is here."""
    rank: int
    count: int
    """How many there were, from 1 to 255 and around."""


class FpgaDevice:
    """An accelerator behind ``bus``; :meth:`identify` makes one."""

    def __init__(self, bus: RegisterBus, identity: Identity) -> None:
        self.bus = bus
        self.identity = identity
        self._rings: dict[int, tuple[RingSpec, Placement]] = {}
        self._stopped: set[int] = set()
        """Rings that have a place, and are summed for no more."""
        self._pools: dict[str, PoolPlacement] = {}
        self._ring_rows: dict[int, list[int]] = {}
        """What was put there last, by index; of others nothing is known."""

    @classmethod
    async def identify(cls, bus: RegisterBus) -> Self:
        """Raises ``Unsupported`` where there is no accelerator, or one that this control side does not know,
        or whose sizes are none.

        Rings that another control process put in are there still; :meth:`empty` takes them out.
        """
        words = await bus.read_burst(ID, (CAPS - ID) // WORD_BYTES + 1)
        found, version, params0, slots, params2, caps = words
        if found != ID_VALUE:
            raise Unsupported(
                "FPGA accelerator",
                f"{bus.peer}: register ID reads {found:#010x}, expected {ID_VALUE:#010x}: "
                "there is none, or its registers begin elsewhere",
            )
        major = VERSION_MAJOR.of(version)
        if major != VERSION_MAJOR_VALUE:
            raise Unsupported(
                "FPGA accelerator",
                f"{bus.peer}: its register map has version {major}, expected {VERSION_MAJOR_VALUE}: "
                "load the design that belongs to this inaproto",
            )
        needed = {
            "ICRC check": CAPS_ICRC_CHECK,
            "ICRC generation": CAPS_ICRC_GENERATION,
            "results in PSN order": CAPS_ORDER,
        }
        lacking = [name for name, field in needed.items() if not field.of(caps)]
        if lacking:
            raise Unsupported("FPGA accelerator", f"{bus.peer}: it lacks {', '.join(lacking)}")
        dtypes = CAPS_DTYPES.of(caps)
        identity = Identity(
            version=(major, VERSION_MINOR.of(version)),
            ports=PARAMS0_PORTS.of(params0),
            words=PARAMS0_WORDS.of(params0),
            rings=PARAMS0_RINGS.of(params0),
            children=PARAMS0_CHILDREN.of(params0),
            slots=slots,
            mtu=PARAMS2_MTU.of(params2),
            window=PARAMS2_WINDOW.of(params2),
            addresses=PARAMS2_ADDRESSES.of(params2),
            dtypes=frozenset(dtype for dtype in Dtype if dtypes >> dtype & 1),
            pools=bool(CAPS_POOLS.of(caps)),
            tree_ranks=PARAMS3_TREE_RANKS.of(await bus.read32(PARAMS3)) if CAPS_CTT.of(caps) else 0,
        )
        if why := _why_impossible(identity):
            raise Unsupported("FPGA accelerator", f"{bus.peer}: it says that it has {why}")
        return cls(bus, identity)

    # -- rings ---------------------------------------------------------------------------------

    @property
    def rings(self) -> dict[int, Placement]:
        """Rings that have a place, by their ids."""
        return {ring_id: placement for ring_id, (_, placement) in self._rings.items()}

    def allocate(self, spec: RingSpec) -> Placement | RingRefused:
        """A place for a ring: the first free index, and the first gap of slots that it fits in.

        It is the ring's until :meth:`remove`.
        """
        reason = self._unfit(spec)
        if reason:
            return RingRefused(spec.ring_id, reason)
        used = {placement.ring for _, placement in self._rings.values()}
        free = [ring for ring in range(self.identity.rings) if ring not in used]
        if not free:
            reason = f"all {self.identity.rings} rings are in use"
            return RingRefused(spec.ring_id, reason, until_room=True)
        need = spec.regions * spec.message_packets
        if spec.pool is not None and spec.pool.name in self._pools:
            pool = self._pools[spec.pool.name]
            if need > pool.slots:  # it was made for the first of its rings
                reason = f"needs {need} slots, a place of pool {spec.pool.name} has {pool.slots}"
                return RingRefused(spec.ring_id, reason)
            placement = Placement(free[0], pool.base, pool.capacity * pool.slots)
        else:
            capacity = 1 if spec.pool is None else spec.pool.capacity
            base = self._gap(capacity * need)
            if base is None:
                left = self.identity.slots - sum(size for _, size in self._taken())
                reason = f"needs {capacity * need} slots in one piece, {left} are free"
                return RingRefused(spec.ring_id, reason, until_room=True)
            placement = Placement(free[0], base, capacity * need)
            if spec.pool is not None:
                place = self._first_place(capacity)
                if place is None:
                    reason = f"{capacity} places in one piece are not free for pool {spec.pool.name}"
                    return RingRefused(spec.ring_id, reason, until_room=True)
                self._pools[spec.pool.name] = PoolPlacement(place, capacity, base, need)
        self._rings[spec.ring_id] = spec, placement
        return placement

    async def install(self, spec: RingSpec) -> Placement | RingRefused:
        """Put a ring in; it is live when this returns its place.

        Raises ``FabricError`` where the accelerator does not do as it should. The ring is taken out again
        then, if that can be done; else it keeps its place, as it does if the call is cancelled.
        """
        placement = self.allocate(spec)
        if isinstance(placement, RingRefused):
            return placement
        try:
            if spec.pool is not None and self._live_of(spec.pool.name) == [spec.ring_id]:
                await self._put_places(self._pools[spec.pool.name])  # its turns are counted from here on
            for at, row in self._connections(spec):
                await self._put(Table.CONN, self._conn(placement, at), row)
            if self.identity.tree_ranks:
                await self._put(Table.TREE, placement.ring, tree_row(spec))
            pool = None if spec.pool is None else self._pools[spec.pool.name]
            await self._put(Table.RING, placement.ring, ring_row(spec, placement, pool))
        except FabricError as error:
            try:
                await self.remove(spec.ring_id)
            except FabricError as again:
                error.add_note(f"ring {spec.ring_id} keeps its place: {again}")
            raise
        return placement

    async def drain(self, ring_id: int, timeout: float) -> None:
        """Wait until no slot of a ring is partly filled: all that has come of a sum has been answered.

        Raises a retryable ``FabricError`` after ``timeout`` seconds.
        """
        left = 0
        with trio.move_on_after(timeout):
            while True:
                left = (await self.state(ring_id)).in_flight
                if not left:
                    return
                await trio.sleep(DRAIN_POLL_S)
        phase = "waiting for packets that complete its sums"
        cause = f"{left} slots are partly filled after {timeout:g} s: have its hosts stopped?"
        raise FabricError(f"drain ring {ring_id}", self.bus.peer, phase, cause, retryable=True)

    async def remove(self, ring_id: int, *, linger: float = 0.0) -> None:
        """Take a ring out. For ``linger`` seconds its packets are still dropped, after that they are bridged.

        Raises ``FabricError`` where the accelerator does not do as it should; the ring keeps its place then.
        """
        await self.stop(ring_id)
        if linger:
            await trio.sleep(linger)
        spec, placement = self._known(ring_id)
        for at, _ in self._connections(spec):
            await self._put(Table.CONN, self._conn(placement, at), [0] * ROW_WORDS)
        self._rings.pop(ring_id, None)
        self._stopped.discard(ring_id)
        if spec.pool is not None and not self._rings_of(spec.pool.name):
            self._pools.pop(spec.pool.name, None)

    async def stop(self, ring_id: int) -> None:
        """Sum no more for a ring; it keeps its place, and its packets are dropped, until :meth:`remove`."""
        _, placement = self._known(ring_id)
        await self._put(Table.RING, placement.ring, [0] * ROW_WORDS)
        self._stopped.add(ring_id)

    def spec_of(self, ring_id: int) -> RingSpec:
        """What was asked for when the ring was put in."""
        return self._known(ring_id)[0]

    async def has_kept(self, ring: int) -> bool:
        """Whether the ring that was put in at an index last, or none, is there still."""
        known = self._ring_rows.get(ring)
        if known is None:
            return True
        put, found = unpack(RING_ROW, known), unpack(RING_ROW, await self._get(Table.RING, ring))
        # Turns of a pool change the rest of a row.
        return all(put[name] == found[name] for name in ("valid", "ring_id", "key"))

    async def empty(self, *, linger: float = 0.0) -> None:
        """Take out all rings, whoever put them in; ``linger`` as in :meth:`remove`."""
        for ring in range(self.identity.rings):
            await self._put(Table.RING, ring, [0] * ROW_WORDS)
        if linger:
            await trio.sleep(linger)
        for conn in range(self.identity.rings * self.identity.rows):
            await self._put(Table.CONN, conn, [0] * ROW_WORDS)
        self._rings.clear()
        self._stopped.clear()
        self._pools.clear()

    async def pool(self, name: str) -> list[PlaceView]:
        """Who has each place of a pool."""
        pool = self._pools.get(name)
        if pool is None:
            raise LocalMisuse(f"there is no pool {name}")
        ids = {placement.ring: ring_id for ring_id, placement in self.rings.items()}
        found = []
        for place in range(pool.place, pool.place + pool.capacity):
            row = unpack(PLACE_ROW, await self._get(Table.PLACE, place))
            holder = ids.get(row["holder"]) if row["held"] else None
            found.append(PlaceView(holder, row["epoch"] if row["seen"] else NO_TURN))
        return found

    async def state(self, ring_id: int) -> RingView:
        """What has become of a ring."""
        _, placement = self._known(ring_id)
        row = unpack(STATE_ROW, await self._get(Table.STATE, placement.ring))
        code = row["fault_rule"]
        fault = (OF_FAULTS.get(code, _rule(code)), row["fault_child"]) if row["failed"] else None
        return RingView(row["next_serial"], row["next_offset"], row["in_flight"], fault)

    # -- the accelerator -----------------------------------------------------------------------

    async def set_ports_up(self, ports: Iterable[int]) -> int:
        """Say which ports are up, all others being down; what the register PORTS reads from then on."""
        mask = 0
        for port in ports:
            if not 0 <= port < self.identity.ports:
                raise LocalMisuse(f"port {port} of an accelerator with {self.identity.ports}")
            mask |= 1 << port
        await self.bus.write32(PORTS, mask)
        return mask

    async def counters(self) -> dict[str, int]:
        """All counters at one moment, by name; a drop has the name of its rule."""
        counts = await self._counts(len(Counter))
        return {name: counts[at] for at, name in COUNTER_NAMES.items()}

    async def frames(self) -> tuple[int, int]:
        """How many came in, and how many left, at one moment: sooner than with all the other counters."""
        received, sent = await self._counts(Counter.TX + 1)
        return received, sent

    async def _counts(self, counters: int) -> list[int]:
        """The first ones, at one moment."""
        async with self.bus.lock:
            await self.bus.write32(CTRL, CTRL_SNAPSHOT.at(1))
            words = await self.bus.read_burst(CNT, counters * CNT_STEP // WORD_BYTES)
        return [low | high << 32 for low, high in zip(words[::2], words[1::2], strict=True)]

    async def is_busy(self) -> bool:
        """Whether frames are on their way through."""
        return bool(STATUS_BUSY.of(await self.bus.read32(STATUS)))

    async def last_fault(self) -> LastFault | None:
        """The last fault or blame; None: none yet."""
        word = await self.bus.read32(FAULT)
        count = FAULT_COUNT.of(word)
        if not count:
            return None
        ring, code = FAULT_RING.of(word), FAULT_RULE.of(word)
        ids = [ring_id for ring_id, placement in self.rings.items() if placement.ring == ring]
        if code in _OF_NO_RING:
            ids = []
        return LastFault(_rule(code), ids[0] if ids else None, FAULT_CHILD.of(word), count)

    # -- places --------------------------------------------------------------------------------

    def _known(self, ring_id: int) -> tuple[RingSpec, Placement]:
        known = self._rings.get(ring_id)
        if known is None:
            raise LocalMisuse(f"ring {ring_id} is not installed")
        return known

    def _conn(self, placement: Placement, row: int) -> int:
        return placement.ring * self.identity.rows + row

    def _connections(self, spec: RingSpec) -> list[tuple[int, list[int]]]:
        """Rows of a ring's connections, each with its place among them."""
        if not self.identity.tree_ranks:
            return [(flow.rank, conn_row(flow)) for flow in spec.flows]
        role = spec.role
        if role is None:
            return [(flow.rank, conn_row(flow, rank=flow.rank)) for flow in spec.flows]
        here, links = self.identity, {link: at for at, link in enumerate(role.inputs)}
        rows = [
            (at, virtual_row(entry, below=1))
            for at, entry in enumerate(role.inputs)
            if isinstance(entry, VirtualConnection)
        ]
        if role.parent is not None:
            links[role.parent] = here.rows - 1
            rows.append((here.rows - 1, virtual_row(role.parent, above=1)))
        notes = dict(role.notes)
        for flow in spec.flows:
            rank, link = flow.rank, notes.get(flow.rank)
            is_input, is_here = rank in role.ranks, rank in role.delivers
            said = {} if link is None else {"link": links[link], "link_known": 1}
            said |= {"successor": links.get((rank + 1) % spec.size, 0)} if is_here else {}
            if is_input:
                at = links[rank]
                said |= {"delivered": is_here, "told": not is_here}
            else:
                at = here.children + rank
                said |= {"elsewhere": 1, "learnt": is_here}
            rows.append((at, conn_row(flow, rank=rank, **said)))
        return rows

    def _unfit(self, spec: RingSpec) -> str:
        """Why the accelerator can never have a ring beside those that it has; empty if it can."""
        here, need = self.identity, spec.regions * spec.message_packets
        taken = {flow.connection for other, _ in self._rings.values() for flow in other.flows}
        twice = next((flow.rank for flow in spec.flows if flow.connection in taken), None)
        bits = (spec.psn_bits, spec.msg_id_bits)
        links = {link for other, _ in self._rings.values() for link in links_of(other)}
        inputs, added = (spec.flows, "ranks") if spec.role is None else (spec.role.inputs, "inputs")
        reasons: list[tuple[bool, str]] = [
            (spec.ring_id in self._rings, f"ring {spec.ring_id} is installed already"),
            (
                any(len(flow.src_ip) != _IPV4_BYTES for flow in spec.flows),
                "its hosts have IPv6 addresses, and this accelerator sums what comes over IPv4 alone",
            ),
            (twice is not None, f"the connection of rank {twice} belongs to another ring"),
            (spec.role is not None and not here.tree_ranks, _SEVERAL),
            (spec.role is not None and not spec.role.inputs, "it is steered to another switch"),
            (spec.role is not None and spec.role.below is not None, "its tree is not that of the fabric"),
            (
                not links.isdisjoint(links_of(spec)),
                "a ring between the same switches has the same low bits of its id",
            ),
            (spec.pool is not None and spec.role is not None, "it is of a pool, and spans several switches"),
            (spec.pool is not None, self._why_no_pool(spec.pool)),
            (bits != (PSN_BITS, MSG_ID_BITS), "it has PSNs or message ids that are narrower than others'"),
            (spec.selective and spec.role is not None, "a selective ring that spans several switches"),
            (len(inputs) > here.children, f"{len(inputs)} {added}, at most {here.children} are possible"),
            (
                spec.role is not None and spec.size > here.tree_ranks,
                f"{spec.size} ranks, at most {here.tree_ranks} are possible",
            ),
            (
                spec.window_messages > here.window,
                f"a window of {spec.window_messages} messages, at most {here.window} are possible",
            ),
            (
                spec.mtu > here.mtu,
                f"MTU {spec.mtu}, at most {here.mtu} is possible; give all its hosts --mtu auto",
            ),
            (need > here.slots, f"needs {need} slots, the accelerator has {here.slots}"),
        ]
        return next((reason for holds, reason in reasons if holds and reason), "")

    def _why_no_pool(self, spec: PoolSpec | None) -> str:
        """Why there cannot be such a pool; empty if there can."""
        if spec is None:
            return ""
        if not self.identity.pools:
            return "it is of a pool, this accelerator has none"
        capacity, known = spec.capacity, self._pools.get(spec.name)
        if capacity & (capacity - 1) or capacity > min(PLACES_MAX, self.identity.rings):
            most = min(PLACES_MAX, self.identity.rings)
            return f"its pool takes {capacity} rings at once: a power of two is possible, at most {most}"
        if known is not None and known.capacity != capacity:
            return f"pool {spec.name} takes {known.capacity} rings at once, not {capacity}"
        return ""

    def _rings_of(self, pool: str) -> list[int]:
        """Rings of a pool that have a place in the tables."""
        of = {ring_id: spec.pool for ring_id, (spec, _) in self._rings.items()}
        return [ring_id for ring_id, its in of.items() if its is not None and its.name == pool]

    def _live_of(self, pool: str) -> list[int]:
        return [ring_id for ring_id in self._rings_of(pool) if ring_id not in self._stopped]

    def _taken(self) -> list[tuple[int, int]]:
        """(first slot, slots) of what is taken, a pool's all together."""
        alone = [(one.base, one.slots) for spec, one in self._rings.values() if spec.pool is None]
        return sorted(alone + [(one.base, one.capacity * one.slots) for one in self._pools.values()])

    def _first_place(self, capacity: int) -> int | None:
        used = {at for one in self._pools.values() for at in range(one.place, one.place + one.capacity)}
        firsts = range(self.identity.rings - capacity + 1)
        return next((at for at in firsts if not used.intersection(range(at, at + capacity))), None)

    def _gap(self, need: int) -> int | None:
        base = 0
        for first, size in self._taken():
            if first - base >= need:
                break
            base = first + size
        return base if base + need <= self.identity.slots else None

    # -- tables --------------------------------------------------------------------------------

    async def _put_places(self, pool: PoolPlacement) -> None:
        for at in range(pool.capacity):
            row = pack(PLACE_ROW, base=pool.base + at * pool.slots, slots=pool.slots)
            await self._put(Table.PLACE, pool.place + at, row)

    async def _put(self, table: Table, index: int, row: Sequence[int]) -> None:
        async with self.bus.lock:
            what = f"put row {index} of table {table.name}"
            await self._wait(what)  # a command that was cancelled may still run
            if table is Table.RING:
                self._ring_rows.pop(index, None)
            await self.bus.write_burst(TBL_DATA, row)
            await self._command(what, _command(table, index) | TBL_CMD_PUT.at(1))
            if table is Table.RING:
                self._ring_rows[index] = list(row)

    async def _get(self, table: Table, index: int) -> list[int]:
        async with self.bus.lock:
            what = f"get row {index} of table {table.name}"
            await self._wait(what)
            await self._command(what, _command(table, index) | TBL_CMD_GET.at(1))
            return await self.bus.read_burst(TBL_DATA, ROW_WORDS)

    async def _command(self, what: str, word: int) -> None:
        await self.bus.write32(TBL_CMD, word)
        status = await self._wait(what)
        if STATUS_TABLE_ERROR.of(status):
            cause = "table_error: the row or its index is refused, or somebody else writes to the tables"
            raise FabricError(what, self.bus.peer, "checking the answer", cause, retryable=False)

    async def _wait(self, what: str) -> int:
        """STATUS, once no table command runs."""
        for poll in range(TABLE_POLLS):
            status = await self.bus.read32(STATUS)
            if not STATUS_TABLE_BUSY.of(status):
                return status
            if poll >= QUICK_POLLS:
                await trio.sleep(TABLE_POLL_S)
        cause = f"table_busy after {TABLE_POLLS} polls"
        raise FabricError(what, self.bus.peer, "waiting for the tables", cause, retryable=True)


def _command(table: Table, index: int) -> int:
    return TBL_CMD_TABLE.at(table) | TBL_CMD_INDEX.at(index)


def _rule(code: int) -> str:
    return _RULES.get(code) or OF_FAULTS.get(code, f"rule {code}")
