"""Builds the compiled kernels where there is a C compiler; a hook of hatchling, and a command.

``pip install`` and ``make venv`` run it: each shared object comes to lie beside its source and goes into the
wheel, which is then for this platform, with no tag of a Python, for the libraries know none. Without a
compiler nothing is built, the wheel is pure, and the Python code runs: no installation fails for want of a
compiler, or by one.

``CC`` names the compiler; the default is the first of cc, gcc and clang. To build alone:
.venv/bin/python deploy/kernels_build.py
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zlib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = "inaproto/core/kernels/kernels.c", "adapters/inaproto_adapters/frames/ports.c"
FLAGS = ["-O3", "-std=gnu11", "-fPIC", "-shared", "-ffp-contract=off"]
"""No fused additions: sums are those of the element type, rounded one by one."""
SECONDS_MAX = 120


def compiler() -> list[str]:
    """The command, or nothing if there is none."""
    named = shlex.split(os.environ.get("CC", ""))
    if named:
        return named if shutil.which(named[0]) else []
    found = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
    return [found] if found else []


def build(tree: Path) -> list[str]:
    """Build each library beside its source; returns why some were not built."""
    reasons = [(source, _build(tree / source)) for source in SOURCES]
    return [f"{source}: {why}" for source, why in reasons if why]


def _build(source: Path) -> str:
    """Returns why it was not built, or nothing."""
    library = source.with_suffix(".so")
    command = compiler()
    if not command:
        library.unlink(missing_ok=True)
        return "no C compiler"
    scratch = source.with_name(f"{source.stem}-{os.getpid()}.new")
    parts = b"".join(part.read_bytes() for part in sorted(source.parent.glob("*.c")))  # which it may include
    version = f"-DSOURCE={zlib.crc32(parts)}u"
    try:
        made = subprocess.run(
            [*command, *FLAGS, version, "-o", str(scratch), str(source)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        if made.returncode:
            library.unlink(missing_ok=True)
            return f"{shlex.join(command)} failed: {made.stdout.strip().splitlines()[-1:]}"
        scratch.replace(library)  # processes that have the old one keep it
    except (OSError, subprocess.SubprocessError) as error:
        library.unlink(missing_ok=True)
        return str(error)
    finally:
        scratch.unlink(missing_ok=True)
    return ""


class KernelsHook(BuildHookInterface[Any]):
    """Before a wheel or an editable installation is made."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        for why in build(Path(self.root)):
            print(f"inaproto: not compiled, the Python code is used: {why}", file=sys.stderr)
        built = [
            str(Path(source).with_suffix(".so"))
            for source in SOURCES
            if Path(self.root, source).with_suffix(".so").exists()
        ]
        build_data["artifacts"] += built
        if built and version != "editable":
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform}"


if __name__ == "__main__":
    reasons = build(Path(__file__).resolve().parent.parent)
    print("\n".join(f"not built: {why}" for why in reasons) if reasons else "built")
