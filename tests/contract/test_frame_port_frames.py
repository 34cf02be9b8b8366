"""The frame port contract over UNIX stream sockets: joined by a socket pair, and by a listener."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from inaproto_adapters.frames import FramesConfig, connect_frame_port, open_frame_listener, open_frame_pair
from tests.contract.frame_port_contract import LosslessFramePortContract, Pair


class TestSocketPair(LosslessFramePortContract):
    @asynccontextmanager
    async def pair(self, queue_bytes_max: int) -> AsyncIterator[Pair]:
        left, right = open_frame_pair(FramesConfig(queue_bytes_max=queue_bytes_max))
        yield left, right
        await left.aclose()
        await right.aclose()


class TestWrittenAtOnce(LosslessFramePortContract):
    """Without waiting for ``run``, as a port serves that is tuned for single frames."""

    @asynccontextmanager
    async def pair(self, queue_bytes_max: int) -> AsyncIterator[Pair]:
        left, right = open_frame_pair(FramesConfig(queue_bytes_max=queue_bytes_max, write_at_once_bytes=0))
        yield left, right
        await left.aclose()
        await right.aclose()


class TestListener(LosslessFramePortContract):
    @asynccontextmanager
    async def pair(self, queue_bytes_max: int) -> AsyncIterator[Pair]:
        config = FramesConfig(queue_bytes_max=queue_bytes_max)
        with tempfile.TemporaryDirectory(prefix="ina-", dir="/tmp") as directory:
            path = Path(directory) / "ports.sock"
            listener = await open_frame_listener(path, config)
            left = await connect_frame_port(path, config)
            right = await listener.accept()
            yield left, right
            await left.aclose()
            await right.aclose()
            await listener.aclose()
