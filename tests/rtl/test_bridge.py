# amaranth: UnusedElaboratable=no
"""The bridge's table in RTL answers as the software bridge does, whatever was learnt before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import pytest

pytest.importorskip("amaranth")

from amaranth.sim import Simulator

from inaproto.core.switch.bridge import CHANGE_SIGHTINGS, Bridge
from inaproto.errors import LocalMisuse
from inaproto_hil.rtl.bridge import BridgeTable

_LEARN_CYCLES: Final = 3
_GROUP: Final = bytes.fromhex("01005e000001")
_BROADCAST: Final = b"\xff" * 6
_FOR_ALL: Final = (
    _GROUP,
    _BROADCAST,
    bytes.fromhex("0180c2000000"),
    bytes.fromhex("0180c200000f"),
    bytes.fromhex("0180c2000010"),
    bytes.fromhex("0180c2000100"),
    bytes.fromhex("0080c2000000"),  # no group address, but close to those of a link
)


@dataclass(frozen=True)
class Learn:
    mac: bytes
    port: int
    ip: bytes = b""


@dataclass(frozen=True)
class Up:
    port: int


@dataclass(frozen=True)
class Down:
    port: int


Step = Learn | Up | Down


def _mac(number: int) -> bytes:
    """Different in the first and in the last byte."""
    return bytes((4 * (number & 3), 0x1B, 0x21, 0, 0, number))


def _ip(number: int) -> bytes:
    return bytes((10, 0, number >> 4, number))


class Table:
    """The RTL and the software side by side."""

    def __init__(self, ctx: Any, dut: BridgeTable, ports: int, addresses: int) -> None:
        self._ctx = ctx
        self._dut = dut
        self._ports = ports
        self.golden = Bridge(addresses_max=addresses)

    def offer(self, learn: Learn | None) -> None:
        self._ctx.set(self._dut.learn.valid, learn is not None)
        if learn is not None:
            self._ctx.set(
                self._dut.learn.payload,
                {
                    "mac": int.from_bytes(learn.mac),
                    "port": learn.port,
                    # Without an IP address the field may hold anything, also one that is remembered.
                    "ip": int.from_bytes(learn.ip or _ip(0)),
                    "has_ip": bool(learn.ip),
                },
            )

    def set_ports(self, forgotten: Iterable[int] = ()) -> None:
        self._ctx.set(self._dut.ports_up, _mask(self.golden.ports))
        self._ctx.set(self._dut.forget, _mask(forgotten))

    def query(self, mac: bytes, ingress: int) -> None:
        self._ctx.set(self._dut.query_mac, int.from_bytes(mac))
        self._ctx.set(self._dut.query_ingress, ingress)

    def ready(self) -> bool:
        return bool(self._ctx.get(self._dut.learn.ready))

    def idle(self) -> bool:
        return bool(self._ctx.get(self._dut.idle))

    @property
    def result(self) -> int:
        return int(self._ctx.get(self._dut.result_mask))

    async def tick(self) -> None:
        await self._ctx.tick()

    async def take(self, step: Step) -> int:
        """Cycles until the table is idle again."""
        assert self.idle()
        match step:
            case Learn(mac, port, ip):
                self.offer(step)
                self.golden.learn(mac, port, ip)
            case Up(port):
                self.golden.port_up(port)
                self.set_ports()
            case Down(port):
                self.golden.port_down(port)
                self.set_ports([port])
        await self.tick()
        self.offer(None)
        self.set_ports()
        cycles = 1
        while not self.idle():
            await self.tick()
            cycles += 1
            assert cycles < 100
        return cycles

    async def compare(self, queries: Iterable[tuple[bytes, int]]) -> None:
        """One query every cycle."""
        for mac, ingress in queries:
            self.query(mac, ingress)
            await self.tick()
            assert self.result == _mask(self.golden.egress(mac, ingress)), (mac.hex(), ingress)


def _mask(ports: Iterable[int]) -> int:
    return sum(1 << port for port in ports)


def _run(ports: int, addresses: int, test: Callable[[Table], Any]) -> None:
    dut = BridgeTable(ports, addresses)
    simulator = Simulator(dut)
    simulator.add_clock(1e-6)

    async def bench(ctx: Any) -> None:
        await test(Table(ctx, dut, ports, addresses))

    simulator.add_testbench(bench)
    simulator.run()


def _check(ports: int, addresses: int, steps: Iterable[Step], macs: Iterable[bytes]) -> None:
    """After each step all of these addresses are asked for, from everywhere."""
    queries = [(mac, ingress) for mac in macs for ingress in range(ports + 1)]

    async def test(table: Table) -> None:
        for port in range(ports):
            await table.take(Up(port))
        for step in steps:
            cycles = await table.take(step)
            assert not isinstance(step, Learn) or cycles == _LEARN_CYCLES
            await table.compare(queries)

    _run(ports, addresses, test)


def _learnt(random: Random, ports: int, macs: list[bytes], ips: list[bytes]) -> Iterator[Learn]:
    """IP addresses come with their own Ethernet address or, several times in a row, with another one."""
    while True:
        mac = random.choice(macs)
        port = random.randrange(ports)
        kind = random.random()
        if kind < 0.05:
            yield Learn(random.choice([_GROUP, _BROADCAST]), port, random.choice([b"", ips[0]]))
        elif kind < 0.35:
            yield Learn(mac, port)
        elif kind < 0.65:
            own = random.randrange(len(ips))
            yield Learn(macs[own % len(macs)], port, ips[own])
        else:
            ip = random.choice(ips)
            for _ in range(random.randint(1, CHANGE_SIGHTINGS + 1)):
                yield Learn(mac, random.choice([port, random.randrange(ports)]), ip)


def _pools(addresses: int) -> tuple[list[bytes], list[bytes]]:
    """More addresses than the table has room for."""
    many = addresses + addresses // 2 + 2
    return [_mac(n) for n in range(many)], [_ip(n) for n in range(many)]


def test_which_addresses_are_flooded_and_which_end_here() -> None:
    _check(
        3, 4, [Learn(_mac(1), 2), Learn(_GROUP, 1), Down(0), Down(2), Up(2)], [_mac(1), _mac(2), *_FOR_ALL]
    )


def test_the_first_learnt_makes_room_and_an_update_keeps_its_place() -> None:
    steps = [Learn(_mac(n), n % 3) for n in range(4)]
    steps += [Learn(_mac(0), 2), Learn(_mac(4), 1), Learn(_mac(5), 1)]
    _check(3, 4, steps, map(_mac, range(7)))


def test_where_addresses_were_forgotten_the_order_of_the_others_stays() -> None:
    steps: list[Step] = [Learn(_mac(n), n % 2) for n in range(5)]
    steps += [
        Down(1),
        *(Learn(_mac(n), 2) for n in range(5, 11)),
        Down(2),
        Learn(_mac(11), 0),
        Learn(_mac(12), 1),
    ]
    _check(3, 5, steps, map(_mac, range(13)))


def test_an_ip_address_has_another_mac_only_after_some_sightings_in_a_row() -> None:
    own, other, third = (Learn(_mac(n), n, _ip(0)) for n in range(3))
    steps = [
        own,
        *[other] * (CHANGE_SIGHTINGS - 1),
        own,
        *[other] * 2,
        third,
        *[other] * CHANGE_SIGHTINGS,
        own,
    ]
    _check(3, 4, steps, map(_mac, range(3)))


def test_a_remembered_ip_address_makes_room_with_its_doubt() -> None:
    doubt = [Learn(_mac(3), 1, _ip(0))] * (CHANGE_SIGHTINGS - 1)
    steps = [Learn(_mac(0), 0, _ip(0)), *doubt, *(Learn(_mac(n), 0, _ip(n)) for n in (1, 2))]
    steps += [Learn(_mac(5), 2, _ip(5)), Learn(_mac(4), 2, _ip(0)), Learn(_mac(3), 1, _ip(0))]
    _check(3, 3, steps, map(_mac, range(6)))


@pytest.mark.parametrize(("ports", "addresses", "count"), [(4, 3, 300), (3, 4, 300), (6, 16, 300)])
def test_random_steps(ports: int, addresses: int, count: int) -> None:
    random = Random(addresses)
    macs, ips = _pools(addresses)
    learns = _learnt(random, ports, macs, ips)
    evicted = refused = forgotten = 0

    async def test(table: Table) -> None:
        nonlocal evicted, refused, forgotten
        for port in range(ports):
            await table.take(Up(port))
        for _ in range(count):
            before = table.golden.addresses
            port = random.randrange(ports)
            step: Step = next(learns)
            if random.random() < 0.3 / addresses:
                step = Up(port) if random.random() < 0.5 else Down(port)
            await table.take(step)
            after = table.golden.addresses
            match step:
                case Learn(mac, port, ip):
                    evicted += not before.keys() <= after.keys()
                    refused += bool(ip) and after.get(mac) != port
                case _:
                    forgotten += before != after
            asked = random.sample([*macs, random.choice(_FOR_ALL)], min(len(macs), 8))
            await table.compare((mac, random.randrange(ports + 1)) for mac in asked)
            # From nowhere: only so tells a bridge of few ports known addresses from flooded ones.
            await table.compare((mac, ports) for mac in asked)

    _run(ports, addresses, test)
    assert evicted >= 20
    assert refused >= 20
    assert forgotten >= 2


@pytest.mark.parametrize(("ports", "addresses", "cycles"), [(4, 3, 1200), (3, 16, 800)])
def test_nobody_waits_for_anything(ports: int, addresses: int, cycles: int) -> None:
    """Learning, forgetting and queries at any cycle. What is learnt in the cycle of a pulse precedes it."""
    random = Random(100 + addresses)
    macs, ips = _pools(addresses)
    learns = _learnt(random, ports, macs, ips)
    compared = 0

    async def test(table: Table) -> None:
        nonlocal compared
        offered: Learn | None = None
        learning = False
        unsure: set[int] = set()
        """Ports that came up before all behind them was forgotten."""
        for _ in range(cycles):
            if offered is None and random.random() < 0.6:
                offered = next(learns)
            table.offer(offered)
            taken = table.ready() and offered is not None
            if table.idle():
                learning = False
                unsure.clear()

            before = deepcopy(table.golden)
            if taken and offered is not None:
                table.golden.learn(offered.mac, offered.port, offered.ip)
                offered = None
            rate = 0.01 if table.idle() else 0.1
            forgotten = [port for port in table.golden.ports if random.random() < rate]
            raised = [
                port for port in range(ports) if port not in table.golden.ports and random.random() < 0.2
            ]
            for bridge in (before, table.golden):
                for port in forgotten:
                    bridge.port_down(port)
                for port in raised:
                    bridge.port_up(port)
            if not table.idle():
                unsure.update(raised)
            table.set_ports(forgotten)

            mac, ingress = random.choice([*macs, *_FOR_ALL]), random.randrange(ports + 1)
            table.query(mac, ingress)
            await table.tick()
            if not learning and not unsure:
                assert table.result == _mask(before.egress(mac, ingress))
                compared += 1
            learning = learning or taken

    _run(ports, addresses, test)
    assert compared > cycles // 4


def test_sizes_that_no_table_has() -> None:
    with pytest.raises(LocalMisuse):
        BridgeTable(1, 16)
    with pytest.raises(LocalMisuse):
        BridgeTable(4, 1)
