"""The frame port contract on network interfaces: AF_PACKET at both ends of a cable, and a TAP with AF_PACKET
at the kernel's side of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from inaproto_adapters.frames import PacketPort, joined, open_packet_link, open_tap_link
from tests.contract.frame_port_contract import FramePortContract, Pair
from tests.namespaces import join, namespaces, require_namespaces

JUMBO_MTU = 9202
RING_BYTES = 64 << 20
"""The contract sends some thousand frames before it receives one."""


@pytest.fixture(autouse=True)
def _where_namespaces_are() -> None:
    require_namespaces()


async def attached(interface: str, **limits: Any) -> PacketPort:
    """As soon as the kernel says that the interface has its carrier."""
    link = open_packet_link(interface, **limits)
    await link.wait_usable()
    return await link.attach()


class TestCable(FramePortContract):
    @asynccontextmanager
    async def pair(self, queue_bytes_max: int) -> AsyncIterator[Pair]:
        with namespaces("cable") as (here,), here.entered():
            join(here, "left", here, "right", mtu=JUMBO_MTU)
            limits = {"queue_bytes_max": queue_bytes_max, "ring_bytes": RING_BYTES}
            left = await attached("left", **limits)
            right = await attached("right", **limits)
            yield left, right
            await left.aclose()
            await right.aclose()


class TestJoined(FramePortContract):
    """With one link that is up: what leaves by several keeps its order flow by flow alone."""

    @asynccontextmanager
    async def pair(self, queue_bytes_max: int) -> AsyncIterator[Pair]:
        with namespaces("cables") as (here,), here.entered():
            for number in (1, 2):
                join(here, f"left{number}", here, f"right{number}", mtu=JUMBO_MTU)
            here.ip("link", "set", "left2", "down")
            limits = {"queue_bytes_max": queue_bytes_max, "ring_bytes": RING_BYTES}
            places = [joined(open_packet_link)(f"{end}1+{end}2", **limits) for end in ("left", "right")]
            for place in places:
                await place.wait_usable()
            left, right = [await place.attach() for place in places]
            yield left, right
            await left.aclose()
            await right.aclose()


class _AtTap(FramePortContract):
    tap_is_left: bool

    @asynccontextmanager
    async def pair(self, queue_bytes_max: int) -> AsyncIterator[Pair]:
        with namespaces("tap") as (here,), here.entered():
            tap = await open_tap_link("tap", queue_bytes_max=queue_bytes_max).attach()
            here.ip("link", "set", "tap", "mtu", str(JUMBO_MTU), "txqueuelen", "10000")
            packet = await attached("tap", ring_bytes=RING_BYTES)
            yield (tap, packet) if self.tap_is_left else (packet, tap)
            await tap.aclose()
            await packet.aclose()


class TestFromTap(_AtTap):
    tap_is_left = True


class TestToTap(_AtTap):
    tap_is_left = False
