"""The fork server: a program that has made its imports, and forks processes that need them.

    python -P -m inaproto_hil.rigs.forking SOCKET PARENT

``SOCKET`` is a descriptor, the server's end of a pair of packet sockets. Each packet is a request
(:class:`Request` as JSON) with four descriptors: the standard input, output and error of the new process, and
a socket of its own, on which the server says its process id (with a descriptor of the process), and in the
end its wait status and its CPU seconds.

What is forked is a process like one that was started by its command line, but for the imports: it has its own
process id and group, environment, directory, name and random state, and no descriptor but the three. Names of
code objects, hash seed and the state of the collector are shared by all that one server has forked. It gets
SIGTERM when the server ends; and the server ends with ``PARENT``, however that ends.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import random
import resource
import runpy
import selectors
import signal
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any, Final

PR_SET_PDEATHSIG: Final = 1
PR_SET_NAME: Final = 15
CLONE_NEWNET: Final = 0x40000000
NAME_BYTES: Final = 15
REQUEST_BYTES: Final = 1 << 20
STARTED: Final = struct.Struct("!I")
"""Process id."""
ENDED: Final = struct.Struct("!id")
"""Wait status, and user and system time in seconds."""


@dataclass(frozen=True, slots=True)
class Request:
    """``command``: the words after ``inaproto``, or ``-m`` or a file and what Python takes after that."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    directory: str
    network: str = ""
    """Path of its network namespace; empty: that of the server."""

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, packet: bytes) -> Request:
        return cls(**json.loads(packet))


@dataclass(frozen=True, slots=True)
class _Forked:
    pid: int
    told: socket.socket


class Server:
    """One thread, which waits for requests and for the ends of what it forked."""

    def __init__(self, requests: socket.socket, parent: int) -> None:
        self._requests = requests
        self._selector = selectors.DefaultSelector()
        self._selector.register(requests, selectors.EVENT_READ)
        self._parent_fd = os.pidfd_open(parent)
        self._selector.register(self._parent_fd, selectors.EVENT_READ)
        self._pid = os.getpid()

    def serve(self) -> Request | None:
        """Return in each forked process what that is to do; in the server, at its end, nothing."""
        while True:
            for key, _ in self._selector.select():
                if key.fd == self._parent_fd:
                    return None
                if key.data is not None:
                    self._reap(key.fd, key.data)
                    continue
                packet, files, _, _ = socket.recv_fds(self._requests, REQUEST_BYTES, 4)
                if not packet:
                    return None
                request = Request.decode(packet)
                if self._fork(request, files):
                    return request

    def _reap(self, pidfd: int, forked: _Forked) -> None:
        _, status, used = os.wait4(forked.pid, 0)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        with forked.told, suppress(BrokenPipeError, ConnectionResetError):
            forked.told.send(ENDED.pack(status, used.ru_utime + used.ru_stime))

    def _fork(self, request: Request, files: list[int]) -> bool:
        """Whether this is the forked process."""
        warm(request.command)
        *standard, told_fd = files
        pid = os.fork()
        if pid == 0:
            self._begin(request, standard)
            return True
        for file in standard:
            os.close(file)
        told = socket.socket(fileno=told_fd)
        pidfd = os.pidfd_open(pid)
        self._selector.register(pidfd, selectors.EVENT_READ, _Forked(pid, told))
        with suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(told, [STARTED.pack(pid)], [pidfd])
        return False

    def _begin(self, request: Request, standard: list[int]) -> None:
        """Become a process of its own, which shares nothing with the server that can be changed."""
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != self._pid:
            os._exit(1)
        libc.prctl(PR_SET_NAME, request.name.encode()[:NAME_BYTES])
        os.setpgid(0, 0)
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                key.data.told.detach()
        self._requests.detach()
        self._selector.close()
        for number, file in enumerate(standard):
            os.dup2(file, number)
        os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        if request.network:
            network = os.open(request.network, os.O_RDONLY | os.O_CLOEXEC)
            if libc.setns(network, CLONE_NEWNET) != 0:
                os.write(2, f"setns {request.network}: errno {ctypes.get_errno()}\n".encode())
                os._exit(1)
            os.close(network)
        os.environ.clear()
        os.environ.update(request.environment)
        os.chdir(request.directory)
        random.seed()
        if "numpy.random" in sys.modules:
            sys.modules["numpy"].random.seed()


def warm(command: Sequence[str]) -> None:
    """Import, once, what ``command`` is going to import: done here, it need not be done in each fork."""
    warmer = _WARMERS.get(command[0], _warm_worker)
    if warmer not in _warmed:
        _warmed.add(warmer)
        warmer()
        gc.collect()
        gc.freeze()  # forks copy fewer pages


def _load(*modules: ModuleType) -> None:
    """Nothing to do: those who call it have imported them."""


def _warm_worker() -> None:
    import numpy.random

    import inaproto.client

    _load(numpy.random, inaproto.client)


def _warm_daemon() -> None:
    import inaproto.cli
    import inaproto.daemon.settings.config
    import inaproto.parts
    import inaproto_adapters.frames
    import inaproto_adapters.softnic

    _load(inaproto.cli, inaproto.daemon.settings.config, inaproto.parts)
    _load(inaproto_adapters.frames, inaproto_adapters.softnic)


def _warm_switch() -> None:
    import inaproto.daemon.switch.daemon
    import inaproto_adapters.memory

    _warm_daemon()
    _load(inaproto.daemon.switch.daemon, inaproto_adapters.memory)


def _warm_host() -> None:
    import inaproto.daemon.host.daemon

    _warm_daemon()
    _load(inaproto.daemon.host.daemon)


def _warm_server() -> None:
    import inaproto.daemon.models.parameter_server
    import inaproto.daemon.settings.models_file

    _warm_daemon()
    _load(inaproto.daemon.settings.models_file, inaproto.daemon.models.parameter_server)


def _warm_controller() -> None:
    """Run a first plan as well: that is when the planner's compiled functions are loaded."""
    _warm_daemon()
    with suppress(ImportError):
        import psycopg

        _load(psycopg)
    from inaproto_controller.cluster import graph_file
    from inaproto_controller.planning.cluster_planner import ClusterPlanner, TreeWished
    from inaproto_controller.service import command, daemon
    from inaproto_controller.service.store import postgresql as postgresql_store
    from inaproto_controller.service.store import sqlite as sqlite_store

    _load(command, daemon, postgresql_store, sqlite_store)
    cluster = {
        "hosts": ["a", "b"],
        "switches": [{"name": "s", "jobs": 1}],
        "links": [{"between": ["a", "s"]}, {"between": ["b", "s"]}],
    }
    planner = ClusterPlanner(graph_file.parse_json(json.dumps(cluster).encode()))
    wishes = [TreeWished(1, ("a", "b"), None, None)]
    planner.enter(wishes)
    planner.build(wishes, {})


_WARMERS: Final = {
    "switch": _warm_switch,
    "host": _warm_host,
    "server": _warm_server,
    "controller": _warm_controller,
}
_warmed: set[Any] = set()


def run(command: Sequence[str]) -> None:
    """What a Python that was started with these words runs."""
    first, *rest = command
    if first == "-m":
        sys.argv = list(rest)
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first.endswith(".py"):
        sys.argv = list(command)
        sys.path.insert(0, os.path.dirname(first))
        runpy.run_path(first, run_name="__main__")
    else:
        from inaproto.cli import main

        sys.argv = ["inaproto", *command]
        main()


def main(words: Sequence[str]) -> None:
    requests = socket.socket(fileno=int(words[0]))
    with suppress(ProcessLookupError):  # the parent has ended already
        request = Server(requests, int(words[1])).serve()
        if request is not None:
            run(request.command)


if __name__ == "__main__":
    main(sys.argv[1:])
