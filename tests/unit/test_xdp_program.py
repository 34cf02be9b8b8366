"""The program of an ``xdp:`` port, run here instruction by instruction: which frames it takes."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

import pytest

from inaproto.errors import Unsupported
from inaproto_adapters.frames import xdp_program
from inaproto_adapters.frames.xdp_program import instructions

OWN = bytes.fromhex("f25400000001")
OTHER = bytes.fromhex("020000000802")
LIMIT = 1792
TAKEN, PASSED = 4, 2


def run(frame: bytes) -> int:
    """What the program answers for a frame: ``TAKEN`` where it asks for the socket of its queue."""
    code = list(struct.iter_unpack("<BBhi", instructions(7, OWN, LIMIT)))
    registers = [0] * 11
    begin, end = 1 << 20, (1 << 20) + len(frame)
    context = struct.pack("<IIIIII", begin, end, 0, 1, 3, 0)
    registers[1] = 1
    at = 0
    while True:
        operation, both, offset, value = code[at]
        to, source = both & 15, both >> 4
        at += 1
        if operation in (0x61, 0x69, 0x71):
            size = {0x61: 4, 0x69: 2, 0x71: 1}[operation]
            place = registers[source] + offset
            data = context[place - 1 :] if registers[source] == 1 else frame[place - begin :]
            assert len(data) >= size, "a load beyond the frame"
            registers[to] = int.from_bytes(data[:size], "little")
        elif operation == 0xB7:
            registers[to] = value
        elif operation == 0xBF:
            registers[to] = registers[source]
        elif operation == 0x07:
            registers[to] += value
        elif operation == 0x18:
            registers[to] = value
            at += 1
        elif operation == 0x85:
            assert (value, registers[1:4]) == (51, [7, 3, PASSED])
            registers[0] = TAKEN
        elif operation == 0x95:
            return registers[0]
        else:
            taken = {
                0x2D: registers[to] > registers[source],
                0xBD: registers[to] <= registers[source],
                0x15: registers[to] == value,
                0x55: registers[to] != value,
                0x56: registers[to] != value & 0xFFFF_FFFF,
            }[operation]
            at += offset if taken else 0


def frame(length: int = 100, **changes: bytes) -> bytes:
    """A RoCE packet with bytes put at ``at_N``."""
    data = bytearray(OTHER + bytes(6) + b"\x08\x00\x45" + bytes(length))[:length]
    data[23:24] = b"\x11"
    data[36:38] = struct.pack(">H", 4791)
    for name, value in changes.items():
        at = int(name.removeprefix("at_"))
        data[at : at + len(value)] = value
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (frame(), TAKEN),
        (frame(42), TAKEN),
        (frame(LIMIT), TAKEN),
        (frame(LIMIT + 1), PASSED),
        (frame(100)[:41], PASSED),
        (b"", PASSED),
        (frame(at_12=b"\x86\xdd"), PASSED),
        (frame(at_12=b"\x81\x00"), PASSED),
        (frame(at_14=b"\x46"), PASSED),
        (frame(at_23=b"\x06"), PASSED),
        (frame(at_36=struct.pack(">H", 4790)), PASSED),
        (frame(at_40=b"\x00\x01"), PASSED),
        (frame(at_40=b"\x01\x00"), PASSED),
        (frame(at_0=OWN), PASSED),
        (frame(at_0=OWN[:4] + b"\0\2"), TAKEN),
        (frame(at_0=b"\xf3" + OWN[1:]), TAKEN),
    ],
)
def test_it_takes_roce_packets_of_others_and_passes_the_rest(data: bytes, answer: int) -> None:
    assert run(data) == answer


class Kernel:
    """Answers EAGAIN so often, then a descriptor."""

    def __init__(self, signals: int) -> None:
        self.signals = signals

    def syscall(self, *_: object) -> int:
        self.signals -= 1
        if self.signals < 0:
            return os.open(os.devnull, os.O_RDONLY)
        ctypes.set_errno(errno.EAGAIN)
        return -1


def test_a_signal_in_the_kernel_s_look_at_a_program_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xdp_program, "_LIBC", Kernel(4))
    monkeypatch.setattr(xdp_program, "MACHINES", (platform.machine(),))
    xdp_program.require_programs("xdp:")
    monkeypatch.setattr(xdp_program, "_LIBC", Kernel(1000))
    with pytest.raises(Unsupported, match="Resource temporarily unavailable"):
        xdp_program.require_programs("xdp:")
