"""NetReduce's own figures, and what keeps ours from being like them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Final

from inaproto.errors import LocalMisuse
from inaproto_hil.rtl.parameters import Parameters
from inaproto_hil.rtl.synthesis.blocks import TOP
from inaproto_hil.rtl.synthesis.measure import Row
from inaproto_hil.rtl.synthesis.resources import Resources

NETREDUCE: Final = {"lut": 109_025, "ff": 167_554, "bram36": 993}
"""NetReduce section 4: the whole of its accelerator on a Virtex UltraScale."""
NETREDUCE_PER_CENT: Final = {"lut": 10.31, "ff": 7.91, "bram36": 26.27}
"""Of that chip."""
PAPER_SIZES: Final = Parameters(ports=6, words=16, rings=1, children=6, window=2, slots=680, mtu=1024)
"""Sections 4 and 5.1: six ports of 100 Gbit/s, a ring of six, two messages in flight of 170 packets of 1 KB.
The width of the bus is not given; 512 bits are usual at that rate."""
DIFFERS: Final = (
    "Chip: the paper's is a Virtex UltraScale. xcu is its family, xcup the next, with the same logic cells.",
    "Tool: Yosys counts cells as mapped. A vendor's tool packs two small functions into a LUT: fewer LUTs.",
    "Content: whether the paper's numbers hold MACs and the host's interface is not said. Ours do not.",
    "Size: a row tells ours. The paper's is six ports of 100 Gbit/s, a ring of six and 680 slots of 1 KB.",
    "Extrapolated: a straight line through two widths of the bus, though shifters grow faster than that.",
    "Clock: that of an ECP5, smaller, slower and with 4-input LUTs. It bounds nothing on the paper's chip.",
)
"""What keeps the table from being a comparison of like with like."""


def extrapolated(narrow: tuple[int, Resources], wide: tuple[int, Resources], words: int) -> Resources:
    """LUTs and flip-flops of a bus of ``words``, on the straight line through two widths of otherwise equal
    sizes. All that is no logic is 0: memories are to be mapped at the true size (``memories_only``)."""
    (near, below), (far, above) = narrow, wide
    if near == far:
        raise LocalMisuse(f"a line through two widths, but both are {near} words")

    def line(first: int, second: int) -> int:
        return round(first + (second - first) * (words - near) / (far - near))

    return Resources(lut=line(below.luts, above.luts), ff=line(below.ff, above.ff))


def extrapolations(rows: Iterable[Row]) -> Iterator[tuple[int, int, Resources]]:
    """For each two neighbouring widths of the otherwise same accelerator: both, and what follows for that
    of :data:`PAPER_SIZES`."""
    tops = [(row.parameters, row.resources) for row in rows if row.block == TOP and row.resources is not None]
    for (narrow, below), (wide, above) in pairwise(sorted(tops, key=lambda top: top[0].words)):
        if narrow.words < wide.words and replace(narrow, words=wide.words) == wide and above.ff:
            found = extrapolated((narrow.words, below), (wide.words, above), PAPER_SIZES.words)
            yield narrow.words, wide.words, found
