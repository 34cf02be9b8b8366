"""The engine as a component: its ports, the payload memories, and the state machine (NetReduce section 4)."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import ClockSignal, Instance, Module
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from inaproto_adapters.fpga.register_map import Counter
from inaproto_hil.rtl.emitter import order_layout
from inaproto_hil.rtl.engine import (
    above,
    control,
    gaps,
    incoming,
    learnt,
    messages,
    notes,
    outgoing,
    replay,
    tree,
    turns,
)
from inaproto_hil.rtl.engine.work import ANSWER, COMMAND, FAULT, Work
from inaproto_hil.rtl.header import TOLD
from inaproto_hil.rtl.parameters import Parameters
from inaproto_hil.rtl.receiver import arrival_layout


class Engine(wiring.Component):
    """The blocks beside it are joined in :mod:`inaproto_hil.rtl.top`."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = p = parameters
        learn = data.StructLayout({"mac": 48, "port": range(p.ports), "ip": 32, "has_ip": 1})
        super().__init__(
            {
                "arrival": In(arrival_layout(p)),
                "there": In(1),
                "taken": Out(1),
                "stage_address": Out(range(p.foreign_beats)),
                "stage_data": In(32 * p.words),
                "learn": Out(stream.Signature(learn)),
                "bridge_idle": In(1),
                "went_down": In(p.ports),
                "query_mac": Out(48),
                "query_ingress": Out(range(p.ports + 1)),
                "result_mask": In(p.ports),
                "ports_up": In(p.ports),
                "order": Out(order_layout(p)),
                "begin": Out(1),
                "emitting": In(1),
                "bank_address": In(range(p.slots * p.frame_beats)),
                "banks": Out(data.ArrayLayout(32 * p.words, p.banks)),
                **({"note": Out(TOLD)} if p.trees else {}),
                "command": In(stream.Signature(COMMAND)),
                "answer": Out(stream.Signature(ANSWER)),
                "count": Out(len(Counter)),
                "fault": Out(FAULT),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        w = Work(m, self.parameters, self)
        self._add_payload_memories(w)
        found = incoming.look_up(w)
        messages.check_layout(w)
        with m.FSM() as fsm:
            incoming.take(w, found)
            incoming.bridge(w)
            incoming.check(w)
            messages.open_message(w)
            turns.take_turn(w)
            incoming.locate(w)
            messages.find(w)
            messages.store(w)
            replay.replay(w)
            outgoing.results(w)
            gaps.gaps(w)
            outgoing.leave(w)
            outgoing.finish(w)
            if self.parameters.trees:
                tree.send(w)
                tree.down(w)
                above.take(w)
                above.ask_again(w)
                notes.heed(w)
                notes.repeats(w)
                learnt.catch_up(w)
                learnt.signal_gaps(w)
                control.trees(w)
            control.choose(w)
            control.connections(w)
            control.rings(w)
            control.places(w)
            control.state(w)
        m.d.comb += self.busy.eq(~fsm.ongoing("IDLE") | self.there | self.command.valid)
        return m

    def _add_payload_memories(self, w: Work) -> None:
        p = self.parameters
        for at, enable in enumerate(w.kept_enable):
            w.m.submodules[f"bank_{at}"] = Instance(
                "payload_bank",
                p_WORDS=p.words,
                p_DEPTH=p.slots * p.frame_beats,
                p_ADDRESS=len(w.kept_at),
                i_clk=ClockSignal("sync"),
                i_write_address=w.kept_at,
                i_write_data=self.stage_data,
                i_write_enable=enable,
                i_read_address=self.bank_address,
                o_read_data=self.banks[at],
            )
