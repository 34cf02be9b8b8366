"""Which RDMA devices this machine has, under which addresses, and why one cannot be used."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from inaproto.errors import Unsupported
from inaproto.wire.messages.infiniband import InfinibandPort
from inaproto_adapters.verbs.library import verbs
from inaproto_adapters.verbs.paths import OwnPort

_SYSFS: Final = Path("/sys/class/infiniband")
_MTUS: Final = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}
_ACTIVE: Final = 4
_PORT_STATES: Final = {0: "no state", 1: "down", 2: "initialising", 3: "armed", 4: "active", 5: "deferred"}
_INFINIBAND: Final = 0
_ROCE_V2: Final = 2
"""Values of ``enum ibv_gid_type``."""
_GRH_REQUIRED: Final = 1
"""``IBV_QPF_GRH_REQUIRED``, of a port's flags."""
_MANAGED: Final = "is there a subnet manager (sminfo)?"


@dataclass(frozen=True, slots=True)
class Device:
    """One port of a device, under one address."""

    name: str
    port: int
    ip: bytes
    """4 bytes, or 16 of IPv6; empty if it has no RoCEv2 address, as on InfiniBand."""
    mac: bytes
    """6 bytes; empty where it has no Ethernet interface."""
    interface: str
    gid_index: int
    mtu: int
    """Bytes of payload that the port takes in a packet now."""
    why_not: str = ""
    """Why it cannot be used; empty if it can."""
    infiniband: InfinibandPort | None = None
    """Where it is on InfiniBand."""
    needs_grh: bool = False
    """On InfiniBand: its packets go by GID within its subnet, too."""

    @property
    def address(self) -> str:
        """By which a host finds it; empty: it has none."""
        if self.infiniband is not None:
            return str(ipaddress.IPv6Address(self.infiniband.gid))
        return str(ipaddress.ip_address(self.ip)) if self.ip else ""

    def own_port(self, router_lid: int) -> OwnPort | None:
        """What its paths begin at; None on Ethernet."""
        return None if self.infiniband is None else OwnPort(self.infiniband, self.needs_grh, router_lid)


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


def find_device(address: bytes, *, infiniband: bool = False) -> Device:
    """The one that has this IP address (4 or 16 bytes) or, with ``infiniband``, GID (16 bytes) there. Raises
    ``Unsupported``, which names those that there are."""
    devices = list_devices()
    wanted = str(ipaddress.ip_address(address))
    kind = "InfiniBand" if infiniband else "RoCE"
    for device in devices:
        if device.address == wanted and (device.infiniband is not None) == infiniband:
            if device.why_not:
                raise Unsupported(f"the {kind} device {device.name} with {wanted}", device.why_not)
            return device
    seen = ", ".join(f"{one.name} ({one.address or one.why_not})" for one in devices) or "none at all"
    raise Unsupported(f"the {kind} device with the address {wanted}", f"the devices here are: {seen}")


def _ports(name: str) -> Iterator[Device]:
    """A device that cannot be asked is one that cannot be used: it hides no other."""
    error_type = verbs("pyverbs_error").PyverbsError
    try:
        context = verbs("device").Context(name=name)
    except error_type as error:
        why = f"it cannot be opened ({error}); may this user read and write /dev/infiniband?"
        yield Device(name, 1, b"", b"", "", 0, 0, why)
        return
    try:
        states = [
            (port, context.query_port(port)) for port in range(1, context.query_device().phys_port_cnt + 1)
        ]
        # In one call: a table may have a thousand entries, and reading sysfs for each takes seconds.
        table = context.query_gid_table(sum(state.gid_tbl_len for _, state in states))
    except error_type as error:
        why = f"it does not say what it has ({error}); is it being reset or taken away (dmesg)?"
        yield Device(name, 1, b"", b"", "", 0, 0, why)
        return
    finally:
        context.close()
    for port, state in states:
        yield from _addresses(name, port, state, [entry for entry in table if entry.port_num == port])


def _addresses(name: str, port: int, state: Any, table: list[Any]) -> Iterator[Device]:
    """``table``: the entries of the port that are in use, ``GIDEntry``."""
    mtu = _MTUS.get(state.active_mtu, 0)
    why = ""
    if _read(_SYSFS / name / "ports" / str(port) / "link_layer") != "Ethernet":
        yield from _gids(name, port, state, table, mtu)
        return
    if state.state != _ACTIVE:
        why = f"port {port} is {_PORT_STATES.get(state.state, state.state)}; is its network interface up?"
    found = False
    for entry in sorted(table, key=lambda one: one.gid_index):
        gid = ipaddress.IPv6Address(entry.gid_str())
        if entry.gid_type != _ROCE_V2 or gid.is_link_local:
            continue
        found = True
        ip = (gid.ipv4_mapped or gid).packed
        interface = _interface(entry.ndev_ifindex)
        mac = bytes.fromhex(_read(Path("/sys/class/net") / interface / "address").replace(":", ""))
        yield Device(name, port, ip, mac, interface, entry.gid_index, mtu, why)
    if not found:
        why = why or "it has no RoCEv2 address; give its network interface an IP address"
        yield Device(name, port, b"", b"", "", 0, mtu, why)


def _gids(name: str, port: int, state: Any, table: list[Any], mtu: int) -> Iterator[Device]:
    """A port on InfiniBand, under each of its GIDs."""
    needs_grh = bool(state.flags & _GRH_REQUIRED)
    why = ""
    if state.state != _ACTIVE:
        why = f"port {port} is {_PORT_STATES.get(state.state, state.state)}; {_MANAGED}"
    elif not state.lid and not needs_grh:
        why = f"port {port} has no LID; {_MANAGED}"
    found = False
    for entry in sorted(table, key=lambda one: one.gid_index):
        gid = ipaddress.IPv6Address(entry.gid_str()).packed
        if entry.gid_type == _INFINIBAND and any(gid[8:]):
            found = True
            at = InfinibandPort(gid=gid, lid=state.lid)
            yield Device(name, port, b"", b"", "", entry.gid_index, mtu, why, at, needs_grh)
    if not found:
        yield Device(name, port, b"", b"", "", 0, mtu, why or f"it has no GID; {_MANAGED}")


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
