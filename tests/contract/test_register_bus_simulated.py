"""Registers of a simulation, in this process or behind a socket: the contract, what is on the wire, and what
may go wrong.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import trio

from inaproto.errors import ConfigError, FabricError, LocalMisuse
from inaproto_adapters.fpga.simulated import (
    InProcessBus,
    Op,
    SocketBus,
    Status,
    answer_to,
    serve_registers,
)
from tests.contract.register_bus_contract import PATIENT_S, Cells, Opened, RegisterBusContract


class TestInProcess(RegisterBusContract):
    @asynccontextmanager
    async def opened(self, directory: Path) -> AsyncIterator[Opened]:
        cells = Cells()
        bus = InProcessBus(cells)
        yield bus, cells
        await bus.aclose()


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
