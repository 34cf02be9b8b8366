"""The contract of ways to registers, and what is each one's own: what is on its wire, and what may go wrong.

Peers are written from the descriptions of their protocols, and share no code with what is tested.
"""

from __future__ import annotations

import os
import random
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from inaproto.errors import ConfigError, DecodeError, FabricError, LocalMisuse
from inaproto_adapters.fpga.bus import RegisterBus
from inaproto_adapters.fpga.buses import bus_opener
from inaproto_adapters.fpga.etherbone import EtherboneBus, Record
from inaproto_adapters.fpga.simulated import (
    InProcessBus,
    Op,
    SocketBus,
    Status,
    WordRegisters,
    answer_to,
    serve_registers,
)
from inaproto_adapters.fpga.uart import UartBus
from inaproto_adapters.fpga.xdma import XdmaBus

SPACE = 0x1000
PATIENT_S = 60.0
MANY = 300
"""Registers that no way moves at once."""


class Cells:
    """A register file that is a dictionary."""

    def __init__(self) -> None:
        self.words: dict[int, int] = {}
        self.log: list[int] = []
        """Addresses in the order in which they were written."""

    def read32(self, address: int) -> int:
        return self.words.get(address, 0)

    def write32(self, address: int, value: int) -> None:
        self.log.append(address)
        self.words[address] = value


Opened = tuple[RegisterBus, WordRegisters]


class RegisterBusContract(ABC):
    @abstractmethod
    def opened(self, directory: Path) -> AbstractAsyncContextManager[Opened]:
        """A bus, and the registers that it leads to; closed at the end."""

    async def test_what_is_written_is_there_when_the_call_returns(self, runtime_dir: Path) -> None:
        async with self.opened(runtime_dir) as (bus, registers):
            for address, value in ((0, 0), (4, 0xFFFF_FFFF), (0xFFC, 0x1234_5678), (4, 1)):
                await bus.write32(address, value)
                assert registers.read32(address) == value
            assert [await bus.read32(address) for address in (0, 4, 8, 0xFFC)] == [0, 1, 0, 0x1234_5678]

    async def test_bursts_of_any_length(self, runtime_dir: Path) -> None:
        rng = random.Random(1)
        async with self.opened(runtime_dir) as (bus, registers):
            for count in (0, 1, 2, 7, 8, 9, MANY):
                words = [rng.getrandbits(32) for _ in range(count)]
                await bus.write_burst(0x40, words)
                assert [registers.read32(0x40 + 4 * at) for at in range(count)] == words
                assert await bus.read_burst(0x40, count) == words
            assert registers.read32(0x3C) == registers.read32(0x40 + 4 * MANY) == 0

    async def test_what_no_register_can_be_is_refused_and_changes_nothing(self, runtime_dir: Path) -> None:
        async with self.opened(runtime_dir) as (bus, registers):
            await bus.write_burst(0, [1, 2, 3, 4])
            for address in (1, 2, 3, -4, 1 << 32):
                with pytest.raises(LocalMisuse):
                    await bus.read32(address)
                with pytest.raises(LocalMisuse):
                    await bus.write32(address, 0)
                with pytest.raises(LocalMisuse):
                    await bus.read_burst(address, 2)
                with pytest.raises(LocalMisuse):
                    await bus.write_burst(address, [0, 0])
            for value in (-1, 1 << 32):
                with pytest.raises(LocalMisuse):
                    await bus.write32(0, value)
                with pytest.raises(LocalMisuse):
                    await bus.write_burst(0, [0, 0, value])
            with pytest.raises(LocalMisuse):
                await bus.read_burst(0, -1)
            with pytest.raises(LocalMisuse):
                await bus.write_burst((1 << 32) - 4, [0, 0])
            assert [registers.read32(address) for address in (0, 4, 8, 12)] == [1, 2, 3, 4]

    async def test_bursts_of_two_tasks_do_not_mix(self, runtime_dir: Path) -> None:
        async with self.opened(runtime_dir) as (bus, _):
            found: list[list[int]] = []

            async def write(value: int) -> None:
                await bus.write_burst(0, [value] * MANY)

            async def read() -> None:
                found.append(await bus.read_burst(0, MANY))

            async with trio.open_nursery() as nursery:
                for value in range(3):
                    nursery.start_soon(write, value)
                    nursery.start_soon(read)
            assert all(len(set(words)) == 1 for words in found)

    async def test_the_lock_is_for_sequences_and_stops_no_single_access(self, runtime_dir: Path) -> None:
        async with self.opened(runtime_dir) as (bus, _):
            order: list[int] = []

            async def sequence(number: int) -> None:
                async with bus.lock:
                    for _ in range(3):
                        await bus.write32(0, number)
                        order.append(await bus.read32(0))

            async with trio.open_nursery() as nursery:
                for number in (1, 2):
                    nursery.start_soon(sequence, number)
            assert sorted((order[:3], order[3:])) == [[1] * 3, [2] * 3]

    async def test_a_cancelled_access_leaves_the_way_in_order(self, runtime_dir: Path) -> None:
        async with self.opened(runtime_dir) as (bus, _):
            await bus.write_burst(0, list(range(MANY)))
            for _ in range(3):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(bus.read_burst, 4, MANY - 1)
                    await trio.testing.wait_all_tasks_blocked()
                    nursery.cancel_scope.cancel()
                assert await bus.read_burst(0, MANY) == list(range(MANY))

    async def test_a_closed_way_says_so(self, runtime_dir: Path) -> None:
        async with self.opened(runtime_dir) as (bus, _):
            await bus.aclose()
            await bus.aclose()
            with pytest.raises(FabricError, match="closed") as caught:
                await bus.read32(0)
            assert not caught.value.retryable
            with pytest.raises(FabricError, match="closed"):
                await bus.write_burst(0, [1])

    async def test_its_peer_is_said(self, runtime_dir: Path) -> None:
        async with self.opened(runtime_dir) as (bus, _):
            assert bus.peer.startswith("the accelerator ")


# -- in this process ---------------------------------------------------------------------------------


class TestInProcess(RegisterBusContract):
    @asynccontextmanager
    async def opened(self, directory: Path) -> AsyncIterator[Opened]:
        cells = Cells()
        bus = InProcessBus(cells)
        yield bus, cells
        await bus.aclose()


# -- a socket ----------------------------------------------------------------------------------------


class TestSocket(RegisterBusContract):
    @asynccontextmanager
    async def opened(self, directory: Path) -> AsyncIterator[Opened]:
        cells, path = Cells(), directory / "csr"
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_registers, path, cells)
            bus = await SocketBus.open(path, timeout=PATIENT_S)
            yield bus, cells
            await bus.aclose()
            nursery.cancel_scope.cancel()


async def test_a_socket_that_nobody_has(runtime_dir: Path) -> None:
    with pytest.raises(FabricError, match="opening it"):
        await SocketBus.open(runtime_dir / "csr")


async def test_the_path_is_free_again_when_a_server_ends(runtime_dir: Path) -> None:
    for _ in range(2):
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_registers, runtime_dir / "csr", Cells())
            nursery.cancel_scope.cancel()
        assert os.listdir(runtime_dir) == []


async def test_cycles_run_where_the_server_can(runtime_dir: Path) -> None:
    ran: list[int] = []
    async with trio.open_nursery() as nursery:
        for name, run in (("with", ran.append), ("without", None)):
            path = runtime_dir / name
            await nursery.start(
                lambda path=path, run=run, **started: serve_registers(path, Cells(), run=run, **started)
            )
        able = await SocketBus.open(runtime_dir / "with", timeout=PATIENT_S)
        await able.run_cycles(12_345)
        with pytest.raises(LocalMisuse):
            await able.run_cycles(-1)
        unable = await SocketBus.open(runtime_dir / "without", timeout=PATIENT_S)
        with pytest.raises(FabricError, match="status 2"):
            await unable.run_cycles(1)
        await able.aclose()
        await unable.aclose()
        nursery.cancel_scope.cancel()
    assert ran == [12_345]


@contextmanager
def silent_server(path: Path) -> Iterator[Callable[[], socket.socket]]:
    """A socket that a client can connect to; called, the server's end of the connection."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()
        yield lambda: listener.accept()[0]


async def test_a_server_that_does_not_answer_or_goes(runtime_dir: Path) -> None:
    with silent_server(runtime_dir / "csr") as accept:
        bus = await SocketBus.open(runtime_dir / "csr", timeout=0.01)
        with accept():
            with pytest.raises(FabricError, match="no answer within") as caught:
                await bus.read32(0)
            assert caught.value.retryable
        with pytest.raises(FabricError):
            await bus.read32(0)
        await bus.aclose()


async def test_an_answer_that_comes_too_late_is_not_taken_for_the_next_one(runtime_dir: Path) -> None:
    with silent_server(runtime_dir / "csr") as accept:
        bus = await SocketBus.open(runtime_dir / "csr", timeout=PATIENT_S)
        with accept() as server:
            with trio.move_on_after(0.01):
                await bus.read32(0)
            tag = server.recv(100)[1]
            server.send(struct.pack("<BBHI", 0, tag, 0, 111))
            server.send(struct.pack("<BBHI", 0, tag + 1, 0, 222))
            assert await bus.read32(4) == 222
            request = server.recv(100)
            assert request == struct.pack("<BBHII", 0, tag + 1, 1, 4, 0)
        await bus.aclose()


@pytest.mark.parametrize(
    ("packet", "answer"),
    [
        (struct.pack("<BBHII", Op.READ, 7, 1, 8, 0), (Status.OK, 7, 0, 0x88)),
        (struct.pack("<BBHII", Op.WRITE, 8, 1, 8, 5), (Status.OK, 8, 0, 0)),
        (struct.pack("<BBHII", 5, 9, 0, 0, 0), (Status.MALFORMED, 9, 0, 0)),
        (struct.pack("<BBHII", Op.READ, 9, 1, 0, 0) + b"x", (Status.MALFORMED, 9, 0, 0)),
        (struct.pack("<BBHIII", Op.BURST_WRITE, 9, 2, 0, 0, 1), (Status.MALFORMED, 9, 0, 0)),
        (struct.pack("<BBHII", Op.BURST_READ, 9, 0xFFFF, 0, 0), (Status.REFUSED, 9, 0, 0)),
        (struct.pack("<BBHII", Op.RUN, 9, 0, 0, 1), (Status.REFUSED, 9, 0, 0)),
        (b"\0\x09", (Status.MALFORMED, 9, 0, 0)),
        (b"\0", (Status.MALFORMED, 0, 0, 0)),
    ],
)
def test_what_a_server_answers(packet: bytes, answer: tuple[int, int, int, int]) -> None:
    cells = Cells()
    cells.words[8] = 0x88
    assert struct.unpack("<BBHI", answer_to(packet, cells)) == answer


def test_a_burst_is_answered_with_its_words() -> None:
    cells = Cells()
    packet = struct.pack("<BBHIIII", Op.BURST_WRITE, 1, 2, 0x20, 0, 10, 11)
    assert answer_to(packet, cells) == struct.pack("<BBHI", 0, 1, 0, 0)
    packet = struct.pack("<BBHII", Op.BURST_READ, 2, 3, 0x1C, 0)
    assert answer_to(packet, cells) == struct.pack("<BBHIIII", 0, 2, 3, 0, 0, 10, 11)


def test_registers_that_refuse_an_address_do_not_end_the_server() -> None:
    class Refusing(Cells):
        def read32(self, address: int) -> int:
            raise LocalMisuse("no register there")

    packet = struct.pack("<BBHII", Op.READ, 1, 1, 0, 0)
    assert answer_to(packet, Refusing()) == struct.pack("<BBHI", Status.REFUSED, 1, 0, 0)


# -- PCIe --------------------------------------------------------------------------------------------


class Device:
    """A file in place of a card."""

    def __init__(self, path: Path, offset: int) -> None:
        self.path, self.offset = path, offset

    def read32(self, address: int) -> int:
        data = self.path.read_bytes()[self.offset + address :][:4]
        return int.from_bytes(data, "little")

    def write32(self, address: int, value: int) -> None:
        raise AssertionError("only looked at")


class TestXdma(RegisterBusContract):
    @asynccontextmanager
    async def opened(self, directory: Path) -> AsyncIterator[Opened]:
        path = directory / "xdma0_user"
        path.write_bytes(bytes(0x100 + SPACE))
        bus = await XdmaBus.open(path, offset=0x100, space_bytes=SPACE)
        yield bus, Device(path, 0x100)
        await bus.aclose()
        assert path.read_bytes()[:0x100] == bytes(0x100)


async def test_a_card_that_is_not_there(runtime_dir: Path) -> None:
    with pytest.raises(FabricError, match="No such file"):
        await XdmaBus.open(runtime_dir / "xdma0_user")
    (runtime_dir / "short").write_bytes(bytes(100))
    with pytest.raises(FabricError, match="opening it"):
        await XdmaBus.open(runtime_dir / "short")
    for offset, space in ((2, 0x1000), (-4, 0x1000), (0, 0), (0, 6)):
        with pytest.raises(LocalMisuse):
            await XdmaBus.open(runtime_dir / "short", offset=offset, space_bytes=space)


async def test_nothing_is_written_of_a_burst_that_goes_past_the_end(runtime_dir: Path) -> None:
    path = runtime_dir / "card"
    path.write_bytes(bytes(0x1000))
    bus = await XdmaBus.open(path, space_bytes=0x1000)
    with pytest.raises(LocalMisuse):
        await bus.write_burst(0, [1] * 0x401)
    await bus.write_burst(0xFFC, [2])
    await bus.aclose()
    assert path.read_bytes() == bytes(0xFFC) + b"\x02\0\0\0"


async def test_a_socket_that_a_killed_process_has_left_is_taken_over(runtime_dir: Path) -> None:
    path = runtime_dir / "csr"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left:
        left.bind(str(path))
    cells = Cells()
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_registers, path, cells)
        bus = await SocketBus.open(path)
        await bus.write32(4, 44)
        assert cells.words == {4: 44}
        with pytest.raises(ConfigError, match="somebody listens there"):
            await serve_registers(path, Cells())
        assert await bus.read32(4) == 44
        await (await SocketBus.open(path)).aclose()
        await bus.aclose()
        nursery.cancel_scope.cancel()
    assert not path.exists()


async def test_where_registers_cannot_be_offered(runtime_dir: Path) -> None:
    for name, why in (
        ("folder", "Address already in use"),
        ("nowhere/csr", "No such file"),
        ("a" * 200, "long"),
    ):
        if name == "folder":
            (runtime_dir / name).mkdir()
        with pytest.raises(ConfigError, match=why):
            await serve_registers(runtime_dir / name, Cells())
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(runtime_dir / "other"))
        other.listen()
        with pytest.raises(ConfigError, match="somebody listens there"):
            await serve_registers(runtime_dir / "other", Cells())
    assert sorted(os.listdir(runtime_dir)) == ["folder", "other"]


@pytest.mark.parametrize("kind", ["xdma", "uart"])
async def test_what_leads_to_one_board_is_opened_once(kind: str, runtime_dir: Path) -> None:
    """Two that drive it would take out each other's rings."""
    card = runtime_dir / "xdma0_user"
    card.write_bytes(bytes(0x1000))
    with line() as (_, tty):
        opener = bus_opener(f"{kind}:{card if kind == 'xdma' else tty}")
        first = await opener()
        with pytest.raises(FabricError, match="another process drives it"):
            await opener()
        await first.aclose()
        await (await opener()).aclose()


# -- Etherbone ---------------------------------------------------------------------------------------

LITEETH_BUFFER_WORDS = 16


def etherbone_answer(packet: bytes, cells: WordRegisters) -> bytes:
    """What LiteEth does with a packet: writes first, then reads; their words go back as writes."""
    assert packet[:4] == b"\x4e\x6f\x10\x44"
    assert packet[4:8] == bytes(4)
    flags, enable, writes, reads = packet[8:12]
    assert (flags, enable) == (0, 0x0F)
    words = list(struct.unpack(f">{(len(packet) - 12) // 4}I", packet[12:]))
    assert len(words) <= LITEETH_BUFFER_WORDS
    if writes:
        base = words.pop(0)
        for at in range(writes):
            cells.write32(base + 4 * at, words.pop(0))
    base, found = words.pop(0), [cells.read32(words.pop(0)) for _ in range(reads)]
    assert not words
    assert found
    return packet[:10] + bytes([len(found), 0]) + struct.pack(f">{1 + len(found)}I", base, *found)


Disturb = Callable[[int, bytes], list[bytes]]
"""What is sent in place of an answer, by the number of the request."""


@asynccontextmanager
async def etherbone(
    cells: Cells, *, disturb: Disturb = lambda _, answer: [answer], timeout: float = 1.0, tries: int = 60
) -> AsyncIterator[EtherboneBus]:
    async def respond(sock: trio.socket.SocketType) -> None:
        number = 0
        while True:
            packet, sender = await sock.recvfrom(4096)
            for answer in disturb(number, etherbone_answer(packet, cells)):
                await sock.sendto(answer, sender)
            number += 1

    with trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM) as sock:
        await sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(respond, sock)
            bus = await EtherboneBus.open("127.0.0.1", port, local_port=0, timeout=timeout, tries=tries)
            yield bus
            await bus.aclose()
            nursery.cancel_scope.cancel()


class TestEtherbone(RegisterBusContract):
    @asynccontextmanager
    async def opened(self, directory: Path) -> AsyncIterator[Opened]:
        cells = Cells()
        async with etherbone(cells) as bus:
            yield bus, cells


async def test_packets_that_are_lost_are_sent_again() -> None:
    def lose(number: int, answer: bytes) -> list[bytes]:
        return [] if number % 3 else [answer]

    cells = Cells()
    async with etherbone(cells, disturb=lose, timeout=0.02, tries=1000) as bus:
        await bus.write_burst(0, list(range(20)))
        assert await bus.read_burst(0, 20) == list(range(20))


async def test_answers_of_others_and_old_ones_are_not_taken() -> None:
    def confuse(_: int, answer: bytes) -> list[bytes]:
        (number,) = struct.unpack(">I", answer[12:16])
        old = answer[:12] + struct.pack(">I", number - 4 & 0xFFFF_FFFF) + b"\xff" * (len(answer) - 16)
        return [b"", b"hello", bytes(100), answer[:-1], old, answer, answer]

    async with etherbone(Cells(), disturb=confuse) as bus:
        for value in range(20):
            await bus.write32(0x10, value)
            assert await bus.read_burst(0xC, 3) == [0, value, 0]


async def test_a_write_that_was_sent_again_and_comes_late_overwrites_no_newer_one() -> None:
    """The network is slow for the first packet alone: it comes after its repetition, which is answered."""
    cells = Cells()
    with trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM) as sock:
        await sock.bind(("127.0.0.1", 0))

        async def respond() -> None:
            late, sender = await sock.recvfrom(4096)
            again, _ = await sock.recvfrom(4096)
            assert again == late
            await sock.sendto(etherbone_answer(again, cells), sender)
            with trio.move_on_after(0.05):
                newer, _ = await sock.recvfrom(4096)
                await sock.sendto(etherbone_answer(newer, cells), sender)
            await sock.sendto(etherbone_answer(late, cells), sender)
            while True:
                packet, _ = await sock.recvfrom(4096)
                await sock.sendto(etherbone_answer(packet, cells), sender)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(respond)
            bus = await EtherboneBus.open(
                "127.0.0.1", sock.getsockname()[1], local_port=0, timeout=2, tries=9
            )
            await bus.write32(0x10, 1)
            await bus.write32(0x10, 2)
            assert await bus.read32(0x10) == 2
            await bus.aclose()
            nursery.cancel_scope.cancel()


async def test_an_accelerator_that_is_off() -> None:
    async with etherbone(Cells(), disturb=lambda _, answer: [], timeout=0.01, tries=2) as bus:
        with pytest.raises(FabricError, match="no answer to 2 packets") as caught:
            await bus.read32(0)
        assert caught.value.retryable


async def test_the_port_is_that_of_the_peer_unless_said_otherwise() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("0.0.0.0", 0))
        with pytest.raises(FabricError, match="Address already in use"):
            await EtherboneBus.open("127.0.0.1", other.getsockname()[1])


async def test_several_accelerators_can_be_driven_from_one_machine() -> None:
    """They answer to one port number, from addresses of their own."""
    cells = {host: Cells() for host in ("127.0.0.2", "127.0.0.3")}

    async def respond(sock: trio.socket.SocketType, its: Cells) -> None:
        while True:
            packet, sender = await sock.recvfrom(4096)
            await sock.sendto(etherbone_answer(packet, its), sender)

    async def bound(stack: ExitStack, host: str, port: int) -> trio.socket.SocketType:
        sock = stack.enter_context(trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM))
        sock.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_REUSEADDR, 1)
        await sock.bind((host, port))
        return sock

    with ExitStack() as stack:
        kept = await bound(stack, "0.0.0.0", 0)  # so that nobody else gets that port of any address
        port = kept.getsockname()[1]
        boards = [await bound(stack, host, port) for host in cells]
        async with trio.open_nursery() as nursery:
            for sock, its in zip(boards, cells.values(), strict=True):
                nursery.start_soon(respond, sock, its)
            one, other = [await EtherboneBus.open(host, port, tries=300) for host in cells]
            with pytest.raises(FabricError, match="another process drives it"):
                await EtherboneBus.open("127.0.0.2", port)
            for value in range(5):
                for bus, offset in ((one, 0), (other, 100)):
                    await bus.write32(4, value + offset)
                assert [await bus.read32(4) for bus in (other, one)] == [value + 100, value]
            await one.aclose()
            await (await EtherboneBus.open("127.0.0.2", port)).aclose()
            await other.aclose()
            nursery.cancel_scope.cancel()


def test_a_packet_byte_by_byte() -> None:
    record = Record(0x60, (0x11223344, 5), 0xABCD0000, (0x64,))
    packet = bytes.fromhex("4e6f 10 44 00000000  00 0f 02 01  00000060 11223344 00000005  abcd0000 00000064")
    assert record.encode() == packet
    assert Record.decode(packet) == record
    assert Record.decode(packet + b"more") == record
    for end in range(len(packet)):
        with pytest.raises(DecodeError):
            Record.decode(packet[:end])
    for at in (0, 1, 2, 3):
        with pytest.raises(DecodeError):
            Record.decode(packet[:at] + bytes([packet[at] ^ 0x80]) + packet[at + 1 :])


# -- UART --------------------------------------------------------------------------------------------


def uart_answers(data: bytearray, cells: WordRegisters) -> Iterator[bytes]:
    """What LiteX' bridge answers to whole requests at the head of ``data``, which it takes."""
    while len(data) >= 6:
        command, count = data[0], data[1]
        first = int.from_bytes(data[2:6], "big")
        size = 6 + (4 * count if command == 1 else 0)
        if len(data) < size:
            return
        for at in range(count):
            address = 4 * (first + at)
            if command == 1:
                cells.write32(address, int.from_bytes(data[6 + 4 * at : 10 + 4 * at], "big"))
            else:
                assert command == 2
                yield cells.read32(address).to_bytes(4, "big")
        del data[:size]


@contextmanager
def line() -> Iterator[tuple[int, Path]]:
    """A pseudo-terminal: the far end, and the path of the near one."""
    far, near = os.openpty()
    try:
        yield far, Path(os.ttyname(near))
    finally:
        os.close(near)
        os.close(far)


@asynccontextmanager
async def uart(cells: WordRegisters, received: bytearray | None = None) -> AsyncIterator[UartBus]:
    async def respond(far: int) -> None:
        data = bytearray()
        while True:
            await trio.lowlevel.wait_readable(far)
            found = os.read(far, 4096)
            data += found
            if received is not None:
                received.extend(found)
            for answer in uart_answers(data, cells):
                os.write(far, answer)

    with line() as (far, path):
        bus = await UartBus.open(path, timeout=PATIENT_S)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(respond, far)
            yield bus
            await bus.aclose()
            nursery.cancel_scope.cancel()


class TestUart(RegisterBusContract):
    @asynccontextmanager
    async def opened(self, directory: Path) -> AsyncIterator[Opened]:
        cells = Cells()
        async with uart(cells) as bus:
            yield bus, cells


async def test_requests_byte_by_byte() -> None:
    received = bytearray()
    async with uart(Cells(), received) as bus:
        await bus.write_burst(0x60, [0x11223344, 0x0A0D0311])  # bytes that a terminal would take for its own
        assert await bus.read_burst(0x60, 2) == [0x11223344, 0x0A0D0311]
    assert received == bytes.fromhex("01 02 00000018 11223344 0a0d0311  02 01 00000019  02 02 00000018")


async def test_a_line_that_is_silent_or_gone() -> None:
    far, near = os.openpty()
    bus = await UartBus.open(Path(os.ttyname(near)), timeout=0.01)
    os.close(near)
    with pytest.raises(FabricError, match="no answer within") as caught:
        await bus.read32(0)
    assert caught.value.retryable
    os.close(far)
    with pytest.raises(FabricError) as caught:
        await bus.read32(0)
    assert not caught.value.retryable
    await bus.aclose()


async def test_an_answer_that_comes_too_late_is_not_that_of_the_next_request() -> None:
    """Answers have no numbers: nothing on that line is sure any more, up to the next opening."""
    with line() as (far, path):
        bus = await UartBus.open(path, timeout=0.2)
        with pytest.raises(FabricError, match="no answer within"):
            await bus.read32(0)
        assert os.read(far, 4096)
        late = Cells()
        late.words[4] = 0x1111_1111
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_answer_one, far, late)
            with pytest.raises(FabricError, match="has to be opened again"):
                await bus.read32(4)
            nursery.cancel_scope.cancel()
        await bus.aclose()


async def test_more_than_was_asked_for_is_no_answer() -> None:
    with line() as (far, path):
        bus = await UartBus.open(path, timeout=PATIENT_S)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_answer_twice, far)
            with pytest.raises(FabricError, match="8 bytes came for 4"):
                await bus.read32(4)
        await bus.aclose()


async def _answer_twice(far: int) -> None:
    await trio.lowlevel.wait_readable(far)
    os.read(far, 4096)
    os.write(far, bytes(8))


async def test_what_is_left_of_a_request_that_was_given_up_is_thrown_away() -> None:
    cells = Cells()
    cells.words[4] = 44
    async with uart(cells) as bus:
        assert await bus.read32(4) == 44
    with line() as (far, path):
        bus = await UartBus.open(path, timeout=PATIENT_S)
        os.write(far, b"\xee\xee")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_answer_one, far, cells)
            assert await bus.read32(4) == 44
        await bus.aclose()


async def _answer_one(far: int, cells: Cells) -> None:
    await trio.lowlevel.wait_readable(far)
    for answer in uart_answers(bytearray(os.read(far, 4096)), cells):
        os.write(far, answer)


async def test_a_line_that_cannot_be_opened(runtime_dir: Path) -> None:
    with pytest.raises(LocalMisuse, match="12345 baud"):
        await UartBus.open(runtime_dir / "tty", baud=12_345)
    with pytest.raises(FabricError, match="No such file"):
        await UartBus.open(runtime_dir / "tty")
    (runtime_dir / "file").touch()
    with pytest.raises(FabricError, match="opening it"):
        await UartBus.open(runtime_dir / "file")
