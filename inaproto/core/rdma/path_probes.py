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

_MTU_BITS: Final = 16
_WAY_BITS: Final = 8
_ROUNDS: Final = 256


class PathProbes:
    """Questions go out by ``output``; ``mtu`` is the largest that was answered in this round, or 0."""

    def __init__(self, config: SoftNicConfig, edge: Edge, output: Output) -> None:
        self.mtu = 0
        self._edge = edge
        self._output = output
        self._overhead_bytes = config.overhead_bytes
        self._life = config.first_key << 32
        """An earlier life of this address may have asked, too."""
        self._round = 0
        self._ways = 1
        self._answered: dict[int, set[int]] = {}
        """Links by which an MTU has come back."""

    def begin(self, ways: int) -> None:
        """Forget what is known: a path may carry less than it did. ``ways``: links, to ask by each."""
        self._round = (self._round + 1) % _ROUNDS
        self._ways = min(ways, 1 << _WAY_BITS)
        self._answered.clear()
        self.mtu = 0

    def ask(self, mtus: Sequence[int]) -> None:
        """Ask the switch whether packets of these MTUs come through."""
        for mtu in mtus:
            for way in range(self._ways):
                self._output.emit(self._edge.probe(self._token(way, mtu), mtu + self._overhead_bytes))

    def _token(self, way: int, mtu: int) -> int:
        return self._life | (self._round << _WAY_BITS | way) << _MTU_BITS | mtu

    def heard(self, frames: Frames) -> bool:
        """Whether these frames of one length are answers, to questions of this NIC or others."""
        tokens = [token_answered(frame.tobytes()) for frame in frames]
        if None in tokens:
            return False
        for token in tokens:
            mtu, way = (token or 0) % (1 << _MTU_BITS), (token or 0) >> _MTU_BITS & (1 << _WAY_BITS) - 1
            # A priority tag may have been taken off on the way.
            is_whole = frames.shape[1] + TAG_BYTES >= mtu + self._overhead_bytes
            if token == self._token(way, mtu) and is_whole and way < self._ways:
                ways = self._answered.setdefault(mtu, set())
                ways.add(way)
                if len(ways) == self._ways:
                    self.mtu = max(self.mtu, mtu)
        return True
