"""A program that has done all imports, and forks controllers: real ones, started in an instant.

A line of its input is ``NAME LIFE LOG`` and the arguments of ``inaproto``, as a JSON list; that one's process
id is the answer, ``started NAME LIFE PID``. What a controller says on its standard output comes as
``said NAME LIFE LINE``; an end that nobody brought about as ``ended NAME LIFE``. Controllers end with this
program, and a dead one keeps its process id until the next one of its name is started.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import random
import signal
import sys
from contextlib import suppress
from typing import Final, NoReturn

PR_SET_PDEATHSIG: Final = 1


class _Said(io.TextIOBase):
    """Whole lines with a word before them, each by one write."""

    def __init__(self, before: str) -> None:
        self._before = before
        self._text = ""

    def write(self, text: str) -> int:
        *lines, self._text = (self._text + text).split("\n")
        for line in lines:
            _say(f"{self._before} {line}")
        return len(text)


def _say(line: str) -> None:
    os.write(1, (line + "\n").encode())


def _be_controller(
    name: str, life: int, log: str, argv: list[str], libc: ctypes.CDLL, parent: int
) -> NoReturn:
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644), 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    random.seed()
    sys.stdout = _Said(f"said {name} {life}")

    from inaproto.cli import cli

    try:
        cli.main(argv, prog_name="inaproto")
    except SystemExit as end:
        sys.stderr.write(f"it ended: {end.code}\n")
    finally:
        sys.stderr.flush()
        _say(f"ended {name} {life}")
        os._exit(1)


def _import_all() -> None:
    """Import, and run once, all that a controller needs, so that a fork starts warm."""
    with suppress(ImportError):
        import psycopg  # noqa: F401
    from inaproto_controller.cluster import graph_file
    from inaproto_controller.planning.cluster_planner import ClusterPlanner, TreeWish
    from inaproto_controller.service import (
        command,  # noqa: F401
        daemon,  # noqa: F401
    )
    from inaproto_controller.service.store import postgresql as postgresql_store  # noqa: F401
    from inaproto_controller.service.store import sqlite as sqlite_store  # noqa: F401

    cluster = {
        "hosts": ["a", "b"],
        "switches": [{"name": "s", "jobs": 1}],
        "links": [{"between": ["a", "s"]}, {"between": ["b", "s"]}],
    }
    planner = ClusterPlanner(graph_file.parse_json(json.dumps(cluster).encode()))
    wishes = [TreeWish(1, ("a", "b"), None, None)]
    planner.enter(wishes)
    planner.build(wishes, {})


def main() -> None:
    _import_all()
    _say("ready")
    libc, parent = ctypes.CDLL(None), os.getpid()
    pids: dict[str, int] = {}
    for line in sys.stdin:
        name, life, log, argv = json.loads(line)
        if name in pids:
            os.waitpid(pids.pop(name), 0)
        pid = os.fork()
        if pid == 0:
            _be_controller(name, life, log, argv, libc, parent)
        pids[name] = pid
        _say(f"started {name} {life} {pid}")


if __name__ == "__main__":
    main()
