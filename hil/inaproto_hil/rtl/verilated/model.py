"""One simulated accelerator: frames go in by their port, and what leaves comes back.

It is the same each time: cycles pass only while something is under way.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Final

from inaproto.errors import InvariantBroken, LocalMisuse
from inaproto_hil.rtl.parameters import SHIFT_BYTES, Parameters

CYCLES_MAX: Final = 1_000_000
"""What one frame may cause is far less."""
QUIET_CYCLES: Final = 8
"""Frames that are in a queue are offered sooner."""
_SHARE: Final = 1 << 32


class Model:
    """``library`` is what ``build_accelerator`` made of ``parameters``. ``stalls``: (seed, share) of the
    cycles in
    which a port takes or offers nothing, so that queues fill. Raises ``LocalMisuse`` for frames that no port
    takes."""

    def __init__(
        self, library: Path, parameters: Parameters, *, stalls: tuple[int, float] | None = None
    ) -> None:
        self._parameters = parameters
        self._library = _functions(library)
        self._bench = ctypes.c_void_p(self._library.bench_new())
        self._into = ctypes.create_string_buffer(parameters.foreign_bytes + parameters.bus_bytes)
        self._port = ctypes.c_int()
        if stalls is not None:
            seed, share = stalls
            self._library.bench_stalls(self._bench, seed, int(share * _SHARE))

    @property
    def cycles(self) -> int:
        """Since it was made."""
        return int(self._library.bench_cycles(self._bench))

    def send(self, port: int, frame: bytes) -> None:
        """Let a frame, without FCS, come in at a port."""
        if not 0 <= port < self._parameters.ports:
            raise LocalMisuse(f"port {port} of {self._parameters.ports}")
        most = self._parameters.foreign_bytes - SHIFT_BYTES
        if not 0 < len(frame) <= most:
            raise LocalMisuse(f"a frame of {len(frame)} bytes; this accelerator takes 1 to {most}")
        self._library.bench_send(self._bench, port, frame, len(frame))

    def run(self, cycles_max: int = CYCLES_MAX) -> list[tuple[int, bytes]]:
        """Until nothing moves any more: all that left, (port, frame). Raises ``InvariantBroken`` if it goes
        on."""
        if self._library.bench_run(self._bench, cycles_max, QUIET_CYCLES) < 0:
            raise InvariantBroken(f"the RTL is busy after {cycles_max} cycles")
        return self._left()

    def clock(self, cycles: int) -> list[tuple[int, bytes]]:
        """Let so many cycles pass, whatever moves: what left by then."""
        self._library.bench_run(self._bench, cycles, cycles + 1)
        return self._left()

    def _left(self) -> list[tuple[int, bytes]]:
        left = []
        while size := self._library.bench_next(
            self._bench, ctypes.byref(self._port), self._into, len(self._into)
        ):
            if size > len(self._into):
                raise InvariantBroken(f"a frame of {size} bytes left the RTL")
            left.append((self._port.value, self._into.raw[:size]))
        return left

    def read32(self, address: int) -> int:
        """A register."""
        value = ctypes.c_uint32()
        self._access(address, value, is_write=False)
        return value.value

    def write32(self, address: int, value: int) -> None:
        """Set a register."""
        self._access(address, ctypes.c_uint32(value), is_write=True)

    def reset(self) -> None:
        """All queues and registers are as at the start; memories keep what is in them."""
        self._library.bench_reset(self._bench)

    def close(self) -> None:
        """It is gone; a second call does nothing."""
        if self._bench.value is not None:
            self._library.bench_free(self._bench)
            self._bench = ctypes.c_void_p()

    def _access(self, address: int, value: ctypes.c_uint32, *, is_write: bool) -> None:
        done = self._library.bench_access(
            self._bench, address, ctypes.byref(value), int(is_write), CYCLES_MAX
        )
        if not done:
            raise InvariantBroken(f"register {address:#x} does not answer")


def _functions(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    library.bench_new.restype = ctypes.c_void_p
    library.bench_new.argtypes = []
    for name in ("bench_free", "bench_reset"):
        getattr(library, name).argtypes = [ctypes.c_void_p]
        getattr(library, name).restype = None
    library.bench_stalls.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32]
    library.bench_stalls.restype = None
    library.bench_send.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t]
    library.bench_send.restype = None
    library.bench_run.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64]
    library.bench_run.restype = ctypes.c_int64
    library.bench_next.argtypes = [
        ctypes.c_void_p,
        ctypes.POINTER(ctypes.c_int),
        ctypes.c_char_p,
        ctypes.c_size_t,
    ]
    library.bench_next.restype = ctypes.c_size_t
    library.bench_access.argtypes = [
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.POINTER(ctypes.c_uint32),
        ctypes.c_int,
        ctypes.c_uint64,
    ]
    library.bench_access.restype = ctypes.c_int
    library.bench_cycles.argtypes = [ctypes.c_void_p]
    library.bench_cycles.restype = ctypes.c_uint64
    return library
