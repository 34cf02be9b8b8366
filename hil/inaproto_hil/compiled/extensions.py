"""The process that compiles: ``python -P -m inaproto_hil.compiled.extensions FOLDER JOBS [MODULE ...]``.

FOLDER holds the copy and is first on the path. What is compiled is what importing a world imports, so
that new modules come along by themselves, as one mypyc group: calls between its modules are direct. Each
module is its own C file, of which JOBS are compiled at a time. MODULEs are compiled instead if given.
"""

from __future__ import annotations

import importlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inaproto_hil.compiled.rewrite import rewrite

ROOTS: Final = (
    "inaproto.sim.frames.world",
    "inaproto.sim.campaign.kinds",
    "inaproto.sim.campaign.marks",
    "inaproto_adapters.softnic.engine",
)
"""Importing these imports all that runs in a world."""

INTERPRETED: Final = {
    "inaproto.errors": "interpreted modules derive exceptions from its own",
    "inaproto.sim.frames.draw.swarm": "reads its records from logs by their annotations, as pydantic does",
    "inaproto.wire.capture_messages": "as inaproto.wire.control_messages",
    "inaproto.wire.client_messages": "as inaproto.wire.control_messages",
    "inaproto.wire.control_fields": "reads annotations and their metadata at run time",
    "inaproto.wire.control_messages": "its annotations have metadata that is read at run time",
    "inaproto.wire.control_types": "interpreted messages derive from its own",
    "inaproto.wire.controller_messages": "as inaproto.wire.control_messages",
    "inaproto.wire.ina_messages": "as inaproto.wire.control_messages",
    "inaproto.wire.link_messages": "as inaproto.wire.control_messages",
    "inaproto.wire.push_pull_messages": "as inaproto.wire.control_messages",
    "inaproto.wire.sharing_messages": "as inaproto.wire.control_messages",
    "inaproto.wire.slot_messages": "as inaproto.wire.control_messages",
    "inaproto.wire.switch_messages": "as inaproto.wire.control_messages",
    "inaproto.wire.tree_messages": "as inaproto.wire.control_messages",
    "inaproto_adapters.softnic.nic": "the shell around the NIC, which no world runs",
}
"""Modules that are left as they are, and why; all ``__init__`` are as well."""

CONFIGURATION_NAME: Final = "mypy.ini"
CACHE_NAME: Final = "mypy-cache"
GROUP: Final = "inaproto_world"
OPTIMISATION: Final = "3"
FLAGS: Final = ("-fPIC", "-fvisibility=hidden", "-DNDEBUG", "-fwrapv", "-w")
_CONFIGURATION: Final = f"""[mypy]
explicit_package_bases = true
ignore_missing_imports = true
mypy_path = $MYPY_CONFIG_FILE_DIR
cache_dir = $MYPY_CONFIG_FILE_DIR/{CACHE_NAME}
"""


def compiler() -> str | None:
    """The C compiler: ``$CC``, that of this Python, or the system's, if it is there."""
    named = shlex.split(os.environ.get("CC") or "") or shlex.split(sysconfig.get_config_var("CC") or "")
    return next(filter(None, map(shutil.which, [*named[:1], "cc", "gcc", "clang"])), None)


def modules_of_worlds(folder: Path, roots: Iterable[str] = ROOTS) -> list[str]:
    """Of the modules in ``folder`` those that a world imports and that are to be compiled."""
    for name in roots:
        importlib.import_module(name)
    files = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
    inside = {name: Path(file) for name, file in files.items() if file and Path(file).is_relative_to(folder)}
    return sorted(
        name for name, file in inside.items() if name not in INTERPRETED and file.name != "__init__.py"
    )


@dataclass(frozen=True, slots=True)
class _Commands:
    """Of the C compiler."""

    cc: str
    include: Sequence[str]

    def compile(self, source: str, flags: Sequence[str]) -> str:
        target = source + ".o"
        includes = [f"-I{folder}" for folder in self.include]
        _run([self.cc, *FLAGS, *flags, *includes, "-c", source, "-o", target])
        return target

    def link(self, objects: Sequence[str], target: Path) -> None:
        shared = shlex.split(sysconfig.get_config_var("LDSHARED") or "cc -shared")[1:]
        _run([self.cc, *shared, *objects, "-o", str(target)])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = "\n".join(done.stderr.splitlines()[-20:])
        raise SystemExit(f"{' '.join(command[:1])} ended with {done.returncode} on {command[-1]}\n{said}")


def prepare(names: Iterable[str]) -> list[str]:
    """The files of modules below the current folder, which are rewritten now."""
    sources = [name.replace(".", "/") + ".py" for name in names]
    for path in map(Path, sources):
        path.write_text(rewrite(path.read_text(encoding="utf-8")), encoding="utf-8")
    Path(CONFIGURATION_NAME).write_text(_CONFIGURATION, encoding="utf-8")
    return sources


def compile_group(names: Sequence[str], jobs: int) -> None:
    """Compile modules below the current folder, each to an extension module beside its source."""
    from mypyc.build import mypycify

    sources = prepare(names)
    extensions = mypycify(
        ["--config-file", CONFIGURATION_NAME, *sources],
        opt_level=OPTIMISATION,
        debug_level="0",
        multi_file=True,
        group_name=GROUP,
        target_dir="c",
    )
    include = {sysconfig.get_path("include"), sysconfig.get_path("platinclude")}
    cc = compiler()
    assert cc is not None, "looked for before this process was started"
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    # The largest files first: none is begun when there is nothing left to do beside it.
    files = [(source, extension) for extension in extensions for source in extension.sources]
    files.sort(key=lambda file: -os.path.getsize(file[0]))
    with ThreadPoolExecutor(jobs) as pool:
        commands = {id(one): _Commands(cc, [*include, *one.include_dirs]) for one in extensions}
        made = pool.map(
            lambda file: commands[id(file[1])].compile(file[0], file[1].extra_compile_args or []), files
        )
        objects = dict(zip((source for source, _ in files), made, strict=True))
        linked = pool.map(
            lambda one: commands[id(one)].link(
                [objects[source] for source in one.sources], Path(one.name.replace(".", "/") + suffix)
            ),
            extensions,
        )
        for _ in linked:
            pass


def main(arguments: Sequence[str]) -> None:
    folder, jobs, *names = arguments
    os.chdir(folder)
    compile_group(names or modules_of_worlds(Path(folder)), int(jobs))


if __name__ == "__main__":
    main(sys.argv[1:])
