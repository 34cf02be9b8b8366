"""Builds the compiled kernels where there is a C compiler; a hook of hatchling, and a command.

``pip install`` and ``make venv`` run it: the shared object comes to lie beside its source and goes into the
wheel, which is then for this platform, with no tag of a Python, for the library knows none. Without a
compiler nothing is built, the wheel is pure, and the numpy code runs: no installation fails for want of a
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

FOLDER = "inaproto/core/kernels"
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


def build(tree: Path) -> str:
    """Build the library beside its source; returns why it was not built, or nothing."""
    folder = tree / FOLDER
    source, library = folder / "kernels.c", folder / "kernels.so"
    command = compiler()
    if not command:
        library.unlink(missing_ok=True)
        return "no C compiler"
    scratch = library.with_name(f"kernels-{os.getpid()}.new")
    parts = b"".join(part.read_bytes() for part in sorted(folder.glob("*.c")))  # which the first includes
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
        why = build(Path(self.root))
        if why:
            print(f"inaproto: kernels not compiled ({why}); the numpy code is used", file=sys.stderr)
            return
        build_data["artifacts"].append(f"{FOLDER}/kernels.so")
        if version != "editable":
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform}"


if __name__ == "__main__":
    reason = build(Path(__file__).resolve().parent.parent)
    print(f"not built: {reason}" if reason else "built")
