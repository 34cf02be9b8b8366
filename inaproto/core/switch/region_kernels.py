"""A region's memory as the compiled kernels see it (:mod:`inaproto.core.kernels`).

What they do in place of numpy, for the commonest of what a region does: place the packets of a message that
come in order, add up 32-bit elements, put results under their headers. All else, and all that is decided, is
in :class:`~inaproto.core.switch.aggregator.Region`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

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


class Row(NamedTuple):
    """Layout of a packet: bytes of headers, of payload and pad, and of its rank's own header in these."""

    width: int
    tail: int
    own: int = 0


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

    def seal(self, ranks: slice, begin: int, end: int, row: Row, arena: OutputArena) -> NDArray[np.uint8]:
        """Results ``begin`` to ``end - 1`` as packets of ``ranks``: uint8 (ranks, n, frame_bytes)."""
        count = ranks.stop - ranks.start
        out, address = arena.take_at(count, end - begin, row.width + row.tail + 4)
        self.compiled.seal(self._at, ranks.start, count, begin, end, row.width, row.tail, row.own, address)
        return out
