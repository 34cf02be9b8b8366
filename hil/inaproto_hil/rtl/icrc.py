"""The invariant CRC of RoCEv2 at the width of the bus: one block checks it, one writes it.

The Combinator of NetReduce (section 4) sends a result behind a stored header, so each packet needs a new
ICRC; and a payload whose ICRC is wrong must never reach a sum. Golden model: :mod:`inaproto.wire.icrc`.

A frame is aligned (two zero bytes in front), so IPv4 begins at a word, and payload and ICRC of packets that
can be summed are whole words. Invariants:

- A beat is taken in each cycle in which one is offered; no frame slows down or spoils the next one.
- ``IcrcCheck`` answers once for every last beat, whatever the frame is, and says yes only where the whole
  ICRC lies inside the frame and is right.
- ``IcrcSeal`` changes four bytes of a frame that is to be sealed, and none of another.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

from amaranth.hdl import Cat, EnableInserter, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from inaproto.wire.icrc import MASKED_OFFSETS
from inaproto_hil.rtl.crc import INTACT, remainder, remainder_value
from inaproto_hil.rtl.layout import Beat
from inaproto_hil.rtl.parameters import SHIFT_BYTES, WORD_BYTES

START: Final = 0xDEBB20E3
"""The CRC's register behind the eight ones that the ICRC counts before IPv4."""
IP_WORD: Final = 4
"""Where IPv4 begins, in words of an aligned frame. Its total length is in the upper half of that word."""
SPECIAL_WORDS: Final = 13
"""Up to the reserved byte of the BTH: words of which not all bits count as they are."""
DATAGRAM_BYTES_MIN: Final = 20 + 8 + 12 + 4
"""IPv4, UDP, BTH and ICRC: a shorter datagram is no RoCEv2 packet."""


def _ones(word: int) -> int:
    """The bits of a word of an aligned frame that count as ones, byte 0 lowest."""
    places = (offset + SHIFT_BYTES - WORD_BYTES * word for offset in MASKED_OFFSETS)
    return sum(0xFF << 8 * place for place in places if 0 <= place < WORD_BYTES)


def _as_counted(m: Module, beat: Any, taken: Value, covered: Sequence[Value]) -> tuple[list[Signal], Signal]:
    """(Words of a beat as the ICRC counts them, number of the beat in its frame).

    A word that is not ``covered`` counts as zeros. Beats behind the ``SPECIAL_WORDS`` all have one number.
    """
    words = len(covered)
    special_beats = -(-SPECIAL_WORDS // words)
    place = Signal(range(special_beats + 1))
    next_place = Signal.like(place)
    m.d.comb += place.eq(Mux(beat.first, 0, next_place))
    with m.If(taken):
        m.d.sync += next_place.eq(Mux(place == special_beats, place, place + 1))

    counted = [Signal(32, name=f"counted{lane}") for lane in range(words)]
    for lane in range(words):
        plain = Mux(covered[lane], beat.data.word_select(lane, 32), 0)
        m.d.comb += counted[lane].eq(plain)
        with m.Switch(place):
            for number in range(special_beats):
                word = words * number + lane
                with m.Case(number):
                    if word < IP_WORD:
                        m.d.comb += counted[lane].eq(0)
                    elif word == IP_WORD:
                        m.d.comb += counted[lane].eq((plain | _ones(word)) ^ START)
                    elif _ones(word):
                        m.d.comb += counted[lane].eq(plain | _ones(word))
    return counted, place


class IcrcCheck(wiring.Component):
    """Watches frames go by and tells of each whether it carries the right ICRC.

    The total length of IPv4 tells where the ICRC lies; bytes behind the datagram are Ethernet padding. A
    beat is taken in each cycle with ``valid``. ``done`` is 1 for one cycle, ``latency`` cycles after that of
    a last beat, and ``ok`` holds then. A frame whose datagram is no whole words, ends outside of the frame,
    or is too short for a RoCEv2 packet is not ok. It is left to others whether the frame is such a packet.
    """

    latency: Final = 4

    def __init__(self, words: int) -> None:
        self.words = words
        super().__init__({"valid": In(1), "beat": In(Beat(words)), "done": Out(1), "ok": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        words, beat = self.words, self.beat

        # Words from the begin of this beat to the end of the datagram; 0 where that is behind us, or unknown.
        ahead = Signal(range((1 << 14) + words))
        left = Signal.like(ahead)
        counted, place = _as_counted(m, beat, self.valid, [ahead > lane for lane in range(words)])
        lane = IP_WORD % words
        length = Signal(16)
        m.d.comb += length.eq(
            Cat(beat.data.word_select(4 * lane + 3, 8), beat.data.word_select(4 * lane + 2, 8))
        )
        has_icrc = (length[:2] == 0) & (length >= DATAGRAM_BYTES_MIN)
        with m.If(place == IP_WORD // words):
            m.d.comb += ahead.eq(Mux(has_icrc, length[2:] + lane, 0))
        with m.Elif(place > IP_WORD // words):
            m.d.comb += ahead.eq(left)
        with m.If(self.valid):
            m.d.sync += left.eq(Mux(ahead > words, ahead - words, 0))

        layout = data.StructLayout({"first": 1, "last": 1, "ends": 1, "behind": range(words)})
        here, at_words, at_share, at_sum = (Signal(layout, name=f"stage{number}") for number in range(4))
        valid = [self.valid, *(Signal(name=f"valid{number}") for number in range(1, 4))]
        m.d.comb += [
            here.first.eq(beat.first),
            here.last.eq(beat.last),
            here.ends.eq((ahead != 0) & (ahead <= beat.bytes[2:])),
            here.behind.eq(-ahead),  # words of this beat behind the ICRC, modulo the power of two ``words``
        ]
        m.d.sync += [later.eq(sooner) for sooner, later in pairwise(valid)]
        m.d.sync += [at_words.eq(here), at_share.eq(at_words), at_sum.eq(at_share)]

        bus = [Signal(32, reset_less=True) for _ in range(words)]
        share = Signal(32, reset_less=True)
        total = Signal(32, reset_less=True)
        m.d.sync += [Cat(bus).eq(Cat(counted)), share.eq(remainder_value(bus))]
        with m.If(valid[2]):
            m.d.sync += total.eq(share ^ Mux(at_share.first, 0, remainder_value([total], words)))

        right = Signal()
        with m.Switch(at_sum.behind):
            for behind in range(words):
                with m.Case(behind):
                    m.d.comb += right.eq(total == remainder(INTACT, 1, behind))
        # Beats of padding may follow the one with the ICRC.
        found = Signal()
        ok = Signal()
        m.d.comb += ok.eq(at_sum.ends & right | found & ~at_sum.first)
        with m.If(valid[3]):
            m.d.sync += found.eq(ok)
        m.d.sync += [self.done.eq(valid[3] & at_sum.last), self.ok.eq(ok)]
        return m


class IcrcSeal(wiring.Component):
    """Writes the ICRC into frames that pass.

    ``out`` and ``out_valid`` are ``beat`` and ``valid``, ``latency`` cycles with ``en`` later; in cycles
    without it nothing moves. In a frame with ``seal``, which is the same in all of its beats, the last four
    bytes become the ICRC. Such a frame ends with its IP datagram, at a whole word.
    """

    def __init__(self, words: int) -> None:
        self.words = words
        self.unwinding: Final = words.bit_length() - 1
        self.latency: Final = 3 + self.unwinding
        super().__init__(
            {
                "en": In(1),
                "valid": In(1),
                "beat": In(Beat(words)),
                "seal": In(1),
                "out_valid": Out(1),
                "out": Out(Beat(words)),
            }
        )

    def elaborate(self, platform: object) -> Any:
        m = Module()
        words, unwinding = self.words, self.unwinding

        stages = [self.beat, *(Signal(Beat(words), reset_less=True) for _ in range(self.latency))]
        valid = [self.valid, *(Signal() for _ in range(self.latency))]
        seal = [self.seal, *(Signal(reset_less=True) for _ in range(self.latency))]
        for line in (stages, valid, seal):
            m.d.sync += [later.eq(sooner) for sooner, later in pairwise(line)]

        # The word that is to be replaced counts as zeros, as do those behind it.
        covered = [~self.beat.last | (self.beat.bytes > WORD_BYTES * (lane + 1)) for lane in range(words)]
        counted, _ = _as_counted(m, self.beat, self.valid, covered)
        bus = [Signal(32, reset_less=True) for _ in range(words)]
        share = Signal(32, reset_less=True)
        total = Signal(32, reset_less=True)
        m.d.sync += [Cat(bus).eq(Cat(counted)), share.eq(remainder_value(bus))]
        with m.If(valid[2]):
            m.d.sync += total.eq(share ^ Mux(stages[2].first, 0, remainder_value([total], words)))

        # The CRC is the remainder with one word of zeros behind: the replaced one. Those behind that are
        # taken back, in powers of two.
        for step in range(unwinding):
            behind = _words_behind(stages[3 + step], words)
            taken_back = Signal(32, reset_less=True)
            m.d.sync += taken_back.eq(Mux(behind[step], remainder_value([total], -(1 << step)), total))
            total = taken_back

        last = stages[-1]
        m.d.comb += [self.out_valid.eq(valid[-1]), self.out.eq(last)]
        with m.If(seal[-1] & last.last), m.Switch(_words_behind(last, words)):
            for behind in range(words):
                with m.Case(behind):
                    m.d.comb += self.out.data.word_select(words - 1 - behind, 32).eq(~total)
        return EnableInserter(self.en)(m)


def _words_behind(beat: Any, words: int) -> Value:
    """Words of a last beat that are behind the end of the frame."""
    return (words - beat.bytes[2:])[: words.bit_length() - 1]
