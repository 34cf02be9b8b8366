"""The compiled part of ports against the Python code: two ports at the end of one cable, which take the same
frames, counters and drops, whatever another sender says of its segments.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pytest
import trio

from inaproto.core import kernels
from inaproto.ports import PortCounters
from inaproto.units import Frames
from inaproto_adapters.frames import open_packet_link, open_veth_link
from inaproto_adapters.frames.interfaces import look_at
from inaproto_adapters.frames.offloads import GSO_UDP, NEEDS_CHECKSUM, VNET_BYTES, VnetHeader, long_header
from inaproto_adapters.frames.packet import PacketPort
from inaproto_adapters.frames.roce_segments import HEADERS_BYTES, PACKETS_MAX, is_long_roce
from tests.contract.frame_port_contract import as_bytes
from tests.namespaces import Namespace, join, namespaces, require_namespaces
from tests.property.test_compiled_ports_send import harmed, mix, run_of

MTU: Final = 4000
WAIT_S: Final = 60
_SOL_PACKET: Final = 263
_VNET_HDR: Final = 15
_VNET: Final = struct.Struct("=BBHHHH")
MARKER: Final = b"\x02" * 12 + b"\x88\xb5" + bytes(46)
Rng = np.random.Generator


@pytest.fixture
def cable(use_kernels: Callable[[str], None]) -> Iterator[Namespace]:
    use_kernels("compiled")
    require_namespaces()
    with namespaces("here") as (made,), made.entered():
        join(made, "left", made, "right", mtu=MTU)
        yield made


def opened(interface: str, which: str) -> PacketPort:
    kernels.choose(which)
    found = look_at(interface)
    assert found is not None
    return (open_veth_link if interface == "left" else open_packet_link)(interface).open_port(found)


def foreign(rng: Rng) -> bytes:
    """What a sender that is not of this project hands to its interface: ``virtio_net_hdr`` and frame."""
    n, payload = int(rng.choice([1, 2, 5, 40, 600])), int(rng.choice([6, 100, 1040, 3000]))
    n = max(1, min(n, 60_000 // (payload + 20)))
    rows = run_of(rng, n, payload)
    kind = rng.integers(0, 6)
    if kind == 0:  # its checksum is for the card
        frame: bytes = harmed(rng, rows)[0].tobytes()
        return _VNET.pack(1, 0, 0, 0, int(rng.integers(0, 60)), int(rng.integers(0, 20))) + frame
    if kind == 1:  # a tag of a VLAN
        frame = rows[0].tobytes()
        return bytes(10) + frame[:12] + struct.pack(">HH", 0x8100, rng.integers(0, 4096)) + frame[12:]
    step = rows.shape[1] - HEADERS_BYTES
    head = bytearray(long_header(rows[0, :HEADERS_BYTES].tobytes(), step, n * step))
    body = rows[:, HEADERS_BYTES:].tobytes()
    if kind == 2:  # a segment that ends early
        body = body[: int(rng.integers(1, len(body) + 1))]
    if kind == 3:  # headers that are not those of RoCE packets
        head[10 + int(rng.integers(12, 42))] ^= 1 << int(rng.integers(8))
    if kind == 4:
        head[:10] = _VNET.pack(
            1, int(rng.choice([1, 4, 5, 0x81, 0x85])), 54, step, 34, int(rng.choice([6, 16]))
        )
    if kind == 5 and rng.integers(2):
        head[10 + 12 : 10 + 12] = struct.pack(">HH", 0x8100, 5)
        head[:10] = _VNET.pack(1, 5, 46, step, 38, 6)
    return bytes(head) + body


def put(sock: socket.socket, segment: bytes) -> None:
    with contextlib.suppress(OSError):  # the kernel looks at what a segment says of itself, too
        sock.send(segment)


async def until_marker(port: PacketPort) -> list[bytes]:
    got: list[bytes] = []
    with trio.fail_after(WAIT_S):
        while not got or got[-1] != MARKER:
            got += as_bytes(list(await port.receive()))
    return got


def told(counters: PortCounters) -> tuple[int, int, dict[str, int]]:
    return counters.frames_in, counters.bytes_in, dict(counters.drops)


def counted(run: Callable[..., None], calls: list[int]) -> Callable[..., None]:
    def counting(slots: Frames, *rest: Any) -> None:
        calls.append(len(slots))
        run(slots, *rest)

    return counting


async def test_both_take_the_same_frames(cable: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, twin = opened("right", "compiled"), opened("right", "numpy")
    assert (compiled._ring._taker is None, twin._ring._taker is None) == (False, True)
    unusual: list[int] = []
    monkeypatch.setattr(compiled._ring, "_run", counted(compiled._ring._run, unusual))
    left = opened("left", "compiled")
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sock:
        sock.setsockopt(_SOL_PACKET, _VNET_HDR, 1)
        sock.bind(("left", 0))
        rng = np.random.default_rng(11)
        for _ in range(150):
            for _ in range(rng.integers(1, 6)):
                if rng.integers(2):
                    left.send_blocks_nowait(mix(rng))
                else:
                    put(sock, foreign(rng))
            sock.send(bytes(10) + MARKER)
            assert await until_marker(compiled) == await until_marker(twin)
            assert told(compiled.counters) == told(twin.counters)
    assert len(unusual) > 20
    for port in (compiled, twin, left):
        await port.aclose()


async def test_both_take_what_the_ring_holds_before_they_hear_that_the_cable_is_down(
    cable: Namespace,
) -> None:
    compiled, twin = opened("right", "compiled"), opened("right", "numpy")
    left = opened("left", "compiled")
    sent = run_of(np.random.default_rng(2), 150, 1024)
    assert left.send_nowait(sent) == 150
    with trio.fail_after(WAIT_S):
        while min(compiled._ring._ready(), twin._ring._ready()) < 3:
            await trio.lowlevel.checkpoint()
    cable.ip("link", "set", "right", "down")
    for port in (compiled, twin):
        assert as_bytes(port._ring.take(port.counters)) == as_bytes([sent])
        assert port._ring.heard_error
        await port.aclose()
    await left.aclose()


def long_segment(step: int, n: int) -> bytes:
    rows: Frames = run_of(np.random.default_rng(3), 1, 64)
    return long_header(rows[0, :HEADERS_BYTES].tobytes(), step, n * step) + bytes(n * step)


@pytest.mark.parametrize(
    ("step", "n", "frames", "drops"),
    [
        (100, 128, 128, {}),
        (10_000, 3, 0, {"frame too long": 3}),
    ],
)
async def test_segments_of_many_packets_or_of_long_ones_harm_no_port(
    cable: Namespace, step: int, n: int, frames: int, drops: dict[str, int]
) -> None:
    compiled, twin = opened("right", "compiled"), opened("right", "numpy")
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sock:
        sock.setsockopt(_SOL_PACKET, _VNET_HDR, 1)
        sock.bind(("left", 0))
        sock.send(long_segment(step, n))
        sock.send(bytes(10) + MARKER)
    assert await until_marker(compiled) == await until_marker(twin)
    for port in (compiled, twin):
        assert (port.counters.frames_in, port.counters.drops) == (frames + 1, drops)
        await port.aclose()


def test_a_segment_of_more_packets_than_a_system_call_has_pieces_is_cut_otherwise() -> None:
    first = long_segment(64, 1)[VNET_BYTES:][:64]
    header = VnetHeader(NEEDS_CHECKSUM, GSO_UDP, HEADERS_BYTES, 10, 34, 6)
    assert is_long_roce(first, header, HEADERS_BYTES + 10 * PACKETS_MAX)
    assert not is_long_roce(first, header, HEADERS_BYTES + 10 * (PACKETS_MAX + 1))
