"""The compiled part of ports against the Python code, on a cable and on sockets that fill: the same segments,
counters and drops, whatever the mix of blocks.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import pytest

from inaproto.core import kernels
from inaproto.ports import PortCounters
from inaproto.units import Frames
from inaproto.wire.vector import FlowTemplate
from inaproto_adapters.frames import compiled_ports, open_packet_link, open_veth_link
from inaproto_adapters.frames.compiled_ports import Sender
from inaproto_adapters.frames.interfaces import look_at
from inaproto_adapters.frames.link_output import LinkOutput
from inaproto_adapters.frames.long_segments import PACKETS_MAX, LongOutput
from inaproto_adapters.frames.offloads import VNET_BYTES, VnetHeader
from inaproto_adapters.frames.packet import PacketPort
from inaproto_adapters.frames.roce_segments import HEADERS_BYTES
from tests.namespaces import Namespace, join, namespaces, require_namespaces

MTU: Final = 4000
FLOW: Final = FlowTemplate(
    src_mac=bytes.fromhex("020000000001"),
    dst_mac=bytes.fromhex("020000000002"),
    src_ip=bytes([10, 0, 0, 1]),
    dst_ip=bytes([10, 0, 0, 2]),
    udp_source_port=0xC123,
    dest_qp=0x77,
)
WAIT_S: Final = 60
_SOL_PACKET: Final = 263
_VNET_HDR: Final = 15
Rng = np.random.Generator
Kinds = ("compiled", "numpy")


@pytest.fixture
def cable(use_kernels: Callable[[str], None]) -> Iterator[Namespace]:
    use_kernels("compiled")
    require_namespaces()
    with namespaces("here") as (made,), made.entered():
        join(made, "left", made, "right", mtu=MTU)
        yield made


def run_of(rng: Rng, n: int, payload: int) -> Frames:
    data = rng.integers(0, 256, (n, payload), dtype=np.uint8)
    first = int(rng.integers(0, 1 << 16))
    return FLOW.build(
        opcode=7, psns=np.arange(n), ack_request=np.zeros(n, np.bool_), ip_id=first, payload=data
    )


def harmed(rng: Rng, frames: Frames) -> Frames:
    """As it is, or with a bit of a header changed in one frame or in all."""
    kind = rng.integers(0, 4)
    if kind == 0:
        frames[rng.integers(len(frames)), rng.integers(12, 48)] ^= np.uint8(1 << rng.integers(8))
    elif kind == 1:
        frames[:, rng.integers(14, 48)] ^= np.uint8(1 << rng.integers(8))
    return frames


def strided(rng: Rng, frames: Frames) -> Frames:
    """The same frames, perhaps as views of longer rows, or to be read only."""
    n, length = frames.shape
    kind = rng.integers(0, 4)
    if kind == 0:
        wide = np.empty((n, length + 40), np.uint8)
        wide[:, 16 : 16 + length] = frames
        return wide[:, 16 : 16 + length]
    if kind == 1:
        frames.flags.writeable = False
    return frames


def mix(rng: Rng) -> list[Frames]:
    """What is sent together: runs of packets, almost runs, noise, frames that just go through the cable, with
    tags or without, and frames that are too long for it."""
    blocks = []
    for _ in range(rng.integers(1, 7)):
        kind = rng.integers(0, 6)
        if kind < 4:
            n = int(rng.choice([1, 2, 3, 62, 63, 64, 65, 124, 125, 170]))
            frames = harmed(rng, run_of(rng, n, int(rng.choice([4, 16, 64, 1024]))))
        elif kind == 4:
            n, length = int(rng.integers(0, 70)), int(rng.integers(14, 200))
            frames = rng.integers(0, 256, (n, length), dtype=np.uint8)
        else:
            frames = run_of(rng, int(rng.integers(1, 4)), int(rng.choice([MTU - 44, MTU - 40, 4096])))
            if rng.integers(2):
                tag = np.tile(np.frombuffer(b"\x81\0\0\5", np.uint8), (len(frames), 1))
                frames = np.concatenate([frames[:, :12], tag, frames[:, 12:]], axis=1)
        blocks.append(strided(rng, frames))
    return blocks


def told(counters: PortCounters) -> tuple[int, int, dict[str, int]]:
    return counters.frames_out, counters.bytes_out, dict(counters.drops)


def packets_of(segment: bytes) -> int:
    header = VnetHeader.decode(segment[:VNET_BYTES])
    return (len(segment) - VNET_BYTES - HEADERS_BYTES) // header.gso_bytes if header.gso_type else 1


def heard(listener: socket.socket, frames: int) -> list[bytes]:
    """The next segments, until they are so many packets."""
    got: list[bytes] = []
    while frames:
        assert select.select([listener], [], [], WAIT_S)[0], f"{frames} frames did not come"
        got.append(listener.recv(1 << 17))
        frames -= packets_of(got[-1])
    return got


def opened(kind: str, which: str) -> PacketPort:
    kernels.choose(which)
    found = look_at("left")
    assert found is not None
    return (open_veth_link if kind == "veth" else open_packet_link)("left").open_port(found)


@pytest.mark.parametrize("kind", ["veth", "packet"])
async def test_both_put_the_same_segments_on_a_cable(cable: Namespace, kind: str) -> None:
    listener = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    listener.setsockopt(_SOL_PACKET, _VNET_HDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, 33, 256 << 20)
    listener.bind(("right", 3))
    ports = {which: opened(kind, which) for which in Kinds}
    rng = np.random.default_rng(5)
    for _ in range(60):
        blocks = mix(rng)
        seen = {}
        for which, port in ports.items():
            before = port.counters.frames_out
            lost = port.send_blocks_nowait(blocks)
            seen[which] = heard(listener, sum(map(len, blocks)) - lost)
            assert port.counters.frames_out - before == sum(map(len, blocks)) - lost
        assert seen["compiled"] == seen["numpy"]
        assert told(ports["compiled"].counters) == told(ports["numpy"].counters)
    assert ports["numpy"].counters.drops
    for port in ports.values():
        await port.aclose()
    listener.close()


async def test_both_count_frames_for_a_cable_that_is_down(cable: Namespace) -> None:
    ports = {which: opened("veth", which) for which in Kinds}
    cable.ip("link", "set", "left", "down")
    for port in ports.values():
        assert port.send_blocks_nowait([run_of(np.random.default_rng(1), 3, 64)] * 2) == 6
        assert told(port.counters) == (0, 0, {"link down": 6})
        await port.aclose()


def outputs(bytes_max: int) -> Iterator[tuple[LinkOutput, PortCounters, socket.socket]]:
    """Both kinds of output of a ``veth`` port to a socket that holds some messages, and its other end."""
    calls = compiled_ports.active()
    assert calls is not None
    for which in Kinds:
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        near.setblocking(False)
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 100_000)
        counters = PortCounters()
        if which == "compiled":
            sender = Sender(calls, near.fileno(), has_vnet=True, long_bytes_max=MTU, packets_max=PACKETS_MAX)
            yield (
                LinkOutput("p", near.send, counters, queue_bytes_max=bytes_max, sender=sender),
                counters,
                far,
            )
        else:
            twin = LongOutput("p", near, near, counters, queue_bytes_max=bytes_max, frame_bytes_max=MTU)
            twin._write = lambda frame, near=near: near.send(bytes(VNET_BYTES) + bytes(frame))  # type: ignore[misc]
            yield twin, counters, far
        near.close()
        far.close()


def of_a_full_socket(
    output: LinkOutput, counters: PortCounters, far: socket.socket, seed: int
) -> list[object]:
    """All that can be seen of an output whose far end reads now and then."""
    rng = np.random.default_rng(seed)
    seen: list[object] = []
    for _ in range(12):
        seen += [output.push(mix(rng)), output.bytes, told(counters)]
        for _ in range(rng.integers(0, 9)):
            if select.select([far], [], [], 0)[0]:
                seen.append(far.recv(1 << 17))
        output.flush()
        seen += [output.bytes, told(counters)]
    return seen


def test_both_leave_the_same_for_later_when_the_socket_is_full(use_kernels: Callable[[str], None]) -> None:
    use_kernels("compiled")
    drops = 0
    for seed in range(20):
        compiled, twin = (of_a_full_socket(*made, seed) for made in outputs(bytes_max=30_000))
        assert compiled == twin
        drops += sum("output queue full" in str(each) for each in twin)
    assert drops
