"""Ethernet frames over UNIX stream sockets (4-byte big-endian length and frame, as QEMU speaks it), in
memory that two processes share, on interfaces of this machine (AF_PACKET, AF_XDP, TAP), or in UDP
datagrams on loopback.

``load_adapter("frames").open(...)`` gives a :class:`FramesAdapter`, ``"shm"`` a :class:`ShmAdapter`;
``load_adapter("packet")``, ``"veth"``, ``"xdp"``, ``"tap"`` and ``"udp"`` open an
``inaproto.ports.Link``; who knows that it is this adapter may use the functions."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from inaproto.ports import Adapter
from inaproto.units import FRAME_BYTES_MAX, S
from inaproto_adapters.frames.lag import LagLink, LagPort, joined
from inaproto_adapters.frames.listener import FrameListener, connect_frame_port, open_frame_listener
from inaproto_adapters.frames.packet import PacketConfig, PacketLink, PacketPort, open_packet_link
from inaproto_adapters.frames.port import FramesConfig, StreamFramePort, open_frame_pair
from inaproto_adapters.frames.shm import ShmAdapter, ShmConfig, ShmPort, open_shm
from inaproto_adapters.frames.tap import TapLink, TapPort, open_tap_link
from inaproto_adapters.frames.udp import UdpLink, UdpPort, open_udp_link
from inaproto_adapters.frames.veth import VethLink, VethPort, open_veth_link
from inaproto_adapters.frames.xdp import XdpLink, XdpPort, open_xdp_link

__all__ = [
    "ADAPTER",
    "PACKET",
    "SHM",
    "TAP",
    "UDP",
    "VETH",
    "XDP",
    "FrameListener",
    "FramesAdapter",
    "FramesConfig",
    "LagLink",
    "LagPort",
    "PacketConfig",
    "PacketLink",
    "PacketPort",
    "ShmAdapter",
    "ShmConfig",
    "ShmPort",
    "StreamFramePort",
    "TapLink",
    "TapPort",
    "UdpLink",
    "UdpPort",
    "VethLink",
    "VethPort",
    "XdpLink",
    "XdpPort",
    "connect_frame_port",
    "joined",
    "open_frame_listener",
    "open_frame_pair",
    "open_packet_link",
    "open_shm",
    "open_tap_link",
    "open_udp_link",
    "open_veth_link",
    "open_xdp_link",
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
SHM = Adapter(name="shm", kinds=frozenset({"frame port"}), open=open_shm)
PACKET = Adapter(name="packet", kinds=frozenset({"link"}), open=joined(open_packet_link))
VETH = Adapter(name="veth", kinds=frozenset({"link"}), open=joined(open_veth_link))
XDP = Adapter(name="xdp", kinds=frozenset({"link"}), open=joined(open_xdp_link))
TAP = Adapter(name="tap", kinds=frozenset({"link"}), open=open_tap_link)
UDP = Adapter(name="udp", kinds=frozenset({"nic link"}), open=open_udp_link)
"""A switch cannot be there: frames go from NIC to NIC."""
