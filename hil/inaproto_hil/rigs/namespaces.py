"""Network namespaces: machines with links of their own, on this one.

A namespace here has no name: it lives as long as a descriptor or a process holds it, so nothing is left
behind, however its user ends, and no interface of the machine is touched.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from inaproto.errors import Unsupported
from inaproto_hil.rigs.cluster import ClusterError

_CLONE_NEWNET: Final = 0x40000000
_COMMAND_S: Final = 600
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_OWN: Final = "/proc/thread-self/ns/net"


class Namespace:
    """Made by :func:`namespaces`; IPv6 is off, so that the kernel says nothing unasked."""

    def __init__(self, title: str) -> None:
        self.title = title
        before = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _call(_LIBC.unshare(_CLONE_NEWNET), "unshare")
            try:
                self._fd = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
                for scope in ("all", "default"):
                    setting = Path(f"/proc/sys/net/ipv6/conf/{scope}/disable_ipv6")
                    if setting.exists():
                        setting.write_text("1")
            finally:
                _call(_LIBC.setns(before, _CLONE_NEWNET), "setns")
        finally:
            os.close(before)
        self.ip("link", "set", "lo", "up")

    @property
    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    @contextmanager
    def entered(self) -> Iterator[None]:
        """This thread is in the namespace: sockets that it opens are, and stay so."""
        before = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
        _call(_LIBC.setns(self._fd, _CLONE_NEWNET), "setns")
        try:
            yield
        finally:
            _call(_LIBC.setns(before, _CLONE_NEWNET), "setns")
            os.close(before)

    def command(self, *words: str) -> list[str]:
        """The command line that runs ``words`` in here."""
        return ["nsenter", f"--net={self.path}", "--", *words]

    def run(self, *words: str, **rest: Any) -> str:
        """What a command printed. Raises ``ClusterError`` with its words if it failed."""
        done = subprocess.run(
            self.command(*words),
            capture_output=True,
            text=True,
            timeout=rest.pop("timeout", _COMMAND_S),
            check=False,
            **rest,
        )
        if done.returncode != 0:
            raise ClusterError(f"{self.title}: {' '.join(words)}: {done.stdout}{done.stderr}")
        printed: str = done.stdout
        return printed

    def ip(self, *words: str) -> str:
        return self.run("ip", *words)

    def write(self, setting: str, value: str) -> None:
        """Set ``/proc/sys/net/SETTING``."""
        self.run("sh", "-c", f"echo {value} > /proc/sys/net/{setting}")

    def close(self) -> None:
        os.close(self._fd)


def join(left: Namespace, left_name: str, right: Namespace, right_name: str, *, mtu: int = 1500) -> None:
    """A cable: a pair of interfaces, both up."""
    peer = ("peer", "name", right_name, "mtu", str(mtu), "netns", right.path)
    left.ip("link", "add", left_name, "mtu", str(mtu), "type", "veth", *peer)
    left.ip("link", "set", left_name, "up")
    right.ip("link", "set", right_name, "up")


def check_namespaces() -> None:
    """Raises ``Unsupported`` where there can be none."""
    for name in ("ip", "tc", "nsenter", "setpriv"):
        if shutil.which(name) is None:
            raise Unsupported(name, "not on PATH; apt install iproute2 util-linux")
    try:
        Namespace("probe").close()
    except PermissionError as error:
        raise Unsupported("network namespaces", f"{error}; run as root") from None


@contextmanager
def namespaces(*titles: str) -> Iterator[Sequence[Namespace]]:
    """One for each title."""
    made: list[Namespace] = []
    try:
        for title in titles:
            made.append(Namespace(title))  # noqa: PERF401  those before a failure are closed
        yield made
    finally:
        for namespace in made:
            namespace.close()


def _call(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
