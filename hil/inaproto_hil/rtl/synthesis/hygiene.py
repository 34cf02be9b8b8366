"""What must not be in the RTL whatever it costs: loops, latches, memories that are read without a clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from amaranth.hdl._nir import CombinationalCycle

from inaproto_hil.rtl.synthesis.tools import (
    LIMIT_S,
    READ,
    YOSYS,
    Ports,
    folder_of,
    kept,
    run,
    to_rtlil,
    version,
)

_HYGIENE: Final = f"""
{READ}
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
        with folder_of(text, _HYGIENE) as folder:
            run(YOSYS, ["-q", "steps.ys"], folder, limit_s)
            found = warnings_of((folder / "check.txt").read_text(encoding="utf-8"))
            for file, what in _LISTS.items():
                cells = (folder / f"{file}.txt").read_text(encoding="utf-8").split("\n")
                found += [f"{what}: {cell}" for cell in cells if cell]
        return {"violations": found}

    answer, _ = kept(cache, (*version(YOSYS), _HYGIENE, text), compute)
    return list(answer["violations"])


def warnings_of(said: str) -> list[str]:
    """Of Yosys' ``check``, each with the lines that are indented below it."""
    found: list[str] = []
    for line in said.splitlines():
        if line.startswith("Warning: "):
            found.append(line.removeprefix("Warning: "))
        elif found and line.startswith("    "):
            found[-1] += f" {' '.join(line.split())}"
    return found
