"""The table of a learning Ethernet bridge: where frames leave that are not aggregated (NetReduce section 4).

It answers as :class:`inaproto.core.switch.bridge.Bridge` does, without ports that stand aside.

Invariants:

- The ranks of the rows are a permutation: rows that hold nothing come first, then addresses in the order in
  which they were learnt. So whatever is learnt takes the row of rank 0, whether the table is full or not.
- An IP address is forgotten only where another one takes its row, so these rows are filled round and round.
- What puts an IP address in doubt stands in its row: an address that is not remembered is never in doubt.

Ethernet addresses are numbers whose highest byte comes first on the wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import Final

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from inaproto.core.switch.bridge import CHANGE_SIGHTINGS
from inaproto.errors import LocalMisuse

_GROUP_BIT: Final = 40
OF_A_LINK: Final = 0x0180C2_00000
"""All but the lowest four bits of the addresses that no bridge passes on."""

_HOST: Final = data.StructLayout({"mac": 48, "latest": 48, "sightings": range(CHANGE_SIGHTINGS)})
"""Of an IP address: its Ethernet address; the latest it came with and, if another, how often in a row."""


class BridgeTable(wiring.Component):
    """Learns an address in three cycles; a query takes one.

    - ``learn``: ``Bridge.learn``. Queries see it from the next cycle with ``idle`` on.
    - ``query_mac``, ``query_ingress`` (``ports``: from nowhere): ``result_mask`` is what ``Bridge.egress``
      answers, one cycle later. There may be a query every cycle, also while something is being learnt.
    - ``ports_up`` is taken at the time of the query.
    - ``forget``: a pulse forgets the addresses behind these ports, one per cycle, like ``Bridge.port_down``.
      What was taken from ``learn`` until then, in the cycle of the pulse too, is forgotten with them. Queries
      with ``ports_up`` low know these addresses no more from the pulse on.
    """

    def __init__(self, ports: int, addresses: int) -> None:
        if ports < 2 or addresses < 2:
            raise LocalMisuse(f"a bridge of {ports} ports and {addresses} addresses: both are two at least")
        self._ports = ports
        self._addresses = addresses
        self.learnt = data.StructLayout({"mac": 48, "port": range(ports), "ip": 32, "has_ip": 1})
        super().__init__(
            {
                "ports_up": In(ports),
                "learn": In(stream.Signature(self.learnt)),
                "forget": In(ports),
                "idle": Out(1),
                "query_mac": In(48),
                "query_ingress": In(range(ports + 1)),
                "result_mask": Out(ports),
            }
        )
        rows = range(addresses)
        self._held = Signal(addresses)
        self._macs = [Signal(48, name=f"mac_{row}") for row in rows]
        self._places = [Signal(ports, name=f"place_{row}") for row in rows]
        """The port of each row, as a mask."""
        self._ranks = [Signal(range(addresses), init=row, name=f"rank_{row}") for row in rows]

    def elaborate(self, platform: object) -> Module:
        m = Module()
        self._query(m)
        self._learn(m)
        return m

    def _query(self, m: Module) -> None:
        found = Signal(self._ports)
        others = ~_mask(self.query_ingress, self._ports)
        m.d.comb += found.eq(_picked(self._holders(self.query_mac), self._places) & self.ports_up)
        with m.If(found.any()):
            m.d.sync += self.result_mask.eq(found & others)
        with m.Elif(self.query_mac[4:] == OF_A_LINK):
            m.d.sync += self.result_mask.eq(0)
        with m.Else():
            m.d.sync += self.result_mask.eq(self.ports_up & others)

    def _learn(self, m: Module) -> None:
        m.submodules.hosts = hosts = memory.Memory(shape=_HOST, depth=self._addresses, init=[])
        read, write = hosts.read_port(), hosts.write_port()
        remembered = Signal(self._addresses)
        ips = [Signal(32, name=f"ip_{row}") for row in range(self._addresses)]
        next_host = Signal(range(self._addresses))

        new = Signal(self.learnt)
        its_rows = Signal(self._addresses)
        its_hosts = Signal(self._addresses)
        to_forget = Signal(self._ports)
        m.d.comb += read.addr.eq(_picked(its_hosts, range(self._addresses)))
        m.d.sync += to_forget.eq(to_forget | self.forget)

        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += [self.idle.eq(~to_forget.any()), self.learn.ready.eq(self.idle)]
                with m.If(~self.idle):
                    self._forget(m, to_forget)
                with m.Elif(self.learn.valid):
                    arrived = self.learn.payload
                    m.d.sync += [
                        new.eq(arrived),
                        its_rows.eq(self._holders(arrived.mac)),
                        its_hosts.eq(_equal(remembered, ips, arrived.ip)),
                    ]
                    m.next = "READ"

            with m.State("READ"):  # the memory answers in the next cycle
                m.next = "DECIDE"

            with m.State("DECIDE"):
                host = read.data
                host_known = Signal()
                doubtful = Signal()
                sightings = Signal(range(CHANGE_SIGHTINGS + 1))
                m.d.comb += [
                    host_known.eq(its_hosts.any()),
                    sightings.eq(Mux(host.latest == new.mac, host.sightings + 1, 1)),
                    doubtful.eq(
                        new.has_ip & host_known & (host.mac != new.mac) & (sightings < CHANGE_SIGHTINGS)
                    ),
                    write.addr.eq(Mux(host_known, read.addr, next_host)),
                    write.data.mac.eq(Mux(doubtful, host.mac, new.mac)),
                    write.data.latest.eq(new.mac),
                    write.data.sightings.eq(sightings),
                ]
                with m.If(~new.mac[_GROUP_BIT]):
                    with m.If(new.has_ip):
                        m.d.comb += write.en.eq(1)
                        with m.If(~host_known):
                            last = next_host == self._addresses - 1
                            m.d.sync += next_host.eq(Mux(last, 0, next_host + 1))
                            for row, ip in enumerate(ips):
                                with m.If(next_host == row):
                                    m.d.sync += [ip.eq(new.ip), remembered[row].eq(1)]
                    with m.If(~doubtful):
                        self._place(m, new.mac, new.port, its_rows)
                m.next = "IDLE"

    def _place(self, m: Module, mac: Value, port: Value, its_rows: Value) -> None:
        """Whoever is known keeps the rank; others get the row of rank 0, and the highest rank."""
        known = Signal()
        place = Signal(self._ports)
        m.d.comb += [known.eq(its_rows.any()), place.eq(_mask(port, self._ports))]
        for row, rank in enumerate(self._ranks):
            with m.If(Mux(known, its_rows[row], rank == 0)):
                m.d.sync += [self._held[row].eq(1), self._macs[row].eq(mac), self._places[row].eq(place)]
            with m.If(~known):
                m.d.sync += rank.eq(Mux(rank == 0, self._addresses - 1, rank - 1))

    def _forget(self, m: Module, to_forget: Signal) -> None:
        """One address behind these ports; its row is in front of all others then."""
        behind = Signal(self._addresses)
        one = Signal(self._addresses)
        its_rank = Signal(range(self._addresses))
        m.d.comb += [
            behind.eq(Cat((place & to_forget).any() for place in self._places) & self._held),
            one.eq(behind & -behind),
            its_rank.eq(_picked(one, self._ranks)),
        ]
        with m.If(behind.any()):
            m.d.sync += self._held.eq(self._held & ~one)
            for row, rank in enumerate(self._ranks):
                with m.If(one[row]):
                    m.d.sync += rank.eq(0)
                with m.Elif(rank < its_rank):
                    m.d.sync += rank.eq(rank + 1)
        with m.Else():
            m.d.sync += to_forget.eq(self.forget)

    def _holders(self, mac: Value) -> Value:
        """The row of this address as a mask, if it has one."""
        return _equal(self._held, self._macs, mac)


def _equal(held: Value, keys: Sequence[Value], key: Value) -> Value:
    """Which rows hold this key, as a mask: one at most."""
    return Cat(each == key for each in keys) & held


def _picked(one: Value, values: Sequence[Value | int]) -> Value:
    """The value whose bit is set in ``one``; 0 if none is."""
    return reduce(or_, (Mux(one[row], value, 0) for row, value in enumerate(values)))


def _mask(port: Value, ports: int) -> Value:
    """This port as a mask; none if it is none of them."""
    return Cat(port == each for each in range(ports))
