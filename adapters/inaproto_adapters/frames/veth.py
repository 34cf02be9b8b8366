"""A frame port on an end of a cable inside this machine (veth, to a container or a namespace): AF_PACKET,
where runs of RoCE packets always leave as long segments (``long_segments``).

A ``packet`` port does the same where it finds such an end, and sends packets one by one elsewhere; this one
is refused where hardware is behind the interface.
"""

from __future__ import annotations

from dataclasses import dataclass

from inaproto.errors import Unsupported
from inaproto.ports import Steering
from inaproto_adapters.frames.interfaces import Interface, has_device, require_name
from inaproto_adapters.frames.packet import PacketConfig, PacketLink, PacketPort


class VethPort(PacketPort):
    """:class:`inaproto.ports.FramePort` on the interface that ``interface`` describes; made by a link."""

    adapter = "veth"

    def _why_single(self, interface: Interface) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class VethLink(PacketLink):
    """An interface as a place to attach a port; see ``inaproto.ports.Link``."""

    @property
    def name(self) -> str:
        return f"veth:{self.interface}"

    def require(self) -> None:
        """See ``Link.require``."""
        PacketLink.require(self)
        if has_device(self.interface):
            raise Unsupported(
                self.name,
                f"{self.interface} has hardware behind it, which would send packets with UDP checksums; "
                f"use packet:{self.interface} or xdp:{self.interface}",
            )

    def open_port(self, found: Interface) -> PacketPort:
        """Raises ``OSError``."""
        return VethPort(found, self.config)


def open_veth_link(
    interface: str,
    *,
    queue_bytes_max: int = 16 << 20,
    ring_bytes: int = 16 << 20,
    steering: Steering | None = None,
) -> VethLink:
    """The link of that name. Raises ``ConfigError`` for a name or bounds that cannot be."""
    require_name(interface)
    return VethLink(interface, PacketConfig(queue_bytes_max, ring_bytes, steering))
