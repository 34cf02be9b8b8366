"""Registers are written at any moment of traffic: no raw gradient ever leaves on a registered connection.

A receiver would take it for a result (NetReduce 3.2). What is written is what a control side writes, right
and wrong: counters latched and cleared, ports up and down, commands cut short, rings and connections put,
taken out, and put with nonsense.
"""

from __future__ import annotations

import pytest

pytest.importorskip("amaranth")

from random import Random

from inaproto.wire.ina_header import FLAG_RESULT, FLAGS_OFFSET, Op
from inaproto.wire.packet import decode_packet
from inaproto_adapters.fpga import register_map as registers
from inaproto_adapters.fpga.at_once import AtOnceBus, at_once
from inaproto_adapters.fpga.device import FpgaDevice
from inaproto_adapters.fpga.register_map import Table
from inaproto_hil.rtl.equivalence.traffic import Campaign
from inaproto_hil.rtl.verilated.model import Model
from tests.rtl.builds import SMALL, library

pytestmark = pytest.mark.rtl

OPENING = {0x06, 0x0A, 0x0B}
WRITES = range(0x06, 0x0C)
OP_OFFSET = 6
TELLING_BYTES = 32
"""A sum of fewer may well be what somebody sent."""


def disturb(rng: Random, model: Model) -> None:
    """One write, as a control side may do it at the worst moment; connections stay registered."""
    match rng.choices(range(6), (160, 40, 160, 160, 1, 160))[0]:
        case 0:
            model.write32(registers.CTRL, rng.randrange(4))
        case 1:
            model.write32(registers.PORTS, rng.randrange(1 << SMALL.ports))
        case 2:
            model.write32(registers.TBL_DATA + 4 * rng.randrange(8), rng.getrandbits(32))
        case 3:
            get = registers.TBL_CMD_GET.at(1) | registers.TBL_CMD_TABLE.at(rng.randrange(4))
            model.write32(registers.TBL_CMD, get | registers.TBL_CMD_INDEX.at(rng.randrange(8)))
        case 4:  # a ring of nonsense, or the end of one
            put = registers.TBL_CMD_PUT.at(1) | registers.TBL_CMD_TABLE.at(Table.RING)
            model.write32(registers.TBL_CMD, put | registers.TBL_CMD_INDEX.at(rng.randrange(SMALL.rings)))
        case _:
            model.read32(registers.CNT + 4 * rng.randrange(64))


def test_nothing_raw_leaves_whatever_is_written_when() -> None:
    results = [results_of(seed) for seed in range(6)]
    assert sum(results) > 100, "else there was little to get out"


def results_of(seed: int) -> int:
    """Packets that left on registered connections, all of them results, in a campaign that is disturbed."""
    rng, model = Random(seed), Model(library(SMALL), SMALL)
    device = at_once(FpgaDevice.identify(AtOnceBus(model)))
    at_once(device.set_ports_up(range(SMALL.ports)))
    campaign = Campaign(seed, SMALL, 1500, changes=False)
    for spec in campaign.specs:
        at_once(device.install(spec))
    registered = {flow.connection for spec in campaign.specs for flow in spec.flows}
    sent: set[bytes] = set()
    # Connections of whose results some are the least or the largest of what was sent.
    extremes: set[tuple[bytes, bytes, int]] = set()
    results = 0
    for port, frame in campaign.arrivals():
        model.send(port, frame)
        packet = decode_packet(frame)
        if packet is not None and packet.opcode in WRITES:
            payload = bytes(packet.payload())
            sent.add(payload)
            if packet.opcode in OPENING and payload[OP_OFFSET : OP_OFFSET + 1] != bytes([Op.SUM]):
                extremes.add((packet.src_ip, packet.dst_ip, packet.dest_qp))
        out = []
        for _ in range(rng.randrange(4)):
            out += model.clock(rng.randrange(120))
            disturb(rng, model)
        model.write32(registers.PORTS, (1 << SMALL.ports) - 1)
        out += model.run()
        campaign.heard(out)
        for _, left in out:
            packet = decode_packet(left)
            if packet is None or packet.opcode not in WRITES:
                continue
            connection = packet.src_ip, packet.dst_ip, packet.dest_qp
            if connection not in registered:
                continue
            results += 1
            payload = bytes(packet.payload())
            if packet.opcode in OPENING:
                assert payload[FLAGS_OFFSET] & FLAG_RESULT
            elif len(payload) >= TELLING_BYTES and connection not in extremes:
                assert payload not in sent
    model.close()
    assert sent
    return results
