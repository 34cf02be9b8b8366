"""The frame port contract on a cable inside the machine, where runs of RoCE packets go as long segments:
frames of noise, and packets that make such runs. What goes long; what others at the far end get.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import trio

from inaproto.errors import ConfigError, Unsupported
from inaproto.ports import FramePort, load_adapter
from inaproto.units import Frames
from inaproto.wire.vector import FlowTemplate
from inaproto_adapters.frames import open_packet_link, open_veth_link
from inaproto_adapters.frames.interfaces import look_at, set_up
from inaproto_adapters.frames.long_segments import is_run, why_single
from inaproto_adapters.frames.offloads import _inverted, _sums
from tests.conftest import end_without
from tests.contract import frame_port_contract
from tests.contract.frame_port_contract import FramePortContract, Pair, as_bytes, collect, numbered
from tests.namespaces import Namespace, join, namespaces, require_namespaces

JUMBO_MTU = 9202
RING_BYTES = 64 << 20
"""The contract sends some thousand frames before it receives one."""
UDP_CHECKSUM = slice(40, 42)
FLOW = FlowTemplate(
    src_mac=bytes.fromhex("020000000001"),
    dst_mac=bytes.fromhex("020000000002"),
    src_ip=bytes([10, 0, 0, 1]),
    dst_ip=bytes([10, 0, 0, 2]),
    udp_source_port=0xC123,
    dest_qp=0x77,
)
OVERHEAD = 58


@pytest.fixture(autouse=True)
def _where_namespaces_are() -> None:
    require_namespaces()


def packets(first: int, n: int, length: int) -> Frames:
    """As ``numbered``, as RoCE packets of one message; noise where they cannot be so short."""
    if length < OVERHEAD or (length - OVERHEAD) % 4:
        return numbered(first, n, length)
    payload = np.random.default_rng(first + length).integers(0, 256, (n, length - OVERHEAD), dtype=np.uint8)
    psns = np.arange(first, first + n)
    asks = np.zeros(n, np.bool_)
    return FLOW.build(opcode=7, psns=psns, ack_request=asks, ip_id=first & 0xFFFF, payload=payload)


async def attached(kind: str, interface: str, **limits: Any) -> FramePort:
    link = (open_veth_link if kind == "veth" else open_packet_link)(interface, **limits)
    link.require()
    await link.wait_usable()
    return await link.attach()


class _Cable(FramePortContract):
    @asynccontextmanager
    async def pair(self, queue_bytes_max: int) -> AsyncIterator[Pair]:
        with namespaces("cable") as (here,), here.entered():
            join(here, "left", here, "right", mtu=JUMBO_MTU)
            limits = {"queue_bytes_max": queue_bytes_max, "ring_bytes": RING_BYTES}
            left = await attached("veth", "left", **limits)
            right = await attached("veth", "right", **limits)
            yield left, right
            await left.aclose()
            await right.aclose()


class TestNoiseOnACable(_Cable):
    pass


class TestMessagesOnACable(_Cable):
    @pytest.fixture(autouse=True)
    def _messages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(frame_port_contract, "numbered", packets)


@pytest.fixture
def here() -> Iterator[Namespace]:
    with namespaces("here") as (made,), made.entered():
        join(made, "left", made, "right")
        yield made


@pytest.mark.parametrize("kind", ["veth", "packet"])
async def test_a_message_arrives_as_one_block_of_what_was_sent(here: Namespace, kind: str) -> None:
    left, right = await attached("veth", "left"), await attached(kind, "right")
    for first in (0, 0xFFFF - 80, 5):  # with identifications that wrap
        frames = packets(first, 168, 1082)
        assert left.send_nowait(frames) == 168
        with trio.fail_after(600):
            (block,) = await right.receive()
        assert as_bytes([block]) == as_bytes([frames])
    assert left.counters.frames_out == right.counters.frames_in == 3 * 168
    await left.aclose()
    await right.aclose()


async def test_messages_of_several_lengths_keep_their_order(here: Namespace) -> None:
    left, right = await attached("veth", "left"), await attached("veth", "right")
    sent = [
        packets(0, 1, 1098),
        packets(1, 63, 1082),
        packets(64, 2, 62),
        packets(66, 3, 1082),
        packets(69, 9, 562),
    ]
    for frames in sent:
        left.send_nowait(frames)
    assert await collect(right, 78) == as_bytes(sent)
    await left.aclose()
    await right.aclose()


async def test_a_packet_port_sends_long_segments_at_a_cable_that_keeps_them(here: Namespace) -> None:
    left, right = await attached("packet", "left"), await attached("packet", "right")
    assert left.capabilities.way == "long segments"
    frames = packets(0, 168, 1082)
    assert left.send_nowait(frames) == 168
    (block,) = await right.receive()
    assert as_bytes([block]) == as_bytes([frames])
    await left.aclose()
    await right.aclose()


@pytest.mark.parametrize("limit", ["gso_max_segs 63", "gso_max_size 3000"])
async def test_a_packet_port_says_why_packets_leave_one_by_one(here: Namespace, limit: str) -> None:
    here.ip("link", "set", "left", *limit.split())
    left, right = await attached("packet", "left"), await attached("packet", "right")
    assert left.capabilities.way.startswith("packets one by one: ")
    assert "left" in left.capabilities.way
    frames = packets(0, 40, 1082)
    left.send_nowait(frames)
    assert await collect(right, 40) == as_bytes([frames])  # without UDP checksums
    await left.aclose()
    await right.aclose()


def test_an_interface_has_a_carrier_when_frames_can_leave_by_it_and_not_before(here: Namespace) -> None:
    """Of a new one the kernel says ``RUNNING`` until it has looked at its link, up to a second later. What is
    sent meanwhile is dropped, and nobody is told."""
    if [int(number) for number in os.uname().release.split(".")[:2]] < [6, 8]:
        end_without("linux", Unsupported("the kernel's link state, now", "Linux 6.8 or later has it"))
    for number in range(10):
        near, far = f"near{number}", f"far{number}"
        here.ip("link", "add", near, "type", "veth", "peer", "name", far)
        for name, expected in ((near, False), (far, True)):
            set_up(name)
            found = look_at(near)
            assert found is not None
            assert found.has_carrier is expected


async def test_a_packet_port_takes_a_bridge_for_what_has_hardware_below_it(here: Namespace) -> None:
    here.ip("link", "add", "crossing", "type", "bridge")
    assert why_single("crossing").startswith("crossing is of the driver bridge, no end of a cable")


async def test_where_the_kernel_cuts_packets_have_a_udp_checksum(here: Namespace) -> None:
    """Of an interface that takes no long segments, or of shaping: all else is as it was sent."""
    here.ip("link", "set", "left", "gso_max_size", "3000")
    left, right = await attached("veth", "left"), await attached("packet", "right")
    frames = packets(0xFFFF - 20, 40, 1082)
    left.send_nowait(frames)
    got = np.frombuffer(b"".join(await collect(right, 40)), np.uint8).reshape(40, 1082).copy()
    checksums = got[:, UDP_CHECKSUM].copy()
    got[:, UDP_CHECKSUM] = 0
    assert (got == frames).all()
    rest = np.frombuffer((17).to_bytes(2, "big") + (1048).to_bytes(2, "big"), np.uint8)[None]
    whole = _inverted(_sums(frames[:, 34:]) + _sums(frames[:, 26:34]) + _sums(rest))
    assert (checksums == whole.astype("<u2")[:, None].view(np.uint8)).all()
    await left.aclose()
    await right.aclose()


@pytest.mark.parametrize(
    ("row", "column", "value"),
    [
        (0, 12, 9),
        (0, 14, 0x46),
        (0, 20, 0x20),
        (0, 21, 1),
        (0, 23, 6),
        (0, 37, 0),
        (0, 41, 1),
        (0, 17, 0),
        (0, 39, 0),
        (1, 0, 4),
        (1, 15, 1),
        (2, 22, 63),
        (2, 19, 9),
        (2, 33, 9),
        (1, 35, 9),
    ],
)
def test_what_no_long_segment_can_be(row: int, column: int, value: int) -> None:
    frames = packets(0, 3, 1082)
    assert is_run(frames)
    frames[row, column] = value
    assert not is_run(frames)


def test_what_is_no_interface_is_refused(here: Namespace) -> None:
    link = load_adapter("veth").open("nowhere")
    assert link.name == "veth:nowhere"
    with pytest.raises(ConfigError, match="those that exist: left, lo, right"):
        link.require()
    with pytest.raises(ConfigError, match="no name of a network interface"):
        open_veth_link("a/b")
