"""A raw gradient never gets out (NetReduce section 3.2): what a host takes for a sum is one.

Whatever a packet of a registered connection looks like, damaged or whole, of whatever opcode but an ACK's:
the engine never orders that it leaves as it came, also not while tables are written. The connection is
registered from the moment in which the control plane's command is taken until the next one of that row.

What leaves as it came is the frame that was judged: it stays where it is until the emitter is through.
"""

from __future__ import annotations

from amaranth.hdl import Signal

from inaproto_hil.rtl.parameters import Parameters
from inaproto_hil.rtl.proofs.frames import EngineProof


def raw_gradients(parameters: Parameters) -> EngineProof:
    proof = EngineProof(parameters)
    engine, inside, registered = proof.engine, proof.inside, proof.registered
    is_packet = engine.arrival.seen.roce

    # The emitter is busy from the cycle after an order until that is through, and never without one.
    began = proof.before(engine.begin)
    proof.assume(~began | engine.emitting)
    proof.assume(~engine.emitting | began | proof.before(engine.emitting))

    raw = Signal()
    leaving = Signal()
    proof.m.d.comb += raw.eq(engine.begin & engine.order.raw)
    with proof.m.If(raw):
        proof.m.d.sync += leaving.eq(1)
    with proof.m.Elif(~engine.emitting):
        proof.m.d.sync += leaving.eq(0)
    proof.show("raw", raw)
    proof.show("registered", registered)

    proof.claim("no_raw_gradient_leaves", ~registered, raw)
    proof.claim("what_leaves_raw_is_there", engine.there, raw)
    proof.claim("and_stays_until_it_has_left", engine.there & ~engine.taken, leaving & engine.emitting)
    proof.claim("an_order_waits_for_the_one_before", ~engine.emitting, engine.begin)

    emits = inside.ongoing("BRIDGE_WAIT", "LEAVE_WAIT")
    proof.step("it_emits_by_order", emits, engine.emitting)
    proof.step("it_emits_raw_from_the_bridge", inside.ongoing("BRIDGE_WAIT"), leaving & engine.emitting)
    proof.step("no_packet", ~is_packet, inside.ongoing("LEARN_PLAIN", "PLAIN"))
    proof.step("an_ack", is_packet & ~registered, inside.ongoing("LEARN_ACK"))
    proof.step("a_stranger", is_packet & ~registered, inside.ongoing("LEARN_OTHER", "UNREGISTERED"))
    proof.step("to_be_bridged", ~registered, inside.ongoing("BRIDGE", "BRIDGE_OUT"))
    return proof
