"""What ``inaproto doctor`` looks at where hosts use RoCE devices."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from inaproto.daemon.settings.cpus import parse_cpus
from inaproto.doctor.findings import Check, Finding, failed, ok, untestable, warning
from inaproto.doctor.limits import UNLIMITED, limits_of_daemons
from inaproto.doctor.site import Site
from inaproto.errors import Unsupported
from inaproto_adapters.verbs.devices import Device, cpus_near, list_devices
from inaproto_adapters.verbs.library import verbs

NODES: Final = "/dev/infiniband"
MEMLOCK_MIN: Final = 64 << 20
"""Bytes: receive and staging slots of a ring with a window of 64 messages at MTU 4096 take some 90 MiB."""
DEFAULT_MTU: Final = 1024

PACKAGES: Final = "rdma-core libibverbs1 ibverbs-providers python3-pyverbs"
INSTALL: Final = f"apt-get install {PACKAGES}"


def _where_wanted(look: Callable[[Site], Iterator[Finding]]) -> Callable[[Site], Iterator[Finding]]:
    def look_if(site: Site) -> Iterator[Finding]:
        if site.wants_verbs:
            yield from look(site)
        else:
            yield untestable(
                "no RDMA device is here; hosts with --nic softnic need none (--nic verbs demands one)"
            )

    return look_if


# --- library


def _look_at_library(site: Site) -> Iterator[Finding]:
    try:
        verbs("device")
    except Unsupported as error:
        yield failed(error.why, INSTALL)
        return
    ran = site.run(["dpkg-query", "-W", "python3-pyverbs", "libibverbs1", "rdma-core"])
    yield look_at_versions("" if ran is None else ran.output)


def look_at_versions(text: str) -> Finding:
    """``text``: what ``dpkg-query -W`` prints. All are built from one source."""
    found = re.findall(r"^(python3-pyverbs|libibverbs1|rdma-core)\s+(\d\S*)", text, re.MULTILINE)
    told = ", ".join(f"{name} {version}" for name, version in found)
    if len({version for _, version in found}) > 1:
        return warning(f"versions differ: {told}", f"apt-get install --reinstall {PACKAGES}")
    return ok(f"pyverbs can be imported; {told or 'no Debian package of it is installed'}")


# --- permissions


def _look_at_permissions(site: Site) -> Iterator[Finding]:
    nodes = [name for name in site.names(NODES) if name.startswith("uverbs")]
    barred = [
        name for name in nodes if not os.access(site.root / NODES.lstrip("/") / name, os.R_OK | os.W_OK)
    ]
    yield look_at_permissions(nodes, barred)


def look_at_permissions(nodes: Sequence[str], barred: Sequence[str]) -> Finding:
    """``barred``: those of ``nodes`` that this user may not open."""
    if not nodes:
        return failed(f"there is no {NODES}/uverbs*", "modprobe ib_uverbs; ls /sys/class/infiniband")
    if barred:
        return failed(
            f"user {os.geteuid()} may not open {', '.join(f'{NODES}/{name}' for name in barred)}",
            'echo \'KERNEL=="uverbs*", GROUP="inaproto", MODE="0660"\' > '
            "/etc/udev/rules.d/90-inaproto.rules; udevadm control --reload; udevadm trigger",
        )
    return ok(f"{NODES}/{', '.join(nodes)} can be opened")


# --- devices


def _of_devices(
    look: Callable[[Site, Sequence[Device]], Iterator[Finding]],
) -> Callable[[Site], Iterator[Finding]]:
    def look_at_listed(site: Site) -> Iterator[Finding]:
        try:
            devices = list_devices()
        except Unsupported as error:
            yield failed(error.why, INSTALL)
            return
        yield from look(site, devices)

    return look_at_listed


def look_at_devices(devices: Sequence[Device]) -> Iterator[Finding]:
    """Without any address asked for: one usable device will do."""
    if not devices:
        yield failed(
            "this machine has no RDMA devices", "rdma link; rdma link add rxe0 type rxe netdev INTERFACE"
        )
    usable = any(not one.why_not for one in devices)
    for one in devices:
        name = f"{one.name} port {one.port}"
        if not one.why_not:
            at = f"LID {one.infiniband.lid}" if one.infiniband else one.interface
            yield ok(f"{name} with {one.address} at {at}")
        elif usable:
            yield warning(f"{name}: {one.why_not}", "inaproto nics; nothing, if it is not meant to be used")
        else:
            yield failed(f"{name}: {one.why_not}", "inaproto nics; rdma link")


def look_at_gids(ips: Sequence[str], devices: Sequence[Device]) -> Iterator[Finding]:
    """Hosts find the GID by its address: its index may change at any boot, and nobody has to name it."""
    if not ips:
        yield untestable("no address to look for: give --ip ADDRESS (or --dir of a running host daemon)")
    for ip in ips:
        found = [one for one in devices if one.address == ip]
        if not found:
            seen = ", ".join(one.address for one in devices if one.address) or "none"
            kind, bits = ("the GID", 64) if ":" in ip else ("a RoCE v2 GID of", 24)
            yield failed(
                f"no device has {kind} {ip}; there are: {seen}",
                f"ip address add {ip}/{bits} dev INTERFACE; "
                "grep . /sys/class/infiniband/*/ports/*/gid_attrs/*/*",
            )
        elif found[0].why_not:
            yield failed(f"{found[0].name} has {ip}, but {found[0].why_not}", "inaproto nics")
        elif len(found) > 1:
            names = ", ".join(f"{one.name} index {one.gid_index}" for one in found)
            yield warning(f"{ip} is in the GID tables of {names}: the first is taken", "ip -brief address")
        else:
            one = found[0]
            kind = "InfiniBand" if one.infiniband else "RoCE v2"
            at = f"LID {one.infiniband.lid}" if one.infiniband else one.interface
            yield ok(f"{ip} is GID {one.gid_index} ({kind}) of {one.name} port {one.port}, at {at}")


def _look_at_mtus(site: Site, devices: Sequence[Device]) -> Iterator[Finding]:
    asked_for = [one for one in devices if one.address in site.rdma_addresses]
    yield from look_at_mtus(_wanted_mtu(site), asked_for or devices)


def look_at_mtus(wanted: int, devices: Sequence[Device]) -> Iterator[Finding]:
    """The device has the path MTU that its interface had when it came up."""
    seen = False
    for one in devices:
        if one.why_not:
            continue
        seen = True
        need = 4200 if wanted == 4096 else wanted + 96
        if one.mtu < wanted and one.infiniband is not None:
            yield failed(
                f"{one.name} has the path MTU {one.mtu}, hosts want {wanted}",
                f"mtu = {one.mtu} in host.toml of all hosts, or a larger MTU of the partition in opensm",
            )
        elif one.mtu < wanted:
            yield failed(
                f"{one.name} has the path MTU {one.mtu}, hosts want {wanted}",
                f"ip link set {one.interface} mtu {need}; an rxe device is made anew: "
                f"rdma link delete {one.name}, rdma link add {one.name} type rxe netdev {one.interface}",
            )
        else:
            yield ok(f"{one.name} has the path MTU {one.mtu}, hosts want {wanted}")
    if not seen:
        yield untestable("no device can be used")


def _wanted_mtu(site: Site) -> int:
    return site.asked.mtu or max(site.of_hosts("mtu"), default=DEFAULT_MTU)


# --- locked memory


def _look_at_memlock(site: Site) -> Iterator[Finding]:
    for who, limit in limits_of_daemons(site, "Max locked memory", resource.RLIMIT_MEMLOCK, "host"):
        yield look_at_memlock(who, limit)


def look_at_memlock(who: str, limit: int) -> Finding:
    """``limit`` in bytes, -1 for none."""
    if limit != UNLIMITED and limit < MEMLOCK_MIN:
        return failed(
            f"{who} may lock {limit >> 10} KiB of memory",
            "systemd: LimitMEMLOCK=infinity (deploy/verbs.conf); a shell: ulimit -l unlimited, by "
            "'* - memlock unlimited' in /etc/security/limits.conf",
        )
    return ok(f"{who} may lock {'any amount' if limit == UNLIMITED else f'{limit >> 20} MiB'} of memory")


# --- placement


def _look_at_placement(site: Site, devices: Sequence[Device]) -> Iterator[Finding]:
    daemons = [
        (f"host {status.get('name', '')}", allowed[1])
        for status in site.hosts
        if (text := site.read(f"/proc/{status.get('pid', 0)}/status")) is not None
        and (allowed := re.search(r"^Cpus_allowed_list:\s+(\S+)", text, re.MULTILINE)) is not None
    ]
    folder = site.root / "sys/class/infiniband"
    for one in [each for each in devices if each.address in site.ips] or devices:
        if not one.why_not:
            yield from look_at_placement(one.name, cpus_near(one.name, folder), daemons)


def look_at_placement(device: str, near: str, daemons: Sequence[tuple[str, str]]) -> Iterator[Finding]:
    """``near`` the device, and ``daemons`` with where the thread runs that serves it: CPUs as text."""
    if not near:
        yield untestable(f"the kernel does not say which CPUs are near {device}")
    elif not daemons:
        yield untestable(f"CPUs {near} are near {device}; no host daemon answers that could be elsewhere")
    for who, allowed in daemons if near else ():
        if parse_cpus(allowed) <= parse_cpus(near):
            yield ok(f"{who} runs on CPUs {allowed}, near {device}")
        else:
            yield warning(
                f"{who} may run on CPUs {allowed}, near {device} are {near}",
                f'cpus = "{near}" in host.toml (auto does so, where the process may use them)',
            )


CHECKS: Final = (
    Check(
        "rdma-core",
        "pyverbs works with the rdma-core that it was built with alone",
        _where_wanted(_look_at_library),
    ),
    Check(
        "rdma-permissions", "a host daemon opens the device as a file", _where_wanted(_look_at_permissions)
    ),
    Check(
        "rdma-devices",
        "a device that is down or without an address carries nothing",
        _where_wanted(_of_devices(lambda site, devices: look_at_devices(devices))),
    ),
    Check(
        "gid",
        "a host has the address --ip; packets of another GID, or of RoCE v1, cannot be routed to it",
        _where_wanted(_of_devices(lambda site, devices: look_at_gids(site.rdma_addresses, devices))),
    ),
    Check(
        "rdma-mtu",
        "a host whose device takes less than --mtu does not start",
        _where_wanted(_of_devices(_look_at_mtus)),
    ),
    Check(
        "placement",
        "a daemon on another NUMA node reads all that the device writes across the processors' link",
        _where_wanted(_of_devices(_look_at_placement)),
    ),
    Check(
        "memlock",
        "memory that a NIC writes is locked; where too little may be, no ring begins",
        _where_wanted(_look_at_memlock),
    ),
)
