"""One NAK for one gap: a receiver that asked for a packet is silent until it has come (RC, go-back-N).

Copies that the weather makes of a NAK are told from a second one by the IP id, which every frame of a NIC
has another of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from inaproto.sim.frames.checkers.checker import Checker, each_frame, is_intact
from inaproto.sim.kernel.violated import Violated

if TYPE_CHECKING:
    from inaproto.core.switch.ring_spec import RingSpec
    from inaproto.sim.frames.switch import SimSwitch
    from inaproto.sim.frames.world import World
    from inaproto.units import Frames, PortId

_ACK: Final = 0x11
_NAK_SEQUENCE: Final = 0x60
_FRAME_BYTES: Final = 62


class OneNakPerGap(Checker):
    name = "one NAK per gap"

    def begin(self, world: World) -> None:
        self._naks: dict[tuple[bytes, bytes], bytes] = {}
        """IP id by connection and PSN."""

    def ring_installed(self, switch: SimSwitch, spec: RingSpec) -> None:
        ips = {flow.dst_ip for flow in spec.flows}
        self._naks = {key: ident for key, ident in self._naks.items() if key[0][:4] not in ips}

    def switch_received(self, switch: SimSwitch, port: PortId, blocks: list[Frames]) -> None:
        for block in blocks:
            if block.shape[1] != _FRAME_BYTES:
                continue
            for frame in each_frame(block):
                if frame[42] == _ACK and frame[54] == _NAK_SEQUENCE:
                    self._nak(frame)

    def _nak(self, frame: bytes) -> None:
        connection, psn, ident = frame[26:34] + frame[47:50], frame[51:54], frame[18:20]
        known = self._naks.get((connection, psn))
        if known == ident or not is_intact(frame):
            return
        self._naks[connection, psn] = ident
        if known is not None:
            source = ".".join(map(str, connection[:4]))
            raise Violated(
                self.name,
                f"{source} sent a second NAK for PSN {int.from_bytes(psn, 'big')} to queue pair "
                f"{int.from_bytes(connection[8:], 'big')}",
            )
