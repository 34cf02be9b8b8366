"""LUTs, registers and memories of a design, as Yosys maps it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from inaproto.errors import LocalMisuse
from inaproto_hil.rtl.synthesis.hygiene import warnings_of
from inaproto_hil.rtl.synthesis.tools import (
    LIMIT_S,
    READ,
    YOSYS,
    Ports,
    ToolFailed,
    folder_of,
    kept,
    run,
    to_rtlil,
    version,
)

FAMILIES: Final = ("xcup", "xcu", "ecp5")
"""UltraScale+, UltraScale, ECP5."""


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


def _synthesis(family: str, name: str, *, memories_only: bool) -> str:
    if family not in FAMILIES:
        raise LocalMisuse(f"no family {family!r}: there are {', '.join(FAMILIES)}")
    if family == "ecp5":
        steps = f"synth_lattice -family ecp5 -noiopad -top {name}"
    else:
        steps = f"synth_xilinx -family {family} -flatten -noiopad -noclkbuf -top {name}"
    part = " -run begin:map_ffram" if memories_only else ""
    look = "tee -q -o check.txt check\ntee -q -o cells.json stat -json\n"
    return f"{READ}\n{steps}{part}\n{look}"


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
    found, _ = synthesised(text, name, family, memories_only=memories_only, cache=cache, limit_s=limit_s)
    return found


def synthesised(
    text: str, name: str, family: str, *, memories_only: bool = False, cache: Path | None, limit_s: float
) -> tuple[Resources, float]:
    steps = _synthesis(family, name, memories_only=memories_only)

    def compute() -> dict[str, Any]:
        with folder_of(text, steps) as folder:
            run(YOSYS, ["-q", "steps.ys"], folder, limit_s)
            found = warnings_of((folder / "check.txt").read_text(encoding="utf-8"))
            told = json.loads((folder / "cells.json").read_text(encoding="utf-8"))
        if found:
            raise ToolFailed(f"the netlist is no good: {'; '.join(found)}")
        return dict(told["design"]["num_cells_by_type"])

    cells, seconds = kept(cache, (*version(YOSYS), steps, text), compute)
    if memories_only:
        rams = {cell for cell, takes in _COUNTED.items() if takes and takes[0][0] in _MEMORIES}
        cells = {cell: count for cell, count in cells.items() if cell in rams}
    return counted(cells), seconds
