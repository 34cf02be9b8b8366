"""Which packets come through to the switch and back, as a NIC has seen (:mod:`inaproto.wire.path_probe`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from inaproto.core.rdma.edge import Edge
from inaproto.core.rdma.nic_config import SoftNicConfig
from inaproto.core.rdma.output import Output
from inaproto.units import Frames
from inaproto.wire.path_probe import token_answered
from inaproto.wire.vlan import TAG_BYTES

_MTU_MASK: Final = (1 << 32) - 1


class PathProbes:
    """Questions go out by ``output``; ``mtu`` is the largest that was answered, 0 if none was."""

    def __init__(self, config: SoftNicConfig, edge: Edge, output: Output) -> None:
        self.mtu = 0
        self._edge = edge
        self._output = output
        self._overhead_bytes = config.overhead_bytes
        self._life = config.first_key << 32
        """An earlier life of this address may have asked, too."""

    def ask(self, mtus: Sequence[int]) -> None:
        """Ask the switch whether packets of these MTUs come through."""
        for mtu in mtus:
            self._output.emit(self._edge.probe(self._life | mtu, mtu + self._overhead_bytes))

    def heard(self, frames: Frames) -> bool:
        """Whether these frames of one length are answers, to questions of this NIC or others."""
        tokens = [token_answered(frame.tobytes()) for frame in frames]
        if None in tokens:
            return False
        for token in tokens:
            mtu = (token or 0) & _MTU_MASK
            # A priority tag may have been taken off on the way.
            is_whole = frames.shape[1] + TAG_BYTES >= mtu + self._overhead_bytes
            if token == self._life | mtu and is_whole:
                self.mtu = max(self.mtu, mtu)
        return True
