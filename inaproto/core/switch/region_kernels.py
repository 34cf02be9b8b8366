"""A region's memory as the compiled kernels see it (:mod:`inaproto.core.kernels`).

What they do in place of numpy, for the commonest of what a region does: place the packets of a message that
come in order, add up 32-bit elements, put results under their headers. All else, and all that is decided, is
in :class:`~inaproto.core.switch.aggregator.Region`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inaproto.core.kernels.compiled import FOUND, FOUND_AT, PLACE, SEAL, Compiled, Layouts, Scan
from inaproto.core.switch.packet_memory import Cut, OutputArena, Parts, PayloadBuffer
from inaproto.wire.ina_header import FLAG_RESULT, FLAGS_OFFSET, INA_HEADER_BYTES, Dtype

SUMMED: Final = {Dtype.F32: 1, Dtype.I32: 2}
"""Element types that the kernels add up, by their number there."""
_LAST_OPCODES: Final = (0x08, 0x09)
_FIRST: Final = 0
_MIDDLE: Final = 1
_LAST: Final = 2


class LastPacket(NamedTuple):
    """Layout of a message's last packet, which may be short: equal on all ranks, or nothing is summed."""

    opcode: int
    header_bytes: int
    payload_bytes: int
    pad: int


class RegionKernels:
    """Kernels on the memory of one region, ``arrays``, which must stay where it is."""

    __slots__ = (
        "_at",
        "_kept",
        "_sealed",
        "_words",
        "compiled",
        "guess",
        "last",
        "layouts",
    )

    def __init__(
        self,
        compiled: Compiled,
        arrays: tuple[NDArray[np.generic], ...],
        *,
        inputs: int,
        first: tuple[int, int],
        middle: tuple[int, int],
    ) -> None:
        """``arrays``: header, seen, result, share, CRCs of results, the ranks' own headers, done, summed;
        ``inputs``: ranks that are added up; ``first`` and ``middle``: opcode and bytes of headers."""
        _, seen, result = arrays[:3]
        slots, mtu = result.shape
        self.compiled = compiled
        self._kept = arrays
        ina = INA_HEADER_BYTES, FLAGS_OFFSET, FLAG_RESULT
        words = np.array([0, *(array.ctypes.data for array in arrays), inputs, slots, mtu, *ina], np.int64)
        assert seen.shape == (inputs, slots)
        self._words, self._at = words.data, words.ctypes.data
        self.layouts = Layouts()
        self.layouts.put(_FIRST, *first, mtu, 0)
        self.layouts.put(_MIDDLE, *middle, mtu, 0)
        self.last: LastPacket | None = None
        """Layout of the last packet that the kernels go by."""
        self.guess: LastPacket | None = None
        """Layout of the last packet of a message before, of several: most messages are as long as that."""
        self._sealed: tuple[int, int, int, Parts] = (0, 0, 0, ())

    def opened(self, payload: PayloadBuffer) -> None:
        """Another message is in the region, whose payloads are there."""
        self._words[0] = payload.address
        if self.last is not None and self.last[0] in _LAST_OPCODES:
            self.guess = self.last

    def expect(self, layout: LastPacket | None) -> None:
        """Go by this layout of the last packet of the message; None: it is not known yet."""
        self.last = layout
        if layout is None:
            self.layouts.clear(_LAST)
        else:
            opcode, width, payload, pad = layout
            self.layouts.put(_LAST, opcode, width, payload + pad, pad)

    def place(
        self,
        scan: Scan,
        begin: int,
        end: int,
        rank: int,
        offset: int,
        packets: int,
        psn: int,
        psn_mask: int,
        dtype: Dtype | None = None,
    ) -> tuple[int, int, int, int, int]:
        """Frames in places ``begin`` to ``end - 1`` of the scan, which follow each other from ``offset`` on.

        Returns how many it took before one that is not exactly the next packet, or that was there before; how
        many of these are right and are stored now; the offset behind the last one stored; and how many slots
        it has filled, added up and checksummed, of elements of ``dtype`` (None: none), and the offset behind
        the last one of them.
        """
        told = scan.place
        kind = 0 if dtype is None else SUMMED[dtype]
        at, layouts = self._at, self.layouts.address
        PLACE.pack_into(
            told, 0, scan.address, begin, end, at, rank, offset, packets, psn, psn_mask, layouts, kind
        )
        self.compiled.place(scan.place_at)
        return FOUND.unpack_from(told, FOUND_AT)

    def sum(self, dtype: Dtype, begin: int, end: int, last: int, payload: int, pad: int) -> None:
        """Add up slots, and make the CRCs of results: in slot ``last`` of ``payload`` bytes and ``pad``."""
        self.compiled.sum(self._at, SUMMED[dtype], begin, end, last, payload, pad)

    def seal(self, ranks: slice, begin: int, end: int, packets: int, arena: OutputArena) -> Cut:
        """Results ``begin`` to ``end - 1`` of ``packets`` under the headers of ``ranks``: as ``packets_out``.

        The layout of the last packet must be known if it is among them.
        """
        count, layouts = ranks.stop - ranks.start, self.layouts
        if self._sealed[:3] != (begin, end, packets):
            last = packets - 1
            first = ((1, layouts.frame_bytes(_FIRST)),) if begin == 0 < last else ()
            middle = min(last, end) - max(1, begin)
            parts = (*first, (middle, layouts.frame_bytes(_MIDDLE))) if middle > 0 else first
            self._sealed = begin, end, packets, parts
        parts = self._sealed[3]
        if end == packets:
            parts = (*parts, (1, layouts.frame_bytes(_LAST)))
        cut = arena.take_cut(count, parts)
        told, to = arena.order, cut.address
        SEAL.pack_into(told, 0, self._at, layouts.address, ranks.start, count, begin, end, packets, to)
        self.compiled.seal(arena.order_at)
        return cut
