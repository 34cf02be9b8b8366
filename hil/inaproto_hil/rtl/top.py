"""The accelerator as a whole: Ethernet ports, a register bus, and one engine between them (NetReduce section
4).

Frames come in one after the other, are checked and staged (``receiver``), worked off by the rules
(``engine``) with the bridge's table beside them (``bridge``), and leave as results or as they came
(``emitter``) through a FIFO a port (``egress``). What the control plane says comes through registers
(``csr``).
"""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from inaproto_adapters.fpga.register_map import Counter
from inaproto_hil.rtl.bridge import BridgeTable
from inaproto_hil.rtl.csr import Registers
from inaproto_hil.rtl.egress import Egress
from inaproto_hil.rtl.emitter import Emitter
from inaproto_hil.rtl.engine import Engine
from inaproto_hil.rtl.layout import Beat
from inaproto_hil.rtl.parameters import Parameters
from inaproto_hil.rtl.receiver import Receiver


class Accelerator(wiring.Component):
    """``rx_0``, ``tx_0`` ... are the ports, plain Ethernet frames without FCS; ``csr_*`` the register bus."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        beats = stream.Signature(Beat(parameters.words))
        ports = range(parameters.ports)
        super().__init__(
            {
                **{f"rx_{port}": In(beats) for port in ports},
                **{f"tx_{port}": Out(beats) for port in ports},
                "csr_address": In(16),
                "csr_wdata": In(32),
                "csr_write": In(1),
                "csr_read": In(1),
                "csr_ready": Out(1),
                "csr_rdata": Out(32),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        p = self.parameters
        m = Module()
        m.submodules.receiver = receiver = Receiver(p)
        m.submodules.engine = engine = Engine(p)
        m.submodules.bridge = bridge = BridgeTable(p.ports, p.addresses)
        m.submodules.emitter = emitter = Emitter(p)
        m.submodules.egress = egress = Egress(p.words, p.ports, p.foreign_beats)
        m.submodules.registers = registers = Registers(p, len(Counter), absent=p.absent_counters)

        for port in range(p.ports):
            connect(m, flipped(getattr(self, f"rx_{port}")), getattr(receiver, f"rx_{port}"))
            connect(m, getattr(egress, f"tx_{port}"), flipped(getattr(self, f"tx_{port}")))
        connect(m, engine.learn, bridge.learn)
        connect(m, registers.command, engine.command)
        connect(m, engine.answer, registers.answer)

        came_up, went_down = Signal(p.ports), Signal(p.ports)
        m.d.sync += came_up.eq(registers.ports_up)
        counts = Signal(len(Counter))
        m.d.comb += [
            engine.arrival.eq(receiver.arrival),
            engine.there.eq(receiver.there),
            receiver.taken.eq(engine.taken),
            receiver.address.eq(Mux(emitter.busy, emitter.raw_address, engine.stage_address)),
            engine.stage_data.eq(receiver.beat_data),
            emitter.raw_data.eq(receiver.beat_data),
            bridge.ports_up.eq(registers.ports_up),
            went_down.eq(came_up & ~registers.ports_up),
            bridge.forget.eq(went_down),
            engine.went_down.eq(went_down),
            bridge.query_mac.eq(engine.query_mac),
            bridge.query_ingress.eq(engine.query_ingress),
            engine.bridge_idle.eq(bridge.idle),
            engine.result_mask.eq(bridge.result_mask),
            engine.ports_up.eq(registers.ports_up),
            emitter.order.eq(engine.order),
            emitter.begin.eq(engine.begin),
            engine.emitting.eq(emitter.busy),
            engine.bank_address.eq(emitter.bank_address),
            emitter.banks.eq(engine.banks),
            *([emitter.note.eq(engine.note)] if p.trees else []),
            emitter.room.eq(egress.room),
            egress.valid.eq(emitter.out_valid),
            egress.beat.eq(emitter.out_beat),
            egress.mask.eq(emitter.out_mask),
            counts.eq(engine.count),
            counts[Counter.TX].eq(emitter.out_valid & emitter.out_beat.first),
            counts[Counter.EGRESS_STALLS].eq(emitter.stalled),
            registers.count.eq(counts),
            registers.fault.eq(engine.fault),
            registers.busy.eq(engine.busy | ~receiver.idle | emitter.busy | emitter.draining),
            registers.csr_address.eq(self.csr_address),
            registers.csr_wdata.eq(self.csr_wdata),
            registers.csr_write.eq(self.csr_write),
            registers.csr_read.eq(self.csr_read),
            self.csr_ready.eq(registers.csr_ready),
            self.csr_rdata.eq(registers.csr_rdata),
            self.busy.eq(registers.busy),
        ]
        return m
