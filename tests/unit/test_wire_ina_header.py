"""The INA header: golden bytes, round trip, every refusal, and what the signature tells apart."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inaproto.errors import DecodeError, LocalMisuse
from inaproto.wire.ina_header import (
    FLAG_LAST,
    INA_HEADER_BYTES,
    MAGIC,
    Dtype,
    InaHeader,
    Op,
    signature,
)
from tests.unit.wire_strategies import ina_headers

HEADER = InaHeader(
    dtype=Dtype.BF16,
    op=Op.MAX,
    flags=FLAG_LAST,
    ring_id=0x01020304,
    epoch=0x05060708,
    op_index=0x090A0B0C,
    msg_id=0x0D0E0F10,
    rank=0x1112,
    ring_size=0x1314,
    msg_len=0x1516,
    signature=0x1718,
    key=0x191A1B1C1D1E1F20,
)
GOLDEN = bytes.fromhex("494e4150010301010102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20")


def test_golden_bytes() -> None:
    assert len(GOLDEN) == INA_HEADER_BYTES
    assert MAGIC.to_bytes(4, "big") == b"INAP"
    assert HEADER.encode() == GOLDEN
    assert InaHeader.decode(GOLDEN) == HEADER
    assert InaHeader.decode(memoryview(GOLDEN + b"gradients")) == HEADER


def test_a_header_for_a_log_keeps_the_key_secret() -> None:
    assert str(HEADER) == (
        "INA ring 16909060 epoch 84281096 op 151653132 max bf16 msg 219025168 x5398 last "
        "rank 4370/4884 sig 0x1718"
    )
    assert str(HEADER.key) not in str(HEADER) + repr(HEADER)


@given(ina_headers())
def test_round_trip(header: InaHeader) -> None:
    encoded = header.encode()
    decoded = InaHeader.decode(encoded)
    assert decoded == header
    assert isinstance(decoded.dtype, Dtype)
    assert isinstance(decoded.op, Op)
    assert decoded.encode() == encoded


@pytest.mark.parametrize(
    ("offset", "value", "reason"),
    [
        (0, b"\x00", "magic is 0x004e4150, not 0x494e4150"),
        (4, b"\x02", "version 2, this side speaks 1"),
        (5, b"\x06", "unknown dtype 6"),
        (6, b"\x03", "unknown op 3"),
        (7, b"\x07", "unknown flags 0x07"),
        (24, b"\x13\x14", "rank 4884 in a ring of 4884"),
        (26, b"\x00\x00", "rank 4370 in a ring of 0"),
        (28, b"\x00\x00", "a message of no packets"),
    ],
)
def test_refusals_name_what_and_where(offset: int, value: bytes, reason: str) -> None:
    broken = bytearray(GOLDEN)
    broken[offset : offset + len(value)] = value
    with pytest.raises(DecodeError) as caught:
        InaHeader.decode(broken)
    assert caught.value.layer == "INA header"
    assert caught.value.reason == reason
    assert caught.value.offset == (offset if offset != 26 else 24)


def test_truncation() -> None:
    for length in range(INA_HEADER_BYTES):
        with pytest.raises(DecodeError, match=f"{length} bytes, needs 40"):
            InaHeader.decode(GOLDEN[:length])


@given(st.binary(min_size=40, max_size=40))
def test_garbage_with_the_magic(data: bytes) -> None:
    marked = GOLDEN[:5] + data[5:]
    try:
        header = InaHeader.decode(marked)
    except DecodeError:
        return
    assert header.encode() == marked


@pytest.mark.parametrize(
    "wrong",
    [
        replace(HEADER, dtype=9),  # type: ignore[arg-type]
        replace(HEADER, op=3),  # type: ignore[arg-type]
        replace(HEADER, flags=4),
        replace(HEADER, ring_id=1 << 32),
        replace(HEADER, msg_id=-1),
        replace(HEADER, rank=0x1314),
        replace(HEADER, msg_len=0),
        replace(HEADER, key=1 << 64),
    ],
)
def test_what_cannot_be_encoded_is_the_callers_fault(wrong: InaHeader) -> None:
    with pytest.raises(LocalMisuse, match="INA header"):
        wrong.encode()


@pytest.mark.parametrize(
    ("dtype", "itemsize"),
    [(Dtype.F32, 4), (Dtype.I32, 4), (Dtype.F16, 2), (Dtype.BF16, 2), (Dtype.F64, 8), (Dtype.I64, 8)],
)
def test_itemsize(dtype: Dtype, itemsize: int) -> None:
    assert dtype.itemsize == itemsize


def test_signatures_differ_in_every_operation_of_one_shape() -> None:
    seen = {signature(dtype, op, (64, 10)) for dtype in Dtype for op in Op}
    assert len(seen) == len(Dtype) * len(Op)


@given(st.lists(st.integers(0, 0xFFFF), min_size=1, max_size=5), st.data())
def test_signatures_differ_in_one_dimension(shape: list[int], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(shape) - 1))
    other = list(shape)
    other[at] = data.draw(st.integers(0, 0xFFFF).filter(lambda size: size != shape[at]))
    assert signature(Dtype.F32, Op.SUM, shape) != signature(Dtype.F32, Op.SUM, other)


def test_signatures_of_one_size_in_several_shapes() -> None:
    shapes: list[tuple[int, ...]] = [(), (1,), (1, 1), (640,), (64, 10), (10, 64), (2, 32, 10), (640, 1)]
    assert len({signature(Dtype.F32, Op.SUM, shape) for shape in shapes}) == len(shapes)


def test_signatures_differ_between_what_processes_call() -> None:
    """docs/protocol.md 11: another collective is an all-reduce of a vector that may be the same."""
    ranks = [f"broadcast of float32 (64, 10) from rank {root}" for root in range(12)]
    kinds = ["reduce_scatter", "all_gather", "reduce to rank 0:", "avg", "split"]
    calls = ["", "barrier", *ranks, *(f"{kind} of float32 (64, 10)" for kind in kinds)]
    assert len({signature(Dtype.I32, Op.SUM, (640,), call) for call in calls}) == len(calls)
    assert signature(Dtype.I32, Op.SUM, (640,)) == signature(Dtype.I32, Op.SUM, (640,), "")


def test_signature_is_stable() -> None:
    """Part of the wire format: ranks of two versions must agree."""
    assert signature(Dtype.F32, Op.SUM, (64, 10)) == 0xE1ED


def test_signature_misuse() -> None:
    with pytest.raises(LocalMisuse, match="65 dimensions, at most 64"):
        signature(Dtype.F32, Op.SUM, (1,) * 65)
    with pytest.raises(LocalMisuse, match="shape"):
        signature(Dtype.F32, Op.SUM, (-1,))
