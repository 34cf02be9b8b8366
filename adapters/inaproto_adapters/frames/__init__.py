"""Ethernet frames over UNIX stream sockets: 4-byte big-endian length and frame, as QEMU speaks it.

``load_adapter("frames").open(...)`` gives a :class:`FramesAdapter`; who knows that it is this adapter
may use the functions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from inaproto.ports import Adapter
from inaproto.units import FRAME_BYTES_MAX, S
from inaproto_adapters.frames.listener import FrameListener, connect_frame_port, open_frame_listener
from inaproto_adapters.frames.port import FramesConfig, StreamFramePort, open_frame_pair

__all__ = [
    "ADAPTER",
    "FrameListener",
    "FramesAdapter",
    "FramesConfig",
    "StreamFramePort",
    "connect_frame_port",
    "open_frame_listener",
    "open_frame_pair",
]


@dataclass(frozen=True, slots=True)
class FramesAdapter:
    """Frame ports of one configuration."""

    config: FramesConfig = field(default_factory=FramesConfig)

    async def listen(self, path: str | Path) -> FrameListener:
        return await open_frame_listener(path, self.config)

    async def connect(self, path: str | Path, *, wait_ns: int = 10 * S, name: str = "") -> StreamFramePort:
        return await connect_frame_port(path, self.config, wait_ns=wait_ns, name=name)

    def pair(self) -> tuple[StreamFramePort, StreamFramePort]:
        return open_frame_pair(self.config)


def open_frames(*, frame_bytes_max: int = FRAME_BYTES_MAX, queue_bytes_max: int = 64 << 20) -> FramesAdapter:
    """The adapter with these bounds. Raises ``ConfigError``."""
    return FramesAdapter(FramesConfig(frame_bytes_max=frame_bytes_max, queue_bytes_max=queue_bytes_max))


ADAPTER = Adapter(name="frames", kinds=frozenset({"frame port"}), open=open_frames)
