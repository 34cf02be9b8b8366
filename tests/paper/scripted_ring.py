"""The real accelerator under a script: whole control over which packet arrives when.

Packets of rank r come in on port r, so its flow leaves on port r + 1 (mod W).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from inaproto.core.switch.accelerator import (
    Accelerator,
    Action,
    EmitFrames,
    FramesArrived,
    InstallRing,
    PortUp,
)
from inaproto.core.switch.ring_spec import RingSpec
from inaproto.units import Frames, Instant, PortId
from inaproto.wire.ina_header import INA_HEADER_BYTES, Dtype, Op
from inaproto.wire.vector import RoceRun, decode_runs
from inaproto_hil.bench.traffic import Sender, host_mac, ring_spec
from tests.accelerators import make_accelerator

NOW = Instant(0)


@dataclass(frozen=True, slots=True)
class Packet:
    """One packet that left the accelerator."""

    psn: int
    payload: bytes
    frame: bytes


def elements(packets: int, mtu: int) -> int:
    """float32 elements in a message of ``packets`` full packets."""
    return (packets * mtu - INA_HEADER_BYTES) // 4


@dataclass
class ScriptedRing:
    """W ranks of one ring. ``data[serial][rank]`` is what a rank sends in a message (float32)."""

    workers: int = 2
    packets: int = 4
    window: int = 1
    mtu: int = 64
    psn0: tuple[int, ...] = (0, 1000, 5000, 9000)
    spec: RingSpec = field(init=False)
    accelerator: Accelerator = field(init=False)
    data: dict[int, list[NDArray[np.float32]]] = field(default_factory=dict)
    actions: list[Action] = field(default_factory=list)
    """All that was not a frame: blames and faults."""
    _frames: dict[tuple[int, int], list[Frames]] = field(default_factory=dict)
    _senders: list[Sender] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.spec = ring_spec(self.workers, window=self.window, packets=self.packets, mtu=self.mtu)
        self.accelerator = make_accelerator()
        for rank in range(self.workers):
            self.accelerator.step(PortUp(PortId(rank)), NOW)
        assert self.accelerator.step(InstallRing(self.spec), NOW) == []
        for rank in range(self.workers):
            hello = np.zeros((1, 60), np.uint8)
            hello[0, :6] = 0xFF
            hello[0, 6:12] = np.frombuffer(host_mac(rank), np.uint8)
            self.accelerator.step(FramesArrived(PortId(rank), [hello]), NOW)
        self._senders = [Sender(self.spec, rank, self.psn0[rank]) for rank in range(self.workers)]

    def prepare(self, serial: int, *, packets: int | None = None, op_index: int = 0) -> None:
        """Cut message ``serial`` of every rank; messages must be prepared in order."""
        count = elements(packets or self.packets, self.mtu)
        rng = np.random.default_rng(serial)
        self.data[serial] = [rng.standard_normal(count).astype(np.float32) for _ in range(self.workers)]
        for rank, sender in enumerate(self._senders):
            blocks = sender.message(
                serial,
                self.data[serial][rank].view(np.uint8),
                dtype=Dtype.F32,
                op=Op.SUM,
                op_index=op_index,
            )
            self._frames[serial, rank] = [row[None].copy() for block in blocks for row in block]

    def packet(self, serial: int, rank: int, number: int) -> Frames:
        return self._frames[serial, rank][number]

    def expected(self, serial: int) -> bytes:
        """The sum of a message, in rank order."""
        total = self.data[serial][0]
        for addend in self.data[serial][1:]:
            total = total + addend
        return total.tobytes()

    def arrive(self, rank: int, *frames: Frames) -> dict[int, list[Packet]]:
        """Packets of ``rank`` arrive together; what leaves, by flow (the rank that sent it)."""
        out: dict[int, list[Packet]] = {}
        for action in self.accelerator.step(FramesArrived(PortId(rank), list(frames)), NOW):
            if not isinstance(action, EmitFrames):
                self.actions.append(action)
                continue
            flow = (action.port - 1) % self.workers
            for run in decode_runs(action.frames):
                if not isinstance(run, RoceRun) or run.opcode == 0x11:
                    continue
                assert run.intact(), "everything that leaves is sealed"
                rows = zip(run.psn.tolist(), run.payload(), run.frames, strict=True)
                out.setdefault(flow, []).extend(
                    Packet(psn, payload.tobytes(), frame.tobytes()) for psn, payload, frame in rows
                )
        return out

    def send(self, rank: int, serial: int, *numbers: int) -> dict[int, list[Packet]]:
        """Packets ``numbers`` (all if none are named) of a message arrive from ``rank``."""
        chosen = numbers or range(len(self._frames[serial, rank]))
        return self.arrive(rank, *(self.packet(serial, rank, number) for number in chosen))

    def psns(self, flow: int, serial: int) -> list[int]:
        """PSNs of a message on a flow."""
        first = next(iter(decode_runs(self.packet(serial, flow, 0))))
        assert isinstance(first, RoceRun)
        count = len(self._frames[serial, flow])
        return [(int(first.psn[0]) + number) & 0xFF_FFFF for number in range(count)]
