"""Streams keep their word: what is offered stays until it is taken, and frames keep their bounds and lengths.

Blocks with ready and valid: the aligner, its opposite, and a port's queue (:mod:`~inaproto_hil.rtl.egress`),
which is proved to lose, change and exchange nothing, never to have more than it has room for, and never to
let a reader wait within a frame. Assumed of the queue's writer is what its module asks for: a frame is
decided on while there is room, and with at most ``slack`` frames of which beats are still to come.
"""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Mux, Signal, Value

from inaproto_hil.rtl import align as aligning
from inaproto_hil.rtl import egress
from inaproto_hil.rtl.parameters import SHIFT_BYTES, WORD_BYTES, Parameters
from inaproto_hil.rtl.proofs.proof import Proof

QUEUE_BEATS = 8
FRAME_BEATS = 3
SLACK = 1
LENGTH_BITS = 16


def align(parameters: Parameters) -> Proof:
    proof = _Shifted(aligning.Align(parameters.words), parameters)
    left = proof.inside.signal("left")
    waits = (proof.came - proof.gone)[:LENGTH_BITS]
    proof.claim(
        "two_bytes_more_leave", proof.all_gone == (proof.all_came + SHIFT_BYTES)[:LENGTH_BITS], proof.ends
    )
    proof.step("both_are_inside", proof.is_inside == proof.leaves_inside, left == 0)
    proof.step("two_bytes_wait", waits == 0, proof.is_inside & (left == 0))
    proof.step("a_frame_ends_by_its_rest", ~proof.is_inside & proof.leaves_inside, left != 0)
    proof.step(
        "its_rest_waits", (left <= SHIFT_BYTES) & ((waits + SHIFT_BYTES)[:LENGTH_BITS] == left), left != 0
    )
    return proof


def unalign(parameters: Parameters) -> Proof:
    proof = _Shifted(aligning.Unalign(parameters.words), parameters)
    full, ends, begins = (proof.inside.signal(name) for name in ("full", "ends", "begins"))
    kept = proof.inside.signal("kept_bytes")
    waits = (proof.came - proof.gone)[:LENGTH_BITS]
    came = Mux(ends, proof.came, proof.all_came)  # the next frame may come while the end of this one goes
    proof.claim("two_bytes_less_leave", (proof.all_gone + SHIFT_BYTES)[:LENGTH_BITS] == came, proof.ends)
    proof.step("none_is_inside", ~proof.is_inside & ~proof.leaves_inside & (proof.gone == 0), ~full)
    proof.step("what_is_kept_begins_a_frame", begins == ~proof.leaves_inside, full)
    proof.step("a_beat_is_kept", proof.is_inside & (waits == WORD_BYTES * parameters.words), full & ~ends)
    most = WORD_BYTES * parameters.words - SHIFT_BYTES
    proof.step("an_end_is_kept", ~proof.is_inside & (waits == kept + SHIFT_BYTES), full & ends)
    proof.step("it_has_bytes", (kept >= 1) & (kept <= most), full & ends)
    return proof


def queue(parameters: Parameters) -> Proof:
    """A port's queue of few beats, for frames of up to ``FRAME_BEATS``."""
    reserve = (SLACK + 1) * FRAME_BEATS
    fifo = egress.FrameFifo(parameters.words, QUEUE_BEATS, reserve)
    proof = Proof()
    m, inside = proof.m, proof.open("fifo", fifo, ["beats"])
    written, whole, fetched = (inside.signal(name) for name in ("written", "whole", "fetched"))
    offered = fifo.tx

    def apart(later: Value, earlier: Value) -> Value:
        return (later - earlier)[: len(written)]

    # The writer: beats of the frames it has decided on that are still to come.
    decides, length = proof.free("decides", 1), proof.free("length", range(FRAME_BEATS + 1))
    owed = Signal(range(2 * reserve))
    proof.assume(~decides | (fifo.room & (owed <= SLACK * FRAME_BEATS)))
    proof.assume((length >= 1) & (length <= FRAME_BEATS))
    proof.assume(~fifo.valid | (owed != 0))
    m.d.sync += owed.eq(owed - fifo.valid + Mux(decides, length, 0))

    # Some beat, whichever: the one that is written as number ``which``.
    which = proof.any_of("which", 2 * QUEUE_BEATS)
    beat = Signal.like(Value.cast(fifo.beat))
    with m.If(fifo.valid & (written == which)):
        m.d.sync += beat.eq(fifo.beat)
    row = proof.row_at("row", inside.rows("beats"), which[: (QUEUE_BEATS - 1).bit_length()])
    before_whole = (whole - 1)[: (QUEUE_BEATS - 1).bit_length()]
    last_whole = proof.row_at("last_whole", inside.rows("beats"), before_whole)

    proof.show("written", written)
    proof.show("whole", whole)
    proof.show("fetched", fetched)
    proof.show("owed", owed)
    used = apart(written, fetched)
    goes_on = proof.before(offered.valid & offered.ready & ~offered.payload.last)
    stays = offered.valid & (Value.cast(offered.payload) == Value.cast(proof.before(offered.payload)))
    proof.claim("nothing_is_overwritten", used < QUEUE_BEATS, fifo.valid)
    proof.claim("what_is_offered_stays", stays, proof.before(offered.valid & ~offered.ready))
    proof.claim("no_reader_waits_within_a_frame", offered.valid, goes_on)
    is_it = offered.valid & (apart(fetched, which) == 1)
    proof.claim("beats_leave_as_they_came_in_order", Value.cast(offered.payload) == beat, is_it)

    proof.step("there_is_room_for_what_is_owed", used + owed <= QUEUE_BEATS)
    proof.step("no_more_is_owed_than_reserved", owed <= reserve)
    proof.step("whole_frames_are_a_part", apart(whole, fetched) <= used)
    proof.step("a_whole_frame_ends", last_whole.last, whole != fetched)
    proof.step("the_last_that_is_offered_ends", offered.payload.last, offered.valid & (whole == fetched))
    waits = apart(which, fetched) < used
    proof.step("the_beat_waits_as_it_came", Value.cast(row) == beat, waits)
    return proof


class _Shifted(Proof):
    """An aligner between a neighbour that offers well-formed frames and one that may take a beat or not."""

    def __init__(self, component: Any, parameters: Parameters) -> None:
        super().__init__()
        self.inside = self.open("aligner", component)
        beat_bytes = WORD_BYTES * parameters.words
        taken, came = component.input, component.input.payload
        given, out = component.output, component.output.payload
        self.out = out
        self.assume_kept(taken.valid & ~taken.ready, taken.valid, came)
        self.is_inside, self.leaves_inside = Signal(), Signal()
        self.assume(came.first == ~self.is_inside)
        self.assume(Mux(came.last, (came.bytes >= 1) & (came.bytes <= beat_bytes), came.bytes == beat_bytes))
        moves, goes = taken.valid & taken.ready, given.valid & given.ready
        self.came, self.gone = Signal(LENGTH_BITS), Signal(LENGTH_BITS)  # bytes of the frame so far
        self.all_came, self.all_gone = Signal(LENGTH_BITS), Signal(LENGTH_BITS)  # with those of this cycle
        self.m.d.comb += [
            self.all_came.eq(Mux(moves, Mux(came.first, 0, self.came) + came.bytes, self.came)),
            self.all_gone.eq(self.gone + out.bytes),
        ]
        with self.m.If(moves):
            self.m.d.sync += [self.is_inside.eq(~came.last), self.came.eq(self.all_came)]
        with self.m.If(goes):
            self.m.d.sync += [
                self.leaves_inside.eq(~out.last),
                self.gone.eq(Mux(out.last, 0, self.all_gone)),
            ]
        self.ends = goes & out.last
        self.show("comes", moves)
        self.show("bytes", came.bytes)
        self.show("goes", goes)
        self.show("bytes_out", out.bytes)
        stays = given.valid & (Value.cast(out) == Value.cast(self.before(out)))
        self.claim("what_is_offered_stays", stays, self.before(given.valid & ~given.ready))
        self.claim("a_frame_begins_where_one_ended", out.first == ~self.leaves_inside, given.valid)
        self.step("nothing_has_left_of_a_new_frame", self.gone == 0, ~self.leaves_inside)
        full = Mux(out.last, (out.bytes >= 1) & (out.bytes <= beat_bytes), out.bytes == beat_bytes)
        self.claim("beats_within_a_frame_are_full", full, given.valid)
