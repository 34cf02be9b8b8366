"""Frames of ports through a simulated accelerator, each with all that leaves because of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inaproto.units import Frames
from inaproto_hil.rtl.parameters import SHIFT_BYTES, Parameters
from inaproto_hil.rtl.verilated.model import Model


class RtlPorts:
    """Frames through a model: those of port ``n`` come in at its port ``n``, and what leaves is returned."""

    def __init__(self, model: Model, parameters: Parameters) -> None:
        self._model = model
        self._parameters = parameters
        self.frames_in = 0
        self.frames_out = 0
        self.refused: dict[str, int] = {}
        """Frames that did not go in, by reason."""

    def through(self, port: int | None, blocks: Sequence[Frames]) -> list[tuple[int, Frames]]:
        """All that leaves because of these frames; ``port`` None: the accelerator has none for them."""
        most = self._parameters.foreign_bytes - SHIFT_BYTES
        left: list[tuple[int, Frames]] = []
        for block in blocks:
            for row in block:
                if port is None or not 0 < len(row) <= most:
                    why = "no place for its port" if port is None else "longer than the accelerator takes"
                    why = why if len(row) else "frame shorter than an Ethernet header"
                    self.refused[why] = self.refused.get(why, 0) + 1
                    continue
                self.frames_in += 1
                self._model.send(port, row.tobytes())
                left += [
                    (at, np.frombuffer(frame, np.uint8).reshape(1, -1)) for at, frame in self._model.run()
                ]
        self.frames_out += len(left)
        return left
