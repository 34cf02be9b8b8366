"""A region's memory as the compiled kernels see it (:mod:`inaproto.core.kernels`).

What they do in place of numpy, for the commonest of what a region does: place the packets of a message that
come in order, add up 32-bit elements, put results under their headers. All else, and all that is decided, is
in :class:`~inaproto.core.switch.region.Region`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inaproto.core.kernels.compiled import SEAL, Compiled, Layouts
from inaproto.core.switch.message_packets import LAST_OPCODES
from inaproto.core.switch.packet_memory import Cut, CutsPieces, Parts
from inaproto.wire.ina_header import FLAG_RESULT, FLAGS_OFFSET, INA_HEADER_BYTES, Dtype

SUMMED: Final = {Dtype.F32: 1, Dtype.I32: 2}
"""Element types that the kernels add up, by their number there."""
UNLIKE: Final = -1
"""Number of messages that are like no other."""
PAYLOAD_WORD: Final = 0
"""Where payloads are kept, of ``words``; 0: nothing is kept any more."""
SERIAL_WORD: Final = 1
_AGREED_WORD: Final = 18
_WORDS: Final = 22
LIKE_WORD: Final = 20
"""Number of the message: others with it differ in serial numbers and payloads alone."""
_RANK_AT: Final = 24
_AGREED_BYTES: Final = INA_HEADER_BYTES - 2
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
        "_agreed",
        "_kept",
        "_nobody",
        "_sealed",
        "at",
        "compiled",
        "guess",
        "last",
        "layouts",
        "psn0",
        "words",
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
        assert seen.shape == (inputs, slots)
        self.compiled = compiled
        self.layouts = Layouts()
        self.layouts.put(_FIRST, *first, mtu, 0)
        self.layouts.put(_MIDDLE, *middle, mtu, 0)
        ina = INA_HEADER_BYTES, FLAGS_OFFSET, FLAG_RESULT
        at = [array.ctypes.data for array in arrays]
        told = [0, -1, 0, 0, *at, inputs, slots, mtu, *ina, 0, 0, UNLIKE, self.layouts.address]
        words = np.array([*told, *[0] * (INA_HEADER_BYTES // 8), *[-1] * (2 * inputs)], np.int64)
        self._kept, self.words, self.at = arrays, words.data, words.ctypes.data
        agreed, psn0 = _WORDS, _WORDS + INA_HEADER_BYTES // 8
        words[_AGREED_WORD], words[_AGREED_WORD + 1] = self.at + 8 * agreed, self.at + 8 * psn0
        self._agreed = words[agreed:psn0].view(np.uint8).data
        self.psn0, self._nobody = words[psn0 : psn0 + inputs].data, words[psn0 + inputs :].data
        """PSN of each rank's first packet of the message; -1: it has not come."""
        self.last: LastPacket | None = None
        """Layout of the last packet that the kernels go by."""
        self.guess: LastPacket | None = None
        """Layout of the last packet of a message before, of several: most messages are as long as that."""
        self._sealed: tuple[int, int, int, Parts] = (0, 0, 0, ())

    def opened(
        self,
        payload: int,
        serial: int,
        packets: int,
        itemsize: int,
        dtype: Dtype | None,
        agreed: bytes,
    ) -> None:
        """Another message is in the region, whose payloads are at that address. All ranks must send
        ``agreed``, their INA header less its rank. Elements of ``dtype`` are added up as they come.
        """
        kind = 0 if dtype is None else SUMMED[dtype]
        words = self.words
        words[PAYLOAD_WORD], words[SERIAL_WORD], words[2], words[3] = payload, serial, packets, kind
        self._agreed[:_AGREED_BYTES] = agreed
        self.psn0[:] = self._nobody
        if self.last is not None and self.last[0] in LAST_OPCODES:
            self.guess = self.last
        guess = self.guess
        if guess is not None and guess.payload_bytes % itemsize:
            guess = None
        if packets > 1 and self.last is not guess:
            self.expect(guess)
        words[LIKE_WORD] = UNLIKE

    def opening(self, rank: int) -> bytes:
        """The header that opened the message, from ``rank``."""
        agreed = bytes(self._agreed)
        return agreed[:_RANK_AT] + rank.to_bytes(2, "big") + agreed[_RANK_AT:_AGREED_BYTES]

    def expect(self, layout: LastPacket | None) -> None:
        """Go by this layout of the last packet of the message; None: it is not known yet."""
        self.last = layout
        if layout is None:
            self.layouts.clear(_LAST)
        else:
            opcode, width, payload, pad = layout
            self.layouts.put(_LAST, opcode, width, payload + pad, pad)

    def sum(self, dtype: Dtype, begin: int, end: int, last: int, payload: int, pad: int) -> None:
        """Add up slots, and make the CRCs of results: in slot ``last`` of ``payload`` bytes and ``pad``."""
        self.compiled.sum(self.at, SUMMED[dtype], begin, end, last, payload, pad)

    def seal(self, ranks: slice, begin: int, end: int, packets: int, arena: CutsPieces) -> Cut:
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
        SEAL.pack_into(told, 0, self.at, ranks.start, count, begin, end, to)
        self.compiled.seal(arena.order_at)
        return cut
