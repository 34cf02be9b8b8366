"""Ways to the registers of RTL that is simulated: in this process, or in another one behind a socket.

The socket is a UNIX one of type SEQPACKET: a packet is a request or an answer, all numbers little-endian::

    request   op u8 | tag u8 | count u16 | address u32 | value u32 | data, count words (BURST_WRITE)
    answer    status u8 | tag u8 | count u16 | value u32 | data, count words (BURST_READ)

``value`` is what WRITE writes and READ answers, and the cycles that RUN lets pass. An answer has the tag of
its request; one with another tag comes too late and is thrown away.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Final, Protocol, Self

import trio

from inaproto.errors import ConfigError, FabricError, LocalMisuse
from inaproto_adapters.fpga.bus import WORD_MAX, BurstBus, cause_of
from inaproto_adapters.fpga.register_map import WORD_BYTES

REQUEST: Final = struct.Struct("<BBHII")
ANSWER: Final = struct.Struct("<BBHI")
BURST_WORDS_MAX: Final = 1024
PACKET_BYTES_MAX: Final = REQUEST.size + WORD_BYTES * BURST_WORDS_MAX
TIMEOUT_S: Final = 10.0
"""A simulation may be busy with frames."""


class Op(IntEnum):
    READ = 0
    WRITE = 1
    BURST_READ = 2
    BURST_WRITE = 3
    RUN = 4


class Status(IntEnum):
    OK = 0
    MALFORMED = 1
    REFUSED = 2
    """No register is there, or what is asked for cannot be done."""


class WordRegisters(Protocol):
    """Registers that are read and written at once: RTL in this process, or a model of it."""

    def read32(self, address: int) -> int: ...

    def write32(self, address: int, value: int) -> None: ...


class InProcessBus(BurstBus):
    """Registers in this process. No thread is involved, so that runs of one seed are alike."""

    def __init__(self, registers: WordRegisters, peer: str = "the accelerator in this process") -> None:
        super().__init__(peer, burst_words=BURST_WORDS_MAX)
        self._registers = registers

    async def _read(self, address: int, count: int) -> list[int]:
        return [self._registers.read32(address + WORD_BYTES * at) for at in range(count)]

    async def _write(self, address: int, words: Sequence[int]) -> None:
        for at, word in enumerate(words):
            self._registers.write32(address + WORD_BYTES * at, word)

    async def _close(self) -> None:
        pass


class SocketBus(BurstBus):
    """Registers behind a socket; see the module."""

    def __init__(self, sock: trio.socket.SocketType, peer: str, *, timeout: float = TIMEOUT_S) -> None:
        super().__init__(peer, burst_words=BURST_WORDS_MAX)
        self._sock = sock
        self._timeout = timeout
        self._tag = 0

    @classmethod
    async def open(cls, path: Path, *, timeout: float = TIMEOUT_S) -> Self:
        """Raises ``FabricError`` where nobody listens."""
        sock = _socket()
        try:
            await sock.connect(os.fspath(path))
        except OSError as error:
            sock.close()
            raise FabricError("connect", f"{path}", "opening it", cause_of(error), retryable=True) from None
        return cls(sock, f"the accelerator at {path}", timeout=timeout)

    async def run_cycles(self, cycles: int) -> None:
        """Let simulated time pass: it stands still while nothing is to be done."""
        if not 0 <= cycles <= WORD_MAX:
            raise LocalMisuse(f"{cycles} cycles")
        async with self._access("run", f"{cycles} cycles"):
            await self._ask(Op.RUN, value=cycles)

    async def _read(self, address: int, count: int) -> list[int]:
        if count == 1:
            return [(await self._ask(Op.READ, 1, address))[0]]
        _, data = await self._ask(Op.BURST_READ, count, address)
        if len(data) != WORD_BYTES * count:
            raise OSError(f"{len(data)} bytes came for {count} registers")
        return list(struct.unpack(f"<{count}I", data))

    async def _write(self, address: int, words: Sequence[int]) -> None:
        if len(words) == 1:
            await self._ask(Op.WRITE, 1, address, words[0])
        else:
            data = struct.pack(f"<{len(words)}I", *words)
            await self._ask(Op.BURST_WRITE, len(words), address, data=data)

    async def _close(self) -> None:
        self._sock.close()

    async def _ask(
        self, op: Op, count: int = 0, address: int = 0, value: int = 0, data: bytes = b""
    ) -> tuple[int, bytes]:
        """(value, data) of the answer. Raises ``OSError``."""
        self._tag = self._tag + 1 & 0xFF
        with trio.move_on_after(self._timeout):
            await self._sock.send(REQUEST.pack(op, self._tag, count, address, value) + data)
            while True:
                packet = await self._sock.recv(PACKET_BYTES_MAX)
                if not packet:
                    raise OSError("it is gone")
                if len(packet) < ANSWER.size:
                    raise OSError(f"an answer of {len(packet)} bytes")
                status, tag, _, found = ANSWER.unpack_from(packet)
                if tag != self._tag:
                    continue
                if status != Status.OK:
                    raise OSError(f"it answers with status {status}")
                return found, packet[ANSWER.size :]
        raise TimeoutError(f"no answer within {self._timeout:g} s")


async def serve_registers(
    path: Path,
    registers: WordRegisters,
    *,
    run: Callable[[int], None] | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Offer registers at a path to any number of clients, until it is cancelled; ``run`` lets cycles pass.

    What a killed process has left there is taken over. Raises ``ConfigError`` where no socket can be.
    """
    with _socket() as listener:
        try:
            await _bind(listener, path)
        except OSError as error:
            raise ConfigError(f"registers cannot be offered at {path}: {cause_of(error)}") from None
        try:
            listener.listen()
            task_status.started()
            async with trio.open_nursery() as clients:
                while True:
                    client, _ = await listener.accept()
                    clients.start_soon(_serve, client, registers, run)
        finally:
            _remove(path)


async def _serve(
    client: trio.socket.SocketType, registers: WordRegisters, run: Callable[[int], None] | None
) -> None:
    with client:
        try:
            while packet := await client.recv(PACKET_BYTES_MAX + 1):
                await client.send(answer_to(packet, registers, run))
        except OSError:
            pass  # it is gone: nobody waits for the answer


def answer_to(packet: bytes, registers: WordRegisters, run: Callable[[int], None] | None = None) -> bytes:
    """What a server answers to a packet, after it has done what that says."""
    if len(packet) < REQUEST.size:
        return ANSWER.pack(Status.MALFORMED, packet[1] if len(packet) > 1 else 0, 0, 0)
    op, tag, count, address, value = REQUEST.unpack_from(packet)
    data = packet[REQUEST.size :]
    if op not in list(Op) or len(data) != (WORD_BYTES * count if op == Op.BURST_WRITE else 0):
        return ANSWER.pack(Status.MALFORMED, tag, 0, 0)
    if count > BURST_WORDS_MAX or (op == Op.RUN and run is None):
        return ANSWER.pack(Status.REFUSED, tag, 0, 0)
    found, words = 0, list[int]()
    try:
        if op == Op.READ:
            found = registers.read32(address)
        elif op == Op.WRITE:
            registers.write32(address, value)
        elif op == Op.BURST_READ:
            words = [registers.read32(address + WORD_BYTES * at) for at in range(count)]
        elif op == Op.BURST_WRITE:
            for at, word in enumerate(struct.unpack(f"<{count}I", data)):
                registers.write32(address + WORD_BYTES * at, word)
        elif run is not None:
            run(value)
    except LocalMisuse:
        return ANSWER.pack(Status.REFUSED, tag, 0, 0)
    return ANSWER.pack(Status.OK, tag, len(words), found) + struct.pack(f"<{len(words)}I", *words)


async def _bind(listener: trio.socket.SocketType, path: Path) -> None:
    """Raises ``OSError``."""
    try:
        await listener.bind(os.fspath(path))
    except OSError as error:
        if error.errno != errno.EADDRINUSE or not _is_socket(path):
            raise
        await _require_left(path)
        _remove(path)
        await listener.bind(os.fspath(path))


async def _require_left(path: Path) -> None:
    """Raises ``OSError`` where somebody listens."""
    with _socket() as probe:
        try:
            await probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return
        except OSError:
            pass  # somebody who is busy, or takes another type of sockets
    raise OSError("somebody listens there")


def _is_socket(path: Path) -> bool:
    return path.is_socket()


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def _socket() -> trio.socket.SocketType:
    return trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_SEQPACKET)
