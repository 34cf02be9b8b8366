"""The engine among neighbours that keep their word, and the words of its states: shared by its proofs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Array, Cat, Mux, Signal, Value

from inaproto.wire.roce import Opcode
from inaproto_hil.rtl import engine as rules
from inaproto_hil.rtl.parameters import Parameters
from inaproto_hil.rtl.proofs.proof import Proof
from inaproto_hil.rtl.tables import CONNECTION

BETWEEN_FRAMES = ("IDLE", "TAKEN")
OF_COMMANDS = (
    "COMMAND",
    "WRONG",
    "CONNECTION",
    "CONNECTION_ROW",
    "RING",
    "RING_READ",
    "RING_PUT",
    "RING_LEAVES",
    "RING_LEAVES_PLACE",
    "PLACE_ROW_READ",
    "PLACE_ROW",
    "FORGET_MESSAGES",
    "CLEAR_REGIONS",
    "CLEAR_SLOTS",
    "RING_WRITE",
    "RING_ROW",
    "IN_FLIGHT",
    "IN_FLIGHT_SLOT",
    "STATE_ROW",
    "ANSWER",
)


class EngineProof(Proof):
    """An engine. Register writes may come at any time, frames and the emitter's rests too.

    Assumed of the receiver: it shows a frame until it is taken. That is proved in
    :mod:`inaproto_hil.rtl.proofs.streams`.
    """

    def __init__(self, parameters: Parameters, memories: Sequence[str] = ()) -> None:
        super().__init__()
        self.parameters = p = parameters
        self.engine = engine = rules.Engine(p)
        self.inside = inside = self.open("engine", engine, memories)
        self.seen = engine.arrival.seen
        self.assume_kept(engine.there & ~engine.taken, engine.there, engine.arrival)
        self.show("state", inside.state, inside.states)
        self.show("there", engine.there)
        self.step("states_are_states", inside.state < len(inside.states))
        self.step("a_frame_is_there", engine.there, inside.ongoing(*self.of_frames()))

        # One connection, whichever: the row as the control plane put it last.
        self.connection = self.any_of("connection", p.connections)
        self.put = put = self._last_put()
        self.known = Array(inside.signal(f"connection_{at}") for at in range(p.connections))[self.connection]
        self.registered = self._registered(put)

    def of_frames(self) -> list[str]:
        """States in which a frame is worked on."""
        inside = self.inside
        inside.ongoing(*BETWEEN_FRAMES, *OF_COMMANDS)  # they are all there
        return [name for name in inside.states if name not in (*BETWEEN_FRAMES, *OF_COMMANDS)]

    def _last_put(self) -> Any:
        p, engine, inside = self.parameters, self.engine, self.inside
        put = Signal(CONNECTION, name="put")
        offered, taken = engine.command.payload, engine.command.valid & engine.command.ready
        with self.m.If(taken & self._puts(offered)):
            self.m.d.sync += put.as_value().eq(_connection_row(offered))
        command, number = inside.signal("command", rules.COMMAND), inside.signal("number")
        self.step(
            "a_connection_is_put",
            (command.table == rules.TABLE_CONNECTION) & (command.index == number) & (number < p.connections),
            inside.ongoing("CONNECTION"),
        )
        pending = inside.ongoing("COMMAND", "CONNECTION") & self._puts(command)
        known = Array(inside.signal(f"connection_{at}") for at in range(p.connections))[self.connection]
        self.step(
            "the_row_is_as_put",
            put.as_value() == Mux(pending, _connection_row(command), known),
        )
        return put

    def _puts(self, command: Any) -> Value:
        return (command.table == rules.TABLE_CONNECTION) & command.put & (command.index == self.connection)

    def _registered(self, row: Any) -> Value:
        """Whether the frame says, whole or damaged, that it is of this connection, and is no ACK."""
        seen = self.seen

        def named(src_ip: Any, dst_ip: Any, dst_qp: Any) -> Value:
            return (row.src_ip == src_ip) & (row.dst_ip == dst_ip) & (row.dst_qp == dst_qp)

        strict = (seen.opcode != Opcode.RC_ACK) & named(seen.src_ip, seen.dst_ip, seen.dest_qp)
        damaged = (
            seen.lenient
            & (seen.lenient_opcode != Opcode.RC_ACK)
            & named(seen.lenient_src_ip, seen.lenient_dst_ip, seen.lenient_qp)
        )
        return row.valid & Mux(seen.roce, strict, damaged)


def _connection_row(command: Any) -> Value:
    """``CONNECTION`` as a command has it."""
    words = [command.row.word_select(at, 32) for at in range(3)]
    return Cat(words[2][31], words[0], words[1], words[2][:24])
