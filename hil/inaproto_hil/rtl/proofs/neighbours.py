"""What proofs of the engine assume of the blocks beside it, proved of these blocks.

The receiver shows a frame until it is taken, and a message of no packets is a fault to its parser. The
emitter is busy from the cycle after an order until that is through, never without one, and begins no frame
that its ports have no room for.
"""

from __future__ import annotations

from amaranth.hdl import Value

from inaproto_hil.rtl import emitter as emitting
from inaproto_hil.rtl import receiver as receiving
from inaproto_hil.rtl.parameters import Parameters
from inaproto_hil.rtl.proofs.proof import Proof


def receiver(parameters: Parameters) -> Proof:
    proof = Proof()
    block = receiving.Receiver(parameters)
    proof.open("receiver", block)
    stays = block.there & (Value.cast(block.arrival) == Value.cast(proof.before(block.arrival)))
    seen = block.arrival.seen
    proof.show("there", block.there)
    proof.claim("a_frame_is_shown_until_it_is_taken", stays, proof.before(block.there & ~block.taken))
    proof.claim("a_message_has_packets", seen.ina_fault | (seen.msg_len != 0), block.there)
    return proof


def emitter(parameters: Parameters) -> Proof:
    proof = Proof()
    block = emitting.Emitter(parameters)
    inside = proof.open("emitter", block)
    began, was_busy = proof.before(block.begin), proof.before(block.busy)
    proof.assume(~block.begin | ~block.busy)  # the engine waits, as is proved of it
    proof.show("state", inside.state, inside.states)
    proof.step("states_are_states", inside.state < len(inside.states))
    proof.claim("it_is_busy_once_it_has_an_order", block.busy, began)
    proof.claim("it_is_busy_by_an_order", began | was_busy, block.busy)
    mask = inside.signal("order", emitting.order_layout(parameters)).mask
    room = (proof.before(block.room) & mask) == mask
    begins = inside.ongoing("STREAM") & proof.before(inside.ongoing("ROOM"))
    proof.claim("a_frame_is_begun_with_room", room, begins)
    return proof
