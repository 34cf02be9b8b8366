"""Ports of switches that count what comes in at them: tensor bytes by link, however often these are sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from inaproto.core.switch.message_packets import DATA_OPCODES
from inaproto.ports import FramePort, FramePortCapabilities, PortCounters
from inaproto.units import Frames
from inaproto.wire.ina_header import INA_HEADER_BYTES
from inaproto.wire.roce import Opcode
from inaproto.wire.vector import RoceRun, decode_runs

_OPENING: Final = (Opcode.RC_WRITE_FIRST, Opcode.RC_WRITE_ONLY, Opcode.RC_WRITE_ONLY_IMM)


@dataclass
class Seen:
    """Tensor bytes that came to a switch, from a neighbour: what is sent again is counted once.

    Ports of switches are ``trunk-NAME.N``; hosts are h0 and so on, in the order of their addresses, from
    10.0.0.1.
    """

    nbytes: Counter[tuple[str, str]] = field(default_factory=Counter)
    known: set[tuple[Any, ...]] = field(default_factory=set)

    def forget(self) -> None:
        """Not what is known: what went before may be sent again."""
        self.nbytes.clear()

    def begin_anew(self) -> None:
        """With connections that have not been seen: numbers of older ones may come again."""
        self.nbytes.clear()
        self.known.clear()

    def see(self, switch: str, port: str, frames: Frames) -> None:
        for run in decode_runs(frames):
            if not isinstance(run, RoceRun) or run.opcode not in DATA_OPCODES:
                continue
            trunk = port.removeprefix("trunk-").rpartition(".")[0]
            at = switch, trunk or f"h{run.src_ip[3] - 1}"
            header = INA_HEADER_BYTES if run.opcode in _OPENING else 0
            for psn in run.psn.tolist():
                key = (*at, run.src_ip, run.dst_ip, run.dest_qp, psn)
                if key not in self.known:
                    self.known.add(key)
                    self.nbytes[at] += run.payload_bytes - header


class TappedPort:
    def __init__(self, port: FramePort, switch: str, name: str, seen: Seen) -> None:
        self._port, self._at, self._seen = port, (switch, name), seen

    @property
    def capabilities(self) -> FramePortCapabilities:
        return self._port.capabilities

    @property
    def counters(self) -> PortCounters:
        return self._port.counters

    async def receive(self) -> Sequence[Frames]:
        blocks = await self._port.receive()
        for block in blocks:
            self._seen.see(*self._at, block)
        return blocks

    def send_nowait(self, frames: Frames) -> int:
        return self._port.send_nowait(frames)

    async def run(self) -> None:
        await self._port.run()

    async def aclose(self) -> None:
        await self._port.aclose()
