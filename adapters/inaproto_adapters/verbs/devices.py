"""Which RDMA devices this machine has, under which addresses, and why one cannot be used."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from inaproto.errors import Unsupported
from inaproto_adapters.verbs.library import verbs

_SYSFS: Final = Path("/sys/class/infiniband")
_MTUS: Final = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}
_ACTIVE: Final = 4
_PORT_STATES: Final = {0: "no state", 1: "down", 2: "initialising", 3: "armed", 4: "active", 5: "deferred"}
_ROCE_V2: Final = 2
"""Value of ``enum ibv_gid_type_entry``."""


@dataclass(frozen=True, slots=True)
class Device:
    """One port of a device, under one address."""

    name: str
    port: int
    ip: bytes
    """4 bytes; empty if it has no RoCEv2 address of IPv4."""
    mac: bytes
    """6 bytes; empty where it has no Ethernet interface."""
    interface: str
    gid_index: int
    mtu: int
    """Bytes of payload that the port takes in a packet now."""
    why_not: str = ""
    """Why it cannot be used; empty if it can."""

    @property
    def address(self) -> str:
        return str(ipaddress.IPv4Address(self.ip)) if self.ip else ""


def list_devices() -> list[Device]:
    """All of this machine, usable or not. Raises ``Unsupported`` without pyverbs or RDMA in the kernel."""
    module = verbs("device")
    error_type = verbs("pyverbs_error").PyverbsError
    try:
        listed = module.get_device_list()
    except error_type as error:
        raise Unsupported("RoCE through verbs", f"the kernel has no RDMA devices to list ({error})") from None
    names = sorted(item.name.decode() for item in listed)
    return [device for name in names for device in _ports(name)]


def cpus_near(name: str, folder: Path = _SYSFS) -> str:
    """As the kernel writes them; empty where it does not say, or where the machine has one node alone."""
    device = folder / name / "device"
    node = _read(device / "numa_node")
    return _read(device / "local_cpulist") if node.isdecimal() else ""


def find_device(ip: bytes) -> Device:
    """The one that has this IPv4 address. Raises ``Unsupported``, which names those that there are."""
    devices = list_devices()
    wanted = str(ipaddress.IPv4Address(ip))
    for device in devices:
        if device.ip == ip:
            if device.why_not:
                raise Unsupported(f"the RoCE device {device.name} with {wanted}", device.why_not)
            return device
    seen = ", ".join(f"{one.name} ({one.address or one.why_not})" for one in devices) or "none at all"
    raise Unsupported(f"a RoCE device with the address {wanted}", f"the devices here are: {seen}")


def _ports(name: str) -> Iterator[Device]:
    try:
        context = verbs("device").Context(name=name)
    except verbs("pyverbs_error").PyverbsError as error:
        why = f"it cannot be opened ({error}); may this user read and write /dev/infiniband?"
        yield Device(name, 1, b"", b"", "", 0, 0, why)
        return
    try:
        states = [
            (port, context.query_port(port)) for port in range(1, context.query_device().phys_port_cnt + 1)
        ]
        # In one call: a table may have a thousand entries, and reading sysfs for each takes seconds.
        table = context.query_gid_table(sum(state.gid_tbl_len for _, state in states))
        for port, state in states:
            yield from _addresses(name, port, state, [entry for entry in table if entry.port_num == port])
    finally:
        context.close()


def _addresses(name: str, port: int, state: Any, table: list[Any]) -> Iterator[Device]:
    """``table``: the entries of the port that are in use, ``GIDEntry``."""
    mtu = _MTUS.get(state.active_mtu, 0)
    why = ""
    if _read(_SYSFS / name / "ports" / str(port) / "link_layer") != "Ethernet":
        why = "its link layer is InfiniBand; rings are addressed by Ethernet and IPv4 (docs/operating.md)"
    elif state.state != _ACTIVE:
        why = f"port {port} is {_PORT_STATES.get(state.state, state.state)}; is its network interface up?"
    found = False
    for entry in sorted(table, key=lambda one: one.gid_index):
        mapped = ipaddress.IPv6Address(entry.gid_str()).ipv4_mapped
        if entry.gid_type != _ROCE_V2 or mapped is None:
            continue
        found = True
        interface = _interface(entry.ndev_ifindex)
        mac = bytes.fromhex(_read(Path("/sys/class/net") / interface / "address").replace(":", ""))
        yield Device(name, port, mapped.packed, mac, interface, entry.gid_index, mtu, why)
    if not found:
        why = why or "it has no RoCEv2 address; give its network interface an IPv4 address"
        yield Device(name, port, b"", b"", "", 0, mtu, why)


def _interface(index: int) -> str:
    """Empty if it is gone."""
    try:
        return socket.if_indextoname(index)
    except OSError:
        return ""


def _read(path: Path) -> str:
    """Empty for a file that is not there."""
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
