"""Where a check looks: the machine's files and programs, what was asked, what its daemons say.

Invariant: a check reads; nothing is changed on the machine.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

PROGRAM_S: Final = 10.0
FILE_BYTES_MAX: Final = 1 << 20
_SYSTEM_PROGRAMS: Final = ("/usr/local/sbin", "/usr/sbin", "/sbin")


class Ran(NamedTuple):
    """``output`` is both streams' text."""

    status: int
    output: str


RunProgram = Callable[[Sequence[str]], Ran | None]
"""None where there is no such program, or none that this user may run."""
RoundTrip = Callable[[str, str], int | None]
"""``RoundTrip(own_ip, peer_ip)``: ns, None where nothing came back."""


def run_program(argv: Sequence[str]) -> Ran | None:
    try:
        ended = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PROGRAM_S,
            check=False,
            env=_environment(),
        )
    except OSError:
        return None
    except subprocess.TimeoutExpired:
        return Ran(124, f"no answer within {PROGRAM_S:g} s")
    return Ran(ended.returncode, ended.stdout.decode("utf-8", "replace"))


def _environment() -> dict[str, str]:
    """In many distributions users' PATH lacks where ethtool and nft are, which they may run all the same."""
    path = os.environ.get("PATH", os.defpath)
    return {**os.environ, "PATH": os.pathsep.join((path, *_SYSTEM_PROGRAMS)), "LC_ALL": "C"}


@dataclass(frozen=True, slots=True)
class Asked:
    """Options of the command. Rates are bit/s, times ns, tensors bytes; 0 where not given."""

    ip: str = ""
    peer: str = ""
    interface: str = ""
    nic: str = "auto"
    """verbs, softnic, or auto: verbs where the machine has RDMA devices."""
    mtu: int = 0
    message_packets: int = 0
    window_messages: int = 0
    transport_timeout: int = -1
    bandwidth: int = 0
    round_trip_ns: int = 0
    skew_ns: int = 500_000_000
    """How late ranks may be for an all-reduce."""
    tensor_bytes: int = 0
    collective: str = ""
    """A library that sums, as the setting of host daemons has it; empty: the one that they have."""


@dataclass(slots=True)
class Site:
    """``root`` is ``/`` but in tests."""

    asked: Asked = field(default_factory=Asked)
    root: Path = Path("/")
    run: RunProgram = run_program
    round_trip: RoundTrip = lambda own, peer: None
    switches: Sequence[Mapping[str, Any]] = ()
    """Status of each switch that answered."""
    hosts: Sequence[Mapping[str, Any]] = ()
    problems: Sequence[str] = ()
    """Problems of asking them."""
    daemons_asked: str = ""
    """Where; empty if nowhere."""
    controller_socket: Path | None = None
    """Socket for hosts and switches of a controller, in the directory that was asked."""
    is_root: bool = field(default_factory=lambda: os.geteuid() == 0)
    again: str = "inaproto doctor"
    """The command that looks here once more."""
    status: str = "inaproto status"
    """The command that shows the same daemons."""

    def read(self, path: str) -> str | None:
        """Text of a file, stripped; None if it cannot be read. ``path`` is absolute."""
        try:
            with (self.root / path.lstrip("/")).open("rb") as file:
                return file.read(FILE_BYTES_MAX).decode("utf-8", "replace").strip()
        except OSError:
            return None

    @property
    def has_systemd(self) -> bool:
        return (self.root / "run/systemd/system").is_dir()

    def number(self, path: str) -> int | None:
        text = self.read(path)
        try:
            return int(text or "")
        except ValueError:
            return None

    def names(self, path: str) -> list[str]:
        """Names of the files in a directory, sorted."""
        try:
            return sorted(entry.name for entry in (self.root / path.lstrip("/")).iterdir())
        except OSError:
            return []

    # --- what the checks of one link share

    @property
    def wants_verbs(self) -> bool:
        return self.asked.nic == "verbs" or (
            self.asked.nic == "auto" and bool(self.names("/sys/class/infiniband"))
        )

    @property
    def ips(self) -> list[str]:
        """The address asked for, else those of the host daemons here."""
        if self.asked.ip:
            return [self.asked.ip]
        return list(dict.fromkeys(str(host["ip"]) for host in self.hosts if host.get("ip")))

    @property
    def rdma_addresses(self) -> list[str]:
        """As ``ips``, and the GIDs of host daemons on InfiniBand."""
        gids = [] if self.asked.ip else [str(host["gid"]) for host in self.hosts if host.get("gid")]
        return [*self.ips, *dict.fromkeys(gids)]

    def of_hosts_with(self, adapter: str) -> list[Mapping[str, Any]]:
        """Status of each host daemon that has that collective library, and what was asked for as one more."""
        asked: Mapping[str, Any] = {"name": "", "collective": self.asked.collective}
        every = [asked, *self.hosts] if self.asked.collective else self.hosts
        return [one for one in every if str(one.get("collective", "")).partition(":")[0] == adapter]

    def environment(self, pid: int) -> Mapping[str, str] | None:
        """Variables of a process; None where they cannot be read."""
        text = self.read(f"/proc/{pid}/environ")
        if text is None:
            return None
        pairs = [entry.partition("=") for entry in text.split("\0")]
        return {name: value for name, equals, value in pairs if equals}

    def addresses(self) -> list[tuple[str, str, int]]:
        """``(interface, IPv4 address, prefix length)`` of all interfaces that are not loopback."""
        return self._addresses(4)

    def _addresses(self, version: int) -> list[tuple[str, str, int]]:
        ran = self.run(["ip", "-json", f"-{version}", "address"])
        return [] if ran is None or ran.status else addresses_in(ran.output)

    def links(self) -> list[tuple[str, str]]:
        """``(interface, address)`` of each link that is to be looked at."""
        if self.asked.interface:
            return [(self.asked.interface, self.asked.ip)]
        wanted = self.ips
        found = self.addresses() if any(":" not in ip for ip in wanted) else []
        found += self._addresses(6) if any(":" in ip for ip in wanted) else []
        return [(name, ip) for name, ip, _ in found if ip in wanted]

    def why_no_links(self) -> str:
        if not self.ips:
            return "no address to look for: give --ip ADDRESS (or --dir of a running host daemon)"
        if self.run(["ip", "-V"]) is None:
            return "the program ip is missing: apt-get install iproute2, or give --interface NAME"
        return (
            f"no interface of this machine has {', '.join(self.ips)}; a softnic brings an address of its own "
            "(then give --interface), a RoCE device uses that of its interface"
        )

    def of_hosts(self, name: str) -> list[int]:
        """Values of a number that host daemons tell, each once."""
        return list(dict.fromkeys(int(host[name]) for host in self.hosts if name in host))


def addresses_in(text: str) -> list[tuple[str, str, int]]:
    """Addresses in what ``ip -json -4 address`` prints, or with ``-6``, those of links alone apart."""
    try:
        links = json.loads(text)
        return [
            (str(link["ifname"]), str(one["local"]), int(one["prefixlen"]))
            for link in links
            for one in link.get("addr_info", ())
            if _is_of_a_network(one) and "LOOPBACK" not in link.get("flags", ())
        ]
    except (ValueError, TypeError, KeyError, AttributeError):
        return []


def _is_of_a_network(info: Mapping[str, Any]) -> bool:
    """Whether it is an address that others than those on the link can be told."""
    return info.get("family") == "inet" or (info.get("family") == "inet6" and info.get("scope") != "link")
