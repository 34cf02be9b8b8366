"""A region's memory as the compiled kernels see it (:mod:`inaproto.core.kernels`).

What they do in place of numpy, for the commonest of what a region does: place the packets of a message that
come in order, add up 32-bit elements, put results under their headers. All else, and all that is decided, is
in :class:`~inaproto.core.switch.aggregator.Region`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from inaproto.core.kernels.compiled import Compiled, Layouts, Scan
from inaproto.core.switch.packet_memory import OutputArena, PayloadBuffer
from inaproto.wire.ina_header import FLAG_RESULT, FLAGS_OFFSET, INA_HEADER_BYTES, Dtype, Op

_SUMS: Final = {Dtype.F32: 1, Dtype.I32: 2}
"""Element types that the kernels add up, by their number there."""
_FIRST: Final = 0
_MIDDLE: Final = 1
_LAST: Final = 2


class RegionKernels:
    """Kernels on the memory of one region, ``arrays``, which must stay where it is."""

    __slots__ = ("_at", "_ina", "_kept", "_last", "_words", "compiled", "layouts")

    def __init__(
        self,
        compiled: Compiled,
        arrays: tuple[NDArray[np.generic], ...],
        *,
        inputs: int,
        first: tuple[int, int],
        middle: tuple[int, int],
    ) -> None:
        """``arrays``: header, seen, result, share, CRCs of results, the ranks' own headers; ``inputs``: ranks
        that are added up; ``first`` and ``middle``: opcode and bytes of headers."""
        _, seen, result = arrays[:3]
        slots, mtu = result.shape
        self.compiled = compiled
        self._kept = arrays
        words = np.array([0, *(array.ctypes.data for array in arrays), inputs, slots, mtu], np.int64)
        assert seen.shape == (inputs, slots)
        self._words, self._at = words.data, words.ctypes.data
        self._ina = arrays[-1].reshape(-1).data
        self.layouts = Layouts()
        self.layouts.put(_FIRST, *first, mtu, 0)
        self.layouts.put(_MIDDLE, *middle, mtu, 0)
        self._last: tuple[int, int, int, int] | None = None

    def opened(self, payload: PayloadBuffer) -> None:
        """Another message is in the region, whose payloads are there."""
        self._words[0] = payload.address
        self._last = None
        self.layouts.clear(_LAST)

    def last(self, layout: tuple[int, int, int, int] | None) -> None:
        """Layout of the last packet: opcode, bytes of headers, of payload, of pad; None: not known yet."""
        if layout == self._last:
            return
        self._last = layout
        if layout is None:
            self.layouts.clear(_LAST)
        else:
            opcode, width, payload, pad = layout
            self.layouts.put(_LAST, opcode, width, payload + pad, pad)

    def place(
        self, scan: Scan, begin: int, end: int, rank: int, offset: int, packets: int, psn: int, psn_mask: int
    ) -> tuple[int, int, int]:
        """Frames in places ``begin`` to ``end - 1`` of the scan, which follow each other from ``offset`` on.

        Returns how many it took before one that is not exactly the next packet, or that was there before; how
        many of these are right and are stored now; and the offset behind the last one stored.
        """
        return scan.place(begin, end, self._at, self.layouts, rank, offset, packets, psn, psn_mask)

    def keep_ina(self, rank: int, header: bytes) -> None:
        """The rank's own INA header, as its result will carry it: marked as a result."""
        ina = self._ina
        at = rank * INA_HEADER_BYTES
        ina[at : at + INA_HEADER_BYTES] = header
        ina[at + FLAGS_OFFSET] |= FLAG_RESULT

    def sums(self, dtype: Dtype, op: Op) -> bool:
        """Whether ``sum`` can do it."""
        return op is Op.SUM and dtype in _SUMS

    def sum(self, dtype: Dtype, begin: int, end: int, whole: int) -> None:
        """Add up slots; those before ``whole`` get the CRC of their result too."""
        self.compiled.sum(self._at, _SUMS[dtype], begin, end, whole)

    def seal(
        self, ranks: slice, begin: int, end: int, packets: int, arena: OutputArena
    ) -> list[NDArray[np.uint8]]:
        """Results ``begin`` to ``end - 1`` of ``packets`` under the headers of ``ranks``: as ``packets_out``.

        The layout of the last packet must be known if it is among them.
        """
        count, layouts, last = ranks.stop - ranks.start, self.layouts, packets - 1
        parts = [(1, layouts.frame_bytes(_FIRST))] if begin == 0 < last else []
        middle = (min(last, end)) - (max(1, begin))
        if middle > 0:
            parts.append((middle, layouts.frame_bytes(_MIDDLE)))
        if end == packets:
            parts.append((1, layouts.frame_bytes(_LAST)))
        out, address = arena.take_at(1, 1, count * sum([n * length for n, length in parts]))
        own = INA_HEADER_BYTES
        self.compiled.seal(self._at, layouts.address, ranks.start, count, begin, end, packets, own, address)
        flat, at, blocks = out.reshape(-1), 0, []
        for n, length in parts:
            size = count * n * length
            blocks.append(flat[at : at + size].reshape(count, n, length))
            at += size
        return blocks
