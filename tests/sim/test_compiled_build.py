"""Two small modules are compiled for real; all that a world runs is looked at as mypyc would see it.

All of it is compiled when a campaign of 2000 seeds is run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from inaproto_hil.compiled import build
from inaproto_hil.compiled.sources import fingerprint_of, packages

SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
# All that is rewritten is in these, as mypyc alone would not take it or do it.
SHAPES = """from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from inaproto.hosts import Host

_TAIL: Final = slice(2, 4)


class Post(NamedTuple):
    slot: int


class Kept(Post):
    __slots__ = ()


@dataclass(slots=True)
class Flow:
    sender: Host
    view: memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    rank: int = 0
    key: int = field(repr=False)

    def __post_init__(self) -> None:
        assert self.key


class Chunk(NamedTuple):
    at: int
    nbytes: int = 4

    @property
    def end(self) -> int:
        return self.at + self.nbytes


def tail(data: bytes) -> bytes:
    return data[_TAIL]


def end_of(chunk: object) -> int:
    match chunk:
        case Chunk(at, nbytes):
            assert at + nbytes == chunk.end
            return chunk.end
        case _:
            return 0
"""
HOSTS = """from __future__ import annotations

from inaproto.shapes import Flow


class Host:
    def flow(self) -> Flow:
        return Flow(self, memoryview(b"ab"))
"""
SHOW = """
from inaproto import hosts, shapes
assert hosts.Host().flow().view == b"ab"
assert isinstance(shapes.Kept(3), shapes.Post) and shapes.Kept(3) == (3,)
assert shapes.tail(b"abcdef") == b"cd"
assert repr(shapes.Header(key=2)) == "Header(rank=0)" and shapes.Header(key=2) != shapes.Header(key=3)
assert {shapes.Chunk(1), shapes.Chunk(at=1, nbytes=4)} == {shapes.Chunk(1)}
assert shapes.end_of(shapes.Chunk(2)) == 6
print(hosts.__file__, shapes.__file__)
"""


def test_modules_are_compiled_and_come_first(
    program: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program("gcc")
    source = tmp_path / "source" / "inaproto"
    source.mkdir(parents=True)
    for name, text in (("__init__", ""), ("shapes", SHAPES), ("hosts", HOSTS)):
        (source / f"{name}.py").write_text(text)
    monkeypatch.setattr(build, "packages", lambda: {"inaproto": source})
    root = tmp_path / "cache"
    cache = build.Cache(root, fingerprint_of({"inaproto": source}))
    folder = build.build(cache, modules=("inaproto.shapes", "inaproto.hosts"), check=False)
    assert cache.find() == folder
    assert sorted(path.name for path in root.iterdir()) == sorted((cache.key, "lock"))
    path = os.pathsep.join([str(folder), *sys.path])
    shown = subprocess.run(
        [sys.executable, "-P", "-c", SHOW],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.split() == [f"{folder}/inaproto/{name}{SUFFIX}" for name in ("hosts", "shapes")]


# Run with a copy of the source first on the path.
LOOK = """
import os, sys
from pathlib import Path
import inaproto_hil.soak.block
from inaproto_hil.compiled.extensions import modules_of_worlds
folder = Path.cwd()
names = set(modules_of_worlds(folder))
for name, module in sorted(sys.modules.items()):
    if name.startswith("inaproto") and name not in names:
        for one in vars(module).values():
            if isinstance(one, type) and one.__module__ == name:
                for base in one.__mro__:
                    if base.__module__ in names:
                        print(f"{name}.{one.__name__} derives from {base.__module__}.{base.__name__}")
    for one in vars(module).values() if name in names else ():
        if isinstance(one, type) and one.__module__ == name and "__slots__" in vars(one):
            for base in one.__mro__[1:]:
                if base.__module__.startswith("inaproto") and base.__module__ not in names:
                    print(f"{name}.{one.__name__} has slots and an interpreted base, {base.__name__}")
"""
CHECK = """
import sys
from pathlib import Path
from mypy import api
from inaproto_hil.compiled.extensions import CONFIGURATION_NAME, modules_of_worlds, prepare
said, _, status = api.run(["--config-file", CONFIGURATION_NAME, *prepare(modules_of_worlds(Path.cwd()))])
print(said if status else "sound")
"""


@pytest.mark.parametrize(("look", "expected"), [(LOOK, ""), (CHECK, "sound\n")], ids=["bases", "types"])
def test_all_that_a_world_runs_can_be_compiled(look: str, expected: str, tmp_path: Path) -> None:
    """No interpreted class derives from a compiled one; what is rewritten is sound."""
    for name, folder in packages().items():
        shutil.copytree(folder, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shown = subprocess.run(
        [sys.executable, "-P", "-c", look],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout == expected
