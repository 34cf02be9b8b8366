"""Rules of what sums are, bit by bit."""

from __future__ import annotations

import struct
from typing import Any, Final

from inaproto.wire import icrc
from inaproto.wire.ina_header import INA_HEADER_BYTES, Dtype, Op
from inaproto_hil.conformance.bench import Bench
from inaproto_hil.conformance.rules.rule import Rules

rule = Rules()


async def _reduce(b: Bench, dtype: Dtype) -> None:
    mtu = min(256, b.limits.mtu)
    for op in Op:
        ring = await b.ring(dtype=dtype, op=op, mtu=mtu)
        for serial in range(3):
            await b.message(ring, serial)
        await b.remove(ring)
        ring = await b.ring(dtype=dtype, op=op, mtu=mtu, packets=1, values=_special(dtype, b.ranks, mtu))
        await b.message(ring, 0)
        await b.remove(ring)


_SPECIAL: Final = {
    Dtype.F32: (
        "<I",
        (0, 1 << 31, 1, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x3F800000),
    ),
    Dtype.I32: ("<I", (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x40000000)),
    Dtype.F16: ("<H", (0, 0x8000, 1, 0x3FF, 0x400, 0x7BFF, 0x7C00, 0xFC00, 0x7E01, 0x3C00, 0x3C01)),
    Dtype.BF16: ("<H", (0, 0x8000, 1, 0x7F, 0x80, 0x7F7F, 0x7F80, 0xFF80, 0x7FC1, 0x3F80, 0x3F81)),
}
"""Zeros, subnormals, the largest, infinities, NaN, one and its neighbour."""


def _special(dtype: Dtype, ranks: int, mtu: int) -> tuple[tuple[bytes, ...], ...]:
    """Each special value with each other one at the first two ranks, as many as fit; others turn them."""
    form, values = _SPECIAL[dtype]
    room = (mtu - INA_HEADER_BYTES) // struct.calcsize(form)
    pairs = ([(one, other) for one in values for other in values] * room)[:room]
    data = []
    for rank in range(ranks):
        turned = pairs if rank < 2 else [pairs[(at + rank) % room] for at in range(room)]
        data.append((b"".join(struct.pack(form, pair[rank % 2]) for pair in turned),))
    return tuple(data)


@rule("protocol 8.1")
async def sums_of_f32(b: Bench) -> None:
    """float32: sum, max and min, in the order of ranks, NaN canonical."""
    await _reduce(b, Dtype.F32)


@rule("protocol 8.1")
async def sums_of_i32(b: Bench) -> None:
    """int32: sum, which wraps, max and min."""
    await _reduce(b, Dtype.I32)


@rule("protocol 8.1")
async def sums_of_f16(b: Bench) -> None:
    """float16: sums are added as float32 and rounded once; max and min."""
    await _reduce(b, Dtype.F16)


@rule("protocol 8.1")
async def sums_of_bf16(b: Bench) -> None:
    """bfloat16: sums are added as float32 and rounded once; max and min."""
    await _reduce(b, Dtype.BF16)


@rule("protocol 6.6")
async def pads_and_checksums_are_zero(b: Bench) -> None:
    """Pad bytes and UDP checksum of a result are zero, whatever they were."""
    ring = await b.ring(dtype=Dtype.F16)
    last: dict[str, Any] = {"packets": 1, "last_bytes": INA_HEADER_BYTES + 2}
    for rank in range(ring.ranks):
        frame = bytearray(ring.packet(rank, 0, 0, **last))
        frame[-6:-4] = b"\xab\xcd"
        frame[40:42] = b"\x12\x34"
        icrc.seal(frame)
        await b.frame(rank, bytes(frame), ring.results(0, 0, **last) if rank == ring.ranks - 1 else ())
