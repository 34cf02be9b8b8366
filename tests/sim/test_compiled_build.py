"""Two small modules are compiled for real; all of the program is when a campaign of 2000 seeds is run."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from inaproto_hil.compiled import build
from inaproto_hil.compiled.sources import fingerprint_of

SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
# All that is rewritten is in these, as mypyc alone would not take it or do it.
SHAPES = """from __future__ import annotations

from dataclasses import dataclass
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


def tail(data: bytes) -> bytes:
    return data[_TAIL]
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
