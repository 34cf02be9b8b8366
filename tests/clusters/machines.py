"""A switch daemon between machines: each a network namespace with one cable to the switch's."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from tests.daemon.test_cli_daemons import COMMAND, DEADLINE_S, Daemon, environment
from tests.namespaces import Namespace, join, namespaces

ETH_P_ALL: Final = 3
SOL_PACKET: Final = 263
AUXDATA: Final = 8
VNET_HDR: Final = 15
IGNORE_OUTGOING: Final = 23


class Bench:
    """Hosts 0 and 1 have interfaces ``eth0``, the switch ``sw0`` and ``sw1``."""

    def __init__(
        self, directory: Path, switch: Namespace, hosts: Sequence[Namespace], mtu: int, adapter: str
    ) -> None:
        self.directory = directory
        self.adapter = adapter
        self.switch = switch
        self.hosts = hosts
        self.ips = [f"10.9.0.{i + 1}" for i in range(len(hosts))]
        self.ports = [f"sw{i}" for i in range(len(hosts))]
        self._stack = ExitStack()
        for i, host in enumerate(hosts):
            join(host, "eth0", switch, self.ports[i], mtu=mtu)
            host.ip("addr", "add", f"{self.ips[i]}/24", "dev", "eth0")

    def daemon(self, where: Namespace, *arguments: str, only: str = "") -> Daemon:
        """A daemon in a namespace, if so asked with one capability alone; killed at the end of the test."""
        bounds = f"-all,+{only}"
        limited = ("setpriv", f"--bounding-set={bounds}", f"--inh-caps={bounds}") if only else ()
        words = where.command(*limited, COMMAND, *arguments)
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
        )
        self._stack.callback(_end, process)
        return Daemon(process)

    def start_switch(self, *arguments: str, only: str = "") -> Daemon:
        """With all its ports attached."""
        ports = [word for port in self.ports for word in ("--port", f"{self.adapter}:{port}")]
        options = ("--dir", str(self.directory), *ports, *arguments)
        switch = self.daemon(self.switch, "switch", *options, only=only)
        assert switch.ready_line.startswith("ready"), switch.process.communicate(timeout=DEADLINE_S)
        self.wait(lambda status: all(link["is_attached"] for link in status["links"]), "all links attached")
        return switch

    def status(self) -> dict[str, Any]:
        done = subprocess.run(
            [COMMAND, "status", "--json", "--dir", str(self.directory)],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            env=environment(),
            check=False,
        )
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def wait(self, holds: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        """Until the switch's status is as asked; returns it."""
        end = time.monotonic() + DEADLINE_S
        while True:
            switch: dict[str, Any] | None = self.status()["switch"]
            assert switch is not None, "the switch has ended"
            if holds(switch):
                return switch
            assert time.monotonic() < end, f"never came: {what}; {switch['links']} {switch['jobs']}"

    def drops(self) -> dict[str, dict[str, int]]:
        """What the ports dropped, by name."""
        return {port["name"]: port["drops"] for port in self.status()["switch"]["ports"] if port["drops"]}

    def raw(self, where: Namespace, interface: str, *, vnet: bool = False) -> socket.socket:
        """A packet socket, apart from everything that the switch uses."""
        with where.entered():
            sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self._stack.callback(sock.close)
        sock.setsockopt(socket.SOL_SOCKET, 33, 32 << 20)  # SO_RCVBUFFORCE
        sock.setsockopt(SOL_PACKET, IGNORE_OUTGOING, 1)
        sock.setsockopt(SOL_PACKET, AUXDATA, 1)
        if vnet:
            sock.setsockopt(SOL_PACKET, VNET_HDR, 1)
        sock.settimeout(DEADLINE_S)
        with where.entered():
            sock.bind((interface, ETH_P_ALL))
        return sock

    def close(self) -> None:
        self._stack.close()


def received_frame(sock: socket.socket) -> bytes:
    """The next frame as it was on the wire, its VLAN tag put back."""
    data, ancillary, _, _ = sock.recvmsg(1 << 17, 256)
    for level, kind, value in ancillary:
        if (level, kind) == (SOL_PACKET, AUXDATA):
            status, _, _, _, _, tci, tpid = struct.unpack("=IIIHHHH", value)
            if status & 0x10:
                return data[:12] + struct.pack(">HH", tpid, tci) + data[12:]
    return data


@contextmanager
def bench(directory: Path, *, mtu: int = 1500, hosts: int = 2, adapter: str = "packet") -> Iterator[Bench]:
    """``adapter``: of the daemons' ports."""
    titles = ["switch", *(f"host {i}" for i in range(hosts))]
    with namespaces(*titles) as (switch, *others):
        made = Bench(directory, switch, others, mtu, adapter)
        try:
            yield made
        finally:
            made.close()


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
    print(process.communicate(timeout=DEADLINE_S)[1])  # shown of a test that failed
