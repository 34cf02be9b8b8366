"""The clock that a design reaches on an ECP5, placed and routed between registers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from amaranth.hdl import Cat, ClockDomain, ClockSignal, Elaboratable, Module, ResetSignal, Signal, Value
from amaranth.hdl._ir import PortDirection
from amaranth.lib import wiring

from inaproto_hil.rtl.parameters import Parameters
from inaproto_hil.rtl.synthesis.tools import (
    LIMIT_S,
    NEXTPNR,
    READ,
    SEED,
    YOSYS,
    Ports,
    folder_of,
    kept,
    run,
    to_rtlil,
    version,
)

DEVICE: Final = ("--85k", "--package", "CABGA756", "--speed", "6")
"""The largest ECP5, of the slowest grade."""
SMALL_SIZES: Final = Parameters(ports=2, words=2, rings=1, children=2, slots=16, mtu=64, addresses=4)
"""At the usual sizes the engine and the emitter are larger than :data:`DEVICE`; at these two thirds of it are
left to the whole."""
TARGET_MHZ: Final = 200
"""What nextpnr strives for: more than most blocks reach, so that it does not stop before."""
PLACERS: Final = ("heap", "static")
ROUTERS: Final = ("router1", "router2")


@dataclass(frozen=True, slots=True)
class Effort:
    """What nextpnr is asked for. Equal answers need equal ones of it."""

    seed: int = SEED
    placer: str = "heap"
    """heap packs cells densely even where two thirds of the chip are empty, for short paths; around many wide
    multiplexers wires run out. static spreads them evenly."""
    router: str = "router1"
    """router1 makes one connection after the other and takes up what is in the way: short paths, but it goes
    round in circles where wires are few. router2 lays all and makes wires dear that several want."""

    @property
    def options(self) -> tuple[str, ...]:
        asked = ("--freq", f"{TARGET_MHZ}", "--seed", f"{self.seed}", "--timing-allow-fail")
        return (*DEVICE, *asked, "--placer", self.placer, "--router", self.router)


@dataclass(frozen=True, slots=True)
class Placed:
    """A design in a ring of registers (:class:`Ring`), placed and routed on an ECP5."""

    mhz: float
    logic_ns: float
    routing_ns: float
    """Both of the longest path from register to register."""
    cells: int
    """On that path, with both registers; a step of a carry chain is one."""
    start: str
    end: str
    lut: int
    ff: int
    ebr: int
    dsp: int
    """What nextpnr placed, the ring included."""
    ring_ff: int
    """Registers of the ring, at most: those that a constant drives are not placed."""


class Ring(Elaboratable):
    """A block with four pins instead of thousands: a shift register is its inputs, and its outputs go into
    registers whose parity comes out, a tree of four inputs a cycle. So each path of the block, also one from
    input to output, is one between registers, and all of the block is kept."""

    def __init__(self, block: Any, ports: Ports | None = None) -> None:
        self.clk = Signal()
        self.rst = Signal()
        self.shifted_in = Signal()
        self.parity = Signal()
        self._block = block
        found = dict(_ports_of(block)) if ports is None else dict(ports)
        self._inputs = _bits(found, PortDirection.Input)
        self._outputs = _bits(found, PortDirection.Output)
        self.ffs: int = 1 + len(self._inputs)
        bits = len(self._outputs)
        while bits:
            self.ffs += bits
            bits = -(-bits // 4) if bits > 1 else 0

    @property
    def ports(self) -> Ports:
        into, out = PortDirection.Input, PortDirection.Output
        return {
            "clk": (self.clk, into),
            "rst": (self.rst, into),
            "shifted_in": (self.shifted_in, into),
            "parity": (self.parity, out),
        }

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.domains.sync = ClockDomain("sync")
        m.domains.ring = ClockDomain("ring", reset_less=True)
        m.d.comb += [ClockSignal("sync").eq(self.clk), ClockSignal("ring").eq(self.clk)]
        held_reset = Signal()  # a register, as a reset that came from a pin would be on no path
        m.d.ring += held_reset.eq(self.rst)
        m.d.comb += ResetSignal("sync").eq(held_reset)
        m.submodules.block = self._block
        if len(self._inputs):
            shift = Signal(len(self._inputs))
            m.d.ring += shift.eq(Cat(self.shifted_in, shift))
            m.d.comb += self._inputs.eq(shift)
        bits: Value = self._outputs
        stage = 0
        while len(bits):
            held = Signal(len(bits), name=f"parity_{stage}")
            m.d.ring += held.eq(bits)
            if len(held) == 1:
                m.d.comb += self.parity.eq(held)
                break
            bits = Cat(held[start : start + 4].xor() for start in range(0, len(held), 4))
            stage += 1
        return m


def _ports_of(block: Any) -> Iterable[tuple[str, tuple[Any, PortDirection]]]:
    for path, member, value in block.signature.flatten(block):
        direction = PortDirection.Input if member.flow == wiring.In else PortDirection.Output
        yield "__".join(map(str, path)), (value, direction)


def _bits(ports: Ports, direction: PortDirection) -> Value:
    return Cat(Value.cast(value) for value, way in ports.values() if way is direction)


def place_ecp5(
    design: Any,
    ports: Ports | None = None,
    *,
    effort: Effort = Effort(),
    cache: Path | None = None,
    limit_s: float = LIMIT_S,
) -> Placed:
    """The clock that ``design``, in a :class:`Ring`, reaches on :data:`DEVICE`. Raises ``ToolFailed``, also
    where it does not fit."""
    return placed(design, ports, effort=effort, cache=cache, limit_s=limit_s)[0]


def placed(
    design: Any,
    ports: Ports | None,
    *,
    effort: Effort,
    cache: Path | None,
    limit_s: float,
    on_step: Callable[[str], None] = lambda _step: None,
) -> tuple[Placed, float]:
    """As :func:`place_ecp5`, with the CPU seconds that it took. ``on_step`` learns what the tools are at."""
    ring = Ring(design, ports)
    text = to_rtlil(ring, ring.ports, "ring")
    steps = f"{READ}\nsynth_lattice -family ecp5 -noiopad -top ring -json ring.json\n"

    def compute() -> dict[str, Any]:
        with folder_of(text, steps) as folder:
            on_step("synthesis between registers")
            run(YOSYS, ["-q", "steps.ys"], folder, limit_s)
            files = ["--json", "ring.json", "--report", "report.json", "--lpf-allow-unconstrained"]
            run(NEXTPNR, [*effort.options, *files], folder, limit_s, lambda line: _tell_step(line, on_step))
            report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        return asdict(_read_report(report, ring.ffs))

    key = (*version(YOSYS), *version(NEXTPNR), steps, *effort.options, text)
    answer, seconds = kept(cache, key, compute)
    return Placed(**answer), seconds


_PLACING: Final = re.compile(r"at iteration #(\d+)")
_ROUTING: Final = re.compile(r"\d+ \|(?:[^|]*\|){2} *(\d+) *\|")
"""A row of router1's table: its fourth column counts connections that are still to be made."""
_NEGOTIATING: Final = re.compile(r"iter=\d+ wires=\d+ overused=(\d+) ")
"""A round of router2."""


def _tell_step(line: str, on_step: Callable[[str], None]) -> None:
    """Where a line of nextpnr tells how far it is."""
    if found := _PLACING.search(line):
        on_step(f"placing, iteration {found[1]}")
    elif found := _ROUTING.search(line):
        on_step(f"routing, {int(found[1]):,} connections left")
    elif found := _NEGOTIATING.search(line):
        on_step(f"routing, {int(found[1]):,} wires that several nets want")


def _read_report(report: Mapping[str, Any], ring_ffs: int) -> Placed:
    (clock,) = report["fmax"].values()  # the ring has one
    within = [
        path["path"]
        for path in report["critical_paths"]
        if path["from"] == path["to"] and path["from"].startswith("posedge")
    ]
    steps = within[0] if within else []
    used = {cell: count["used"] for cell, count in report["utilization"].items()}
    routing = [step["delay"] for step in steps if step["type"] == "routing"]
    return Placed(
        mhz=round(clock["achieved"], 1),
        logic_ns=round(sum(step["delay"] for step in steps) - sum(routing), 2),
        routing_ns=round(sum(routing), 2),
        cells=1 + len(routing),
        start=steps[0]["from"]["cell"] if steps else "",
        end=steps[-1]["to"]["cell"] if steps else "",
        lut=used["TRELLIS_COMB"],
        ff=used["TRELLIS_FF"],
        ebr=used["DP16KD"],
        dsp=used["MULT18X18D"],
        ring_ff=ring_ffs,
    )
