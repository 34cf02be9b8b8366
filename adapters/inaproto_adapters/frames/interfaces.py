"""Network interfaces of this machine, as the kernel tells of them: by ioctl what they are, by rtnetlink when
that changes.

Errors name the remedy: an interface that is not there lists those that are, a missing capability the ways to
give it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import struct
import sys
from array import array
from dataclasses import dataclass
from typing import Final

import trio

from inaproto.errors import ConfigError, Unsupported

NAME_BYTES_MAX: Final = 15
IFF_UP: Final = 1
IFF_RUNNING: Final = 0x40
_SIOCGIFNAME: Final = 0x8910
_SIOCGIFFLAGS: Final = 0x8913
_SIOCSIFFLAGS: Final = 0x8914
_SIOCGIFMTU: Final = 0x8921
_SIOCGIFHWADDR: Final = 0x8927
_SIOCGIFINDEX: Final = 0x8933
_SIOCETHTOOL: Final = 0x8946
_ETHTOOL_GDRVINFO: Final = 0x03
_ETHTOOL_GLINK: Final = 0x0A
_ETHTOOL_GGSO: Final = 0x23
_ETHTOOL_GFLAGS: Final = 0x25
_ETHTOOL_GCHANNELS: Final = 0x3C
_ETH_FLAG_LRO: Final = 1 << 15
_ARPHRD_ETHER: Final = 1
_RTMGRP_LINK: Final = 1
_IFREQ_BYTES: Final = 40
_IPV4_BYTES: Final = 4
_NLMSG_BYTES: Final = 16
_NLM_F_REQUEST: Final = 1
_RTM_NEWLINK: Final = 16
_RTM_GETLINK: Final = 18
_IFLA_GSO_MAX_SEGS: Final = 40
_IFLA_GSO_MAX_SIZE: Final = 41


@dataclass(frozen=True, slots=True)
class Interface:
    """One look at an interface."""

    name: str
    index: int
    mac: bytes
    mtu: int
    is_ethernet: bool
    is_up: bool
    has_carrier: bool
    """The far end of its cable is up, too."""

    @property
    def trouble(self) -> str | None:
        """Why it carries nothing now, and what helps; None if it can be used."""
        if not self.is_up:
            return f"{self.name} is down; ip link set {self.name} up"
        if not self.has_carrier:
            return f"{self.name} has no carrier; look at its cable, and whether its far end is up"
        return None


def interface_names() -> list[str]:
    return sorted(name for _, name in socket.if_nameindex())


def look_at(name: str) -> Interface | None:
    """None if there is no interface of that name. Raises ``OSError`` where the process has no descriptor
    left to look with.

    The kernel first deals with what it knows of the link, which it does since Linux 6.8 when it is asked for
    that. Until then it may say that a new interface runs, and drop what is sent by it without a word.
    """
    _ask_driver(name, _ETHTOOL_GLINK, 1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
        return _look_at(asking, name)


def look_at_index(asking: socket.socket, index: int) -> Interface | None:
    """An interface keeps its index when it is renamed. ``asking``: any socket of its network namespace."""
    name = name_of(asking, index)
    return None if name is None else _look_at(asking, name)


def name_of(asking: socket.socket, index: int) -> str | None:
    """As ``socket.if_indextoname``, which would need a descriptor; None if there is no such interface."""
    request = struct.pack(f"=16si{_IFREQ_BYTES - 20}x", b"", index)
    try:
        answer = fcntl.ioctl(asking, _SIOCGIFNAME, request)
    except OSError as error:
        if error.errno in (errno.ENODEV, errno.ENXIO):
            return None
        raise
    return os.fsdecode(answer[:16].partition(b"\0")[0])


def _look_at(asking: socket.socket, name: str) -> Interface | None:
    try:
        index = struct.unpack_from("=i", _ask(asking, _SIOCGIFINDEX, name))[0]
        flags = struct.unpack_from("=H", _ask(asking, _SIOCGIFFLAGS, name))[0]
        mtu = struct.unpack_from("=i", _ask(asking, _SIOCGIFMTU, name))[0]
        hardware = _ask(asking, _SIOCGIFHWADDR, name)
    except OSError as error:
        if error.errno in (errno.ENODEV, errno.ENXIO):
            return None
        raise
    return Interface(
        name=name,
        index=index,
        mac=hardware[2:8],
        mtu=mtu,
        is_ethernet=struct.unpack_from("=H", hardware)[0] == _ARPHRD_ETHER,
        is_up=bool(flags & IFF_UP),
        has_carrier=bool(flags & IFF_RUNNING),
    )


def set_up(name: str) -> None:
    """``ip link set NAME up``. Raises ``OSError``."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
        flags = struct.unpack_from("=H", _ask(asking, _SIOCGIFFLAGS, name))[0]
        fcntl.ioctl(asking, _SIOCSIFFLAGS, _ifreq(name, struct.pack("=H", flags | IFF_UP)))


def merges_in_hardware(name: str) -> bool:
    """Whether large receive offload is on: what it merged cannot be taken apart again."""
    answer = _ask_driver(name, _ETHTOOL_GFLAGS, 1)
    # A driver without such settings has no such offload.
    return answer is not None and bool(answer[1] & _ETH_FLAG_LRO)


def receive_queues(name: str) -> int:
    """How many queues the interface receives by; 1 where its driver does not tell."""
    answer = _ask_driver(name, _ETHTOOL_GCHANNELS, 8)
    return 1 if answer is None else max(1, answer[5] + answer[8])


def has_device(name: str) -> bool:
    """Whether hardware is behind it, or what a virtual machine takes for hardware; veth has none."""
    answer = _ask_driver(name, _ETHTOOL_GDRVINFO, 48)
    return answer is not None and bool(answer.tobytes()[100:132].strip(b"\0"))


def driver_of(name: str) -> str:
    """What it is a kind of, as its driver says: ``"veth"``; empty if that says nothing."""
    answer = _ask_driver(name, _ETHTOOL_GDRVINFO, 48)
    return "" if answer is None else answer.tobytes()[4:36].partition(b"\0")[0].decode("ascii", "replace")


def keeps_long_segments(name: str) -> bool:
    """Whether segments that are longer than a frame go to its far end whole, for all that is known. Raises
    ``OSError``."""
    answer = _ask_driver(name, _ETHTOOL_GGSO, 1)
    if answer is None or not answer[1]:
        return False
    limits = _numbers_of(name)
    return limits.get(_IFLA_GSO_MAX_SEGS, 0) >= 64 and limits.get(_IFLA_GSO_MAX_SIZE, 0) >= 1 << 16


def _numbers_of(name: str) -> dict[int, int]:
    """Attributes of 4 bytes that rtnetlink tells of an interface, by their kinds. Raises ``OSError``."""
    wanted = struct.pack("=BxHiII", 0, 0, socket.if_nametoindex(name), 0, 0)
    header = struct.pack("=IHHII", _NLMSG_BYTES + len(wanted), _RTM_GETLINK, _NLM_F_REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as asking:
        asking.send(header + wanted)
        answer = asking.recv(1 << 16)
    if struct.unpack_from("=H", answer, 4)[0] != _RTM_NEWLINK:
        return {}
    at, found = _NLMSG_BYTES + len(wanted), {}
    while at + 4 <= len(answer):
        nbytes, kind = struct.unpack_from("=HH", answer, at)
        if nbytes == 8:
            found[kind] = struct.unpack_from("=I", answer, at + 4)[0]
        at += max(4, nbytes + 3 & ~3)
    return found


def _ask_driver(name: str, command: int, words: int) -> array[int] | None:
    """The ethtool structure of ``command`` and ``words`` 32-bit words; None if the driver has none."""
    answer = array("I", [command, *[0] * words])
    address, _ = answer.buffer_info()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
        try:
            fcntl.ioctl(asking, _SIOCETHTOOL, _ifreq(name, struct.pack("=Q", address)))
        except OSError:
            return None
    return answer


def require_name(name: str) -> None:
    """Raises ``ConfigError`` for what can never name an interface."""
    if not name or len(os.fsencode(name)) > NAME_BYTES_MAX or "/" in name or any(map(str.isspace, name)):
        raise ConfigError(
            f"{name!r} is no name of a network interface: those have 1 to {NAME_BYTES_MAX} bytes, "
            "no blank and no slash"
        )


def require_stranger(name: str, mac: bytes, ip: bytes) -> None:
    """Raises ``ConfigError`` if the machine's own network stack would answer for ``mac`` or ``ip``,
    ``Unsupported`` where it cannot be asked."""
    found = look_at(name)
    if found is not None and found.mac == mac:
        raise ConfigError(
            f"mac: {mac.hex(':')} is the address of {name} itself, whose kernel would answer for the NIC; "
            'leave mac at "auto"'
        )
    try:
        family = socket.AF_INET if len(ip) == _IPV4_BYTES else socket.AF_INET6
        asking = socket.socket(family, socket.SOCK_DGRAM)
    except OSError as error:
        raise Unsupported(
            f"asking for the addresses of {name}",
            f"{error.strerror}; systemd: RestrictAddressFamilies=... AF_INET",
        ) from None
    with asking:
        try:
            asking.bind((socket.inet_ntop(family, ip), 0))
        except OSError:  # not an address of this machine
            return
    raise ConfigError(
        f"ip: {socket.inet_ntop(family, ip)} is an address of this machine's kernel, which would refuse the "
        "NIC's packets (ICMP port unreachable) and answer ARP for it; give the NIC an address of its own"
    )


def no_such_interface(name: str) -> str:
    return f"there is no interface {name!r}; those that exist: {', '.join(interface_names()) or 'none'}"


def lacks_capability(what: str, *capabilities: str) -> Unsupported:
    """``what`` needs capabilities of which the process lacks one."""
    # Capabilities of a file are those of the interpreter here: the command itself is a script.
    interpreter = os.path.realpath(sys.executable)
    ambient, of_file = " ".join(capabilities), ",".join(capabilities).lower()
    return Unsupported(
        what,
        f"it takes {' and '.join(capabilities)}. For a systemd unit: AmbientCapabilities={ambient} "
        f"(deploy/README.md); by hand: run it as root, or once: setcap {of_file}+ep {interpreter}",
    )


class LinkWatch:
    """Wakes whoever waits when any interface of the machine changes."""

    def __init__(self) -> None:
        flags = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        self._sock = socket.socket(socket.AF_NETLINK, flags, socket.NETLINK_ROUTE)
        self._sock.bind((0, _RTMGRP_LINK))

    async def wait(self) -> None:
        """Until something has changed since the last return. Raises ``trio.ClosedResourceError``."""
        await trio.lowlevel.wait_readable(self._sock)
        if self._sock.fileno() == -1:  # closed after it was found readable
            raise trio.ClosedResourceError
        with contextlib.suppress(BlockingIOError):
            while True:
                try:
                    self._sock.recv(1 << 16)
                except OSError as error:
                    if error.errno != errno.ENOBUFS:  # changes were lost: looking again is what helps
                        raise

    def close(self) -> None:
        if self._sock.fileno() != -1:
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()


def _ask(asking: socket.socket, request: int, name: str) -> bytes:
    return fcntl.ioctl(asking, request, _ifreq(name))[16:]


def _ifreq(name: str, value: bytes = b"") -> bytes:
    return struct.pack("16s", os.fsencode(name)) + value.ljust(_IFREQ_BYTES - 16, b"\0")
