"""How much the data path does for a message, counted: exact on every machine, however fast or busy.

Each bound is the figure of the code as it is. When a change makes the path shorter, the test passes, and
``pytest -rP`` shows the new figure: lower the bound to it in the same commit. When a test fails the path has
become longer; its message says by what. Raise a bound only with the reason in the commit.

Bounds hold for CPython 3.11. Later versions, which inline comprehensions and count some calls of methods
otherwise, may take ``_SLACK`` more of calls, and no more of anything else.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Final, cast

import numpy as np
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from inaproto.core.switch.accelerator import Accelerator, FramesArrived, InstallRing
from inaproto.daemon.switch.ports import PortBoard
from inaproto.ports import Completion, FramePort, QpAttributes, Segment
from inaproto.units import Frames, Instant, PortId
from inaproto.wire.ina_header import INA_HEADER_BYTES
from inaproto_adapters.softnic.nic import SoftNic, open_nic
from inaproto_hil.bench.traffic import Sender, host_ip, host_mac, ring_spec
from tests.unit.counting import Calls, Copied, calls, count_arrays, run_counted
from tests.unit.scripted_wires import PacketWire, StreamWire, packet_port, stream_port

MTU: Final = 1024
PACKETS: Final = 170
MESSAGE_BYTES: Final = PACKETS * MTU
WARM_UP: Final = 3
"""Messages before counting: tables are made once."""
COUNTED: Final = 8
RANKS: Final = 4
_SLACK: Final = 1.0 if sys.version_info[:2] == (3, 11) else 1.03
Wire = StreamWire | PacketWire


@dataclass(slots=True)
class Figures:
    """Of one message, or set."""

    calls: float
    """Of functions of this project."""
    others: float
    """Calls that they make to others."""
    waits: float
    """For a descriptor: each is an ``epoll_ctl`` and an ``epoll_wait``."""
    syscalls: float
    """Of sockets."""
    copied: float
    """Bytes, of kernel and numpy."""

    def require(self, most: Figures, counts: Calls) -> None:
        print(f"{self}\n{counts.largest(40)}")
        for name, slack in (
            ("calls", _SLACK),
            ("others", _SLACK),
            ("waits", 1),
            ("syscalls", 1),
            ("copied", 1),
        ):
            found, bound = getattr(self, name), getattr(most, name)
            assert found <= bound * slack, (
                f"{name}: {found}, at most {bound}; all: {self}\n{counts.largest()}"
            )


Counting = Callable[[list[Wire]], AbstractContextManager[None]]
"""What is done inside is counted, with the system calls on these wires."""
Rig = Callable[[pytest.MonkeyPatch, Counting], Awaitable[None]]


def counted(patch: pytest.MonkeyPatch, rig: Rig, units: int) -> tuple[Figures, Calls]:
    """What ``rig`` does, divided by ``units``. It is done twice, for counting copies makes calls."""
    functions = Calls()
    copied = syscalls = 0

    @contextmanager
    def calling(wires: list[Wire]) -> Iterator[None]:
        nonlocal functions, syscalls
        before = sum(wire.syscalls for wire in wires)
        with calls() as functions:
            yield
        syscalls = sum(wire.syscalls for wire in wires) - before

    @contextmanager
    def copying(wires: list[Wire]) -> Iterator[None]:
        nonlocal copied
        Copied.nbytes = 0
        before = sum(wire.kernel_bytes for wire in wires)
        yield
        copied = Copied.nbytes + sum(wire.kernel_bytes for wire in wires) - before

    run_counted(partial(rig, patch, calling))
    with patch.context() as here:
        count_arrays(here)
        run_counted(partial(rig, here, copying))
    figures = Figures(
        calls=functions.of() / units,
        others=functions.outside / units,
        waits=functions.others["wait_readable"] / units,
        syscalls=syscalls / units,
        copied=copied / units,
    )
    return figures, functions


# ---- two hosts


class Hosts:
    """Two NICs on one wire, with queue pairs and a receive slot for each."""

    def __init__(self, ports: tuple[FramePort, FramePort], pairs: int, nbytes: int) -> None:
        self.nics: list[SoftNic] = [
            open_nic(port, mac=host_mac(i), ip=host_ip(i), first_qpn=100, first_key=5)
            for i, port in enumerate(ports)
        ]
        self.nbytes = nbytes
        self.mixers: list[Mixer] = []
        self.memory = [bytearray(np.random.default_rng(i).bytes(nbytes)) for i in range(2)]
        self.slots = [[bytearray(nbytes) for _ in range(pairs)] for _ in range(2)]
        self.regions = [
            nic.register_memory(memoryview(m)) for nic, m in zip(self.nics, self.memory, strict=True)
        ]
        self.into = [
            [nic.register_memory(memoryview(slot)) for slot in slots]
            for nic, slots in zip(self.nics, self.slots, strict=True)
        ]
        self.qps = [[nic.create_qp(psn=7) for _ in range(pairs)] for nic in self.nics]
        fitting = QpAttributes(mtu=MTU).for_messages(8, nbytes)
        for mine in range(2):
            for pair in range(pairs):
                far = self.qps[1 - mine][pair]
                self.nics[mine].connect_qp(self.qps[mine][pair].qpn, far, fitting)

    async def exchange(self) -> None:
        """A message of each host on each queue pair, to the end."""
        for mine, nic in enumerate(self.nics):
            for pair, address in enumerate(self.qps[mine]):
                nic.post_receive(address.qpn, pair)
                target = self.into[1 - mine][pair]
                segment = Segment(self.regions[mine].key, self.regions[mine].va, self.nbytes)
                nic.post_write_imm(address.qpn, pair, [segment], remote_va=target.va, rkey=target.key, imm=3)
        await self.settle()
        done: list[Completion] = [completion for nic in self.nics for completion in nic.poll()]
        assert len(done) == 4 * len(self.qps[0]), done
        for mine, slots in enumerate(self.slots):
            for slot in slots:
                assert slot == self.memory[1 - mine]
                slot[:] = bytes(self.nbytes)

    async def settle(self) -> None:
        await wait_all_tasks_blocked()
        while sum(mixer.deliver() for mixer in self.mixers):  # each has its turn
            await wait_all_tasks_blocked()


class Mixer:
    """In the middle of a wire: frames of several queue pairs come out of it in turn."""

    def __init__(self, far: StreamWire) -> None:
        self._far = far
        self._held = bytearray()

    def put(self, data: bytes) -> None:
        self._held += data

    def deliver(self) -> bool:
        """Whether there was anything to be delivered."""
        flows: dict[bytes, list[bytes]] = {}
        at = 0
        while at < len(self._held):
            end = at + 4 + int.from_bytes(self._held[at : at + 4], "big")
            flows.setdefault(bytes(self._held[at + 51 : at + 54]), []).append(bytes(self._held[at:end]))
            at = end
        self._held.clear()
        in_turn = zip_longest(*flows.values(), fillvalue=b"")
        if flows:
            self._far.put(b"".join(frame for frames in in_turn for frame in frames))
        return bool(flows)


def of_hosts(
    patch: pytest.MonkeyPatch, wire: str, *, nbytes: int = MESSAGE_BYTES, pairs: int = 1
) -> tuple[Figures, Calls]:
    """Figures of a message that a host sends and one that it receives, with their acknowledgements.

    Packets of several queue pairs arrive in turn.
    """

    async def rig(patch: pytest.MonkeyPatch, counting: Counting) -> None:
        ports, wires = PORTS[wire](patch, 2)
        hosts = Hosts((ports[0], ports[1]), pairs, nbytes)
        if pairs > 1:
            for near, far in ((wires[0], wires[1]), (wires[1], wires[0])):
                hosts.mixers.append(Mixer(cast("StreamWire", far)))
                near.peer = hosts.mixers[-1]  # type: ignore[assignment]
        async with trio.open_nursery() as nursery:
            for nic in hosts.nics:
                nursery.start_soon(nic.run)
            await wait_all_tasks_blocked()
            for _ in range(WARM_UP):
                await hosts.exchange()
            with counting(wires):
                for _ in range(COUNTED):
                    await hosts.exchange()
            for nic in hosts.nics:
                await nic.aclose()

    return counted(patch, rig, 2 * COUNTED * pairs)


def stream_ports(patch: pytest.MonkeyPatch, n: int) -> tuple[list[FramePort], list[Wire]]:
    made = [stream_port(f"wire-{i}") for i in range(n)]
    for i, (_, wire) in enumerate(made):
        wire.peer = made[i ^ 1][1]
    return [port for port, _ in made], [wire for _, wire in made]


def packet_ports(patch: pytest.MonkeyPatch, n: int) -> tuple[list[FramePort], list[Wire]]:
    made = [packet_port(patch, f"eth{i}") for i in range(n)]
    for i, (_, _, sending) in enumerate(made):
        sending.peer = made[i ^ 1][1]
    return [port for port, _, _ in made], [wire for _, *wires in made for wire in wires]


PORTS: Final[dict[str, Callable[[pytest.MonkeyPatch, int], tuple[list[FramePort], list[Wire]]]]] = {
    "frames": stream_ports,
    "packet": packet_ports,
}


@pytest.mark.usefixtures("numpy_kernels")
def test_a_message_of_a_host_over_a_unix_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    figures, counts = of_hosts(monkeypatch, "frames")
    figures.require(
        Figures(calls=219.9375, others=302.8125, waits=3.125, syscalls=6.9375, copied=931_540), counts
    )


@pytest.mark.usefixtures("numpy_kernels")
def test_a_message_of_a_host_over_a_packet_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    figures, counts = of_hosts(monkeypatch, "packet")
    figures.require(Figures(calls=199.5, others=445.625, waits=3, syscalls=171, copied=573_365), counts)


@pytest.mark.usefixtures("numpy_kernels")
def test_a_message_of_one_small_packet_of_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    figures, counts = of_hosts(monkeypatch, "frames", nbytes=64)
    figures.require(Figures(calls=149.5, others=182.625, waits=3, syscalls=5.5, copied=424), counts)


@pytest.mark.usefixtures("numpy_kernels")
def test_messages_of_two_queue_pairs_whose_packets_alternate_at_a_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    figures, counts = of_hosts(monkeypatch, "frames", pairs=2)
    figures.require(Figures(calls=209.5, others=343.625, waits=2, syscalls=4, copied=954_516), counts)


@pytest.mark.usefixtures("compiled_kernels")
def test_a_message_of_a_host_over_a_unix_socket_with_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    figures, counts = of_hosts(monkeypatch, "frames")
    figures.require(
        Figures(calls=155.0625, others=201.9375, waits=3.125, syscalls=6.9375, copied=554_044), counts
    )


@pytest.mark.usefixtures("compiled_kernels")
def test_a_message_of_a_host_over_a_packet_socket_with_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    figures, counts = of_hosts(monkeypatch, "packet")
    figures.require(Figures(calls=120, others=117.125, waits=3, syscalls=4, copied=184_704), counts)


# ---- a switch


class Sink:
    """The far end of a wire that nobody reads."""

    def __init__(self) -> None:
        self.frames_bytes = 0

    def put(self, data: bytes) -> None:
        self.frames_bytes += len(data)


class Switched:
    """A switch with four ports and rings of four hosts; what it sends goes nowhere."""

    def __init__(self, patch: pytest.MonkeyPatch, wire: str, rings: int) -> None:
        self.ports, self.wires = PORTS[wire](patch, RANKS)
        for each in self.wires:
            each.peer = Sink()  # type: ignore[assignment]
        self.arriving = self.wires[:: len(self.wires) // RANKS]
        accelerator = Accelerator()
        self.board = PortBoard(accelerator.step, print, wrap_port=None, ports_max=8)
        self._install = [
            InstallRing(ring_spec(RANKS, ring_id=1 + ring, key=99 + ring)) for ring in range(rings)
        ]
        self._accelerator = accelerator
        self._senders = [
            [Sender(ring.spec, rank, 0x1000 * rank + ring.spec.ring_id) for rank in range(RANKS)]
            for ring in self._install
        ]

    def install(self) -> None:
        for rank in range(RANKS):
            hello = np.zeros((1, 60), np.uint8)
            hello[0, :6] = 0xFF
            hello[0, 6:12] = np.frombuffer(host_mac(rank), np.uint8)
            self._accelerator.step(FramesArrived(PortId(rank), [hello]), Instant(0))
        for ring in self._install:
            assert self._accelerator.step(ring, Instant(0)) == []

    def arrivals(self, serial: int, nbytes: int) -> list[list[Frames]]:
        """A message of each rank of each ring, by rank; packets of several rings alternate."""
        data = np.full(nbytes - INA_HEADER_BYTES, serial, np.uint8)
        by_rank = []
        for rank in range(RANKS):
            messages = [senders[rank].message(serial, data) for senders in self._senders]
            rows = [[row for block in blocks for row in block] for blocks in messages]
            by_rank.append([frame for frames in zip(*rows, strict=True) for frame in frames])
        return by_rank

    async def take(self, by_rank: list[list[Frames]]) -> None:
        """What comes on each port, and all that follows from it."""
        for arriving, frames in zip(self.arriving, by_rank, strict=True):
            for frame in frames:
                if isinstance(arriving, StreamWire):
                    arriving.put(len(frame).to_bytes(4, "big") + frame.tobytes())
                else:
                    arriving.put(frame)
            await wait_all_tasks_blocked()


def of_switch(
    patch: pytest.MonkeyPatch, wire: str, *, nbytes: int = MESSAGE_BYTES, rings: int = 1
) -> tuple[Figures, Calls]:
    """Figures of a set, a message of each host, in each ring."""

    async def rig(patch: pytest.MonkeyPatch, counting: Counting) -> None:
        switched = Switched(patch, wire, rings)
        async with trio.open_nursery() as nursery:
            for rank, port in enumerate(switched.ports):
                nursery.start_soon(switched.board.serve, PortId(rank), port, f"port-{rank}")
            await wait_all_tasks_blocked()
            switched.install()
            arrivals = [switched.arrivals(serial, nbytes) for serial in range(WARM_UP + COUNTED)]
            for by_rank in arrivals[:WARM_UP]:
                await switched.take(by_rank)
            before = switched.board.totals()["frames_out"]
            with counting(switched.wires):
                for by_rank in arrivals[WARM_UP:]:
                    await switched.take(by_rank)
            results = switched.board.totals()["frames_out"] - before
            assert results == RANKS * rings * COUNTED * -(-nbytes // MTU), "not all was summed"
            nursery.cancel_scope.cancel()

    return counted(patch, rig, rings * COUNTED)


@pytest.mark.usefixtures("numpy_kernels")
def test_a_set_of_a_switch_over_unix_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    figures, counts = of_switch(monkeypatch, "frames")
    figures.require(Figures(calls=379, others=818, waits=8, syscalls=16, copied=5_101_316), counts)


@pytest.mark.usefixtures("numpy_kernels")
def test_a_set_of_a_switch_over_packet_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    figures, counts = of_switch(monkeypatch, "packet")
    figures.require(Figures(calls=364, others=1467, waits=8, syscalls=680, copied=2_932_932), counts)


@pytest.mark.usefixtures("numpy_kernels")
def test_a_set_of_single_small_packets_of_a_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    figures, counts = of_switch(monkeypatch, "frames", nbytes=64)
    figures.require(Figures(calls=227, others=362, waits=8, syscalls=12, copied=4240), counts)


@pytest.mark.usefixtures("numpy_kernels")
def test_a_set_of_two_rings_whose_packets_alternate_at_a_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    figures, counts = of_switch(monkeypatch, "frames", rings=2)
    figures.require(Figures(calls=371, others=1566, waits=4, syscalls=10, copied=5_167_684), counts)


@pytest.mark.usefixtures("compiled_kernels")
def test_a_set_of_a_switch_over_unix_sockets_with_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    figures, counts = of_switch(monkeypatch, "frames")
    figures.require(Figures(calls=223.5, others=375.375, waits=8, syscalls=16, copied=2_951_488), counts)


@pytest.mark.usefixtures("compiled_kernels")
def test_a_set_of_a_switch_over_packet_sockets_with_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    figures, counts = of_switch(monkeypatch, "packet")
    figures.require(Figures(calls=176.5, others=192.375, waits=8, syscalls=12, copied=738_560), counts)


@pytest.mark.usefixtures("compiled_kernels")
def test_a_set_of_single_small_packets_of_a_switch_with_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    figures, counts = of_switch(monkeypatch, "frames", nbytes=64)
    figures.require(Figures(calls=223.875, others=304, waits=8, syscalls=12, copied=1168), counts)


@pytest.mark.usefixtures("compiled_kernels")
def test_a_set_of_two_rings_whose_packets_alternate_at_a_switch_with_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    figures, counts = of_switch(monkeypatch, "frames", rings=2)
    figures.require(Figures(calls=178, others=293.125, waits=4, syscalls=10, copied=2_952_000), counts)
