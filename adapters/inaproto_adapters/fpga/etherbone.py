"""Way to the registers of a LiteX design by Ethernet: Etherbone version 1, Wishbone over UDP.

A packet is a header and one record, all numbers big-endian, addresses in bytes::

    header   magic 0x4E6F u16 | version 1 and flags u8 | 4 bytes of address, 4 of data: 0x44 u8 | 0 u32
    record   flags 0 u8 | byte enable 0x0F u8 | writes u8 | reads u8
             base address of the writes u32, a word for each      (if there are writes)
             base address of the answer u32, an address for each  (if there are reads)

The answer has what was read as writes, to the base address that the request named for it: that is a number
of ours, by which an answer is known. Etherbone does not acknowledge writes, so each record with writes reads
back its last register. What is not answered is sent again; a register may be written twice then, with one
value. The second time may be late: so who wrote by several packets waits for the answer to each, for as long
as for one, before anything else is sent. A packet that is slower than that could overwrite a newer value.

LiteEth, the peer that this is for, takes one record a packet, holds as many words of it as its buffer has
(16 by default), and answers to its own port number: so that is ours, too, unless ``local_port`` says another.
Several boards have it in common: by their addresses the kernel tells apart what they answer.
"""

from __future__ import annotations

import errno
import socket
import struct
import time
from collections.abc import Sequence
from typing import Final, NamedTuple, Self

import trio

from inaproto.errors import DecodeError, FabricError
from inaproto_adapters.fpga.bus import BurstBus, cause_of
from inaproto_adapters.fpga.register_map import WORD_BYTES

PORT: Final = 1234
MAGIC: Final = 0x4E6F
VERSION: Final = 1
SIZES: Final = 0x44
HEADER: Final = struct.Struct(">HBBI")
RECORD: Final = struct.Struct(">BBBB")
BYTE_ENABLE: Final = 0x0F
BURST_WORDS: Final = 8
"""With the base addresses and the read behind them, that fits in a buffer of 16 words."""
RECORD_WORDS_MAX: Final = 255
_PACKET_BYTES_MAX: Final = 4096


class Record(NamedTuple):
    """Writes from ``write_base`` on, then reads of ``read_addresses``, answered at ``read_base``."""

    write_base: int = 0
    writes: tuple[int, ...] = ()
    read_base: int = 0
    read_addresses: tuple[int, ...] = ()

    def encode(self) -> bytes:
        """The packet that has it."""
        words: list[int] = []
        if self.writes:
            words += [self.write_base, *self.writes]
        if self.read_addresses:
            words += [self.read_base, *self.read_addresses]
        return (
            HEADER.pack(MAGIC, VERSION << 4, SIZES, 0)
            + RECORD.pack(0, BYTE_ENABLE, len(self.writes), len(self.read_addresses))
            + struct.pack(f">{len(words)}I", *words)
        )

    @classmethod
    def decode(cls, packet: bytes) -> Self:
        """The first record of a packet. Raises ``DecodeError``."""
        if len(packet) < HEADER.size + RECORD.size:
            raise DecodeError("Etherbone", f"a packet of {len(packet)} bytes", len(packet))
        magic, version, sizes, _ = HEADER.unpack_from(packet)
        if magic != MAGIC or version >> 4 != VERSION or sizes != SIZES:
            raise DecodeError("Etherbone", "no packet of version 1 with 32-bit addresses and data")
        _, _, writes, reads = RECORD.unpack_from(packet, HEADER.size)
        begin = HEADER.size + RECORD.size
        count = writes + bool(writes) + reads + bool(reads)
        if len(packet) < begin + WORD_BYTES * count:
            raise DecodeError("Etherbone", f"{writes} writes and {reads} reads do not fit", len(packet))
        words = struct.unpack_from(f">{count}I", packet, begin)
        written, read = words[: writes + bool(writes)], words[writes + bool(writes) :]
        return cls(written[0] if written else 0, written[1:], read[0] if read else 0, read[1:])


class EtherboneBus(BurstBus):
    """See the module."""

    def __init__(
        self,
        sock: trio.socket.SocketType,
        claimed: socket.socket,
        peer: str,
        *,
        timeout: float = 0.2,
        tries: int = 5,
        burst_words: int = BURST_WORDS,
    ) -> None:
        super().__init__(peer, burst_words=min(burst_words, RECORD_WORDS_MAX))
        self._sock = sock
        self._claimed = claimed
        self._timeout = timeout
        self._tries = tries
        # Not where another process began that had this port before: its answers may still come.
        self._number = time.monotonic_ns() & 0xFFFF_FFFC

    @classmethod
    async def open(
        cls,
        host: str,
        port: int = PORT,
        *,
        local_port: int | None = None,
        timeout: float = 0.2,
        tries: int = 5,
        burst_words: int = BURST_WORDS,
    ) -> Self:
        """``timeout`` is for one answer, after which a request is sent again, ``tries`` times in all."""
        sock = trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM)
        peer = f"the accelerator at {host}, UDP port {port}"
        try:
            sock.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_REUSEADDR, 1)
            await sock.bind(("", port if local_port is None else local_port))
            await sock.connect((host, port))
            claimed = _claim(*sock.getpeername())
        except (OSError, UnicodeError, OverflowError) as error:  # of a name or a port that cannot be, too
            sock.close()
            raise FabricError("connect", peer, "opening it", cause_of(error), retryable=False) from None
        return cls(sock, claimed, peer, timeout=timeout, tries=tries, burst_words=burst_words)

    async def _read(self, address: int, count: int) -> list[int]:
        addresses = tuple(address + WORD_BYTES * at for at in range(count))
        return list(await self._ask(Record(read_addresses=addresses)))

    async def _write(self, address: int, words: Sequence[int]) -> None:
        last = address + WORD_BYTES * (len(words) - 1)
        await self._ask(Record(write_base=address, writes=tuple(words), read_addresses=(last,)))

    async def _close(self) -> None:
        self._sock.close()
        self._claimed.close()

    async def _ask(self, record: Record) -> tuple[int, ...]:
        """What was read. Raises ``OSError``."""
        self._number = self._number + WORD_BYTES & 0xFFFF_FFFF
        packet, count = record._replace(read_base=self._number).encode(), len(record.read_addresses)
        for others in range(self._tries):
            found: tuple[int, ...] = ()
            with trio.move_on_after(self._timeout):
                await self._sock.send(packet)
                found = await self._answer(count)
            if not found:
                continue
            if record.writes:
                with trio.move_on_after(self._timeout):
                    for _ in range(others):
                        await self._answer(count)
            return found
        raise TimeoutError(f"no answer to {self._tries} packets, {self._timeout:g} s each")

    async def _answer(self, count: int) -> tuple[int, ...]:
        """The next one to the last request, which is of so many registers."""
        while True:
            try:
                answer = Record.decode(await self._sock.recv(_PACKET_BYTES_MAX))
            except DecodeError:
                continue  # not from the accelerator, or damaged
            if answer.write_base == self._number and len(answer.writes) == count:
                return answer.writes


def _claim(host: str, port: int) -> socket.socket:
    """Have that accelerator alone until this is closed: a name that is the kernel's, where UDP ports are.

    Raises ``OSError``.
    """
    claimed = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    try:
        claimed.bind(f"\0inaproto/etherbone/{host}/{port}")
    except OSError as error:
        claimed.close()
        if error.errno == errno.EADDRINUSE:
            raise OSError("another process drives it from this machine") from None
        raise
    return claimed
