"""Registers by UDP, as LiteX has it: the contract, what is on the wire, and what a network may do to it.

The peer is written from the description of the protocol, and shares no code with what is tested.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from inaproto.errors import DecodeError, FabricError
from inaproto_adapters.fpga.etherbone import EtherboneBus, Record
from inaproto_adapters.fpga.simulated import WordRegisters
from tests.contract.register_bus_contract import Cells, Opened, RegisterBusContract

LITEETH_BUFFER_WORDS = 16
TIMEOUT_S = 2


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


async def test_a_write_that_was_sent_again_and_comes_late_overwrites_no_newer_one(
    mock_clock: MockClock,
) -> None:
    """The network is slow for the first packet alone: it comes after its repetition, which is answered. Time
    passes when the peer says so."""
    cells = Cells()
    with trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM) as sock:
        await sock.bind(("127.0.0.1", 0))

        async def respond() -> None:
            late, sender = await sock.recvfrom(4096)
            mock_clock.jump(TIMEOUT_S)
            again, _ = await sock.recvfrom(4096)
            assert again == late
            await sock.sendto(etherbone_answer(again, cells), sender)
            await wait_all_tasks_blocked()
            if sock.is_readable():
                newer, _ = await sock.recvfrom(4096)
                await sock.sendto(etherbone_answer(newer, cells), sender)
            await sock.sendto(etherbone_answer(late, cells), sender)
            while True:
                packet, _ = await sock.recvfrom(4096)
                await sock.sendto(etherbone_answer(packet, cells), sender)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(respond)
            bus = await EtherboneBus.open(
                "127.0.0.1", sock.getsockname()[1], local_port=0, timeout=TIMEOUT_S, tries=9
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
