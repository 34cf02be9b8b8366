"""Limits of the kernel on processes: descriptors, memory for tensors, socket buffers, reads of each other.

Those that count are the daemon's own, which systemd may have set, not those of the shell that asks.
"""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator
from typing import Final

from inaproto.doctor.ethernet import packet_ports
from inaproto.doctor.findings import Check, Finding, failed, ok, untestable, warning
from inaproto.doctor.site import Site
from inaproto.errors import Unsupported

DESCRIPTORS_MIN: Final = 4096
"""A host has up to 1024 processes, with a socket and shared memory each; a switch 256 ports and sessions."""
TENSOR_COPIES: Final = 3
"""Copies of a tensor at each rank: its own, what is shared with the daemon, the result."""
STREAM_BUFFER: Final = 512 << 10
"""Bytes that a port over a UNIX socket asks of the kernel."""
LINK_BUFFER: Final = 8 << 20
"""Bytes that one on an interface asks for: some 6 ms of 10 Gbit/s."""
UNLIMITED: Final = -1
YAMA: Final = "/proc/sys/kernel/yama/ptrace_scope"
YAMA_LOCKED: Final = 3
"""Of this scope the kernel takes nothing back."""


def limit_in(text: str, name: str) -> int:
    """The soft limit ``name`` of ``/proc/PID/limits``; -1 for none. Raises ``Unsupported``."""
    found = re.search(rf"^{re.escape(name)}\s+(\S+)", text, re.MULTILINE)
    if found is None or not (found[1].isdigit() or found[1] == "unlimited"):
        raise Unsupported(f"the limit {name!r}", "/proc/PID/limits does not have it")
    return UNLIMITED if found[1] == "unlimited" else int(found[1])


def limits_of_daemons(site: Site, name: str, kind: int, daemons: str = "") -> Iterator[tuple[str, int]]:
    """Limits of each running daemon (``daemons``: those of this role alone); of this shell if none
    answers."""
    seen = False
    for status in (*site.switches, *site.hosts):
        role = str(status.get("role", "daemon"))
        if daemons and role != daemons:
            continue
        text = site.read(f"/proc/{status.get('pid', 0)}/limits")
        if text is not None:
            seen = True
            try:
                yield f"{role} {status.get('name', '')}".strip(), limit_in(text, name)
            except Unsupported:
                continue
    if not seen:
        yield "this shell", resource.getrlimit(kind)[0]


def _look_at_descriptors(site: Site) -> Iterator[Finding]:
    for who, limit in limits_of_daemons(site, "Max open files", resource.RLIMIT_NOFILE):
        yield look_at_descriptors(who, limit)


def look_at_descriptors(who: str, limit: int) -> Finding:
    if limit != UNLIMITED and limit < DESCRIPTORS_MIN:
        mend = f"systemd: LimitNOFILE=16384 in the unit; a shell: ulimit -n {DESCRIPTORS_MIN}"
        return warning(f"{who} may open {limit} descriptors", mend)
    return ok(f"{who} may open {'any number of' if limit == UNLIMITED else limit} descriptors")


def _look_at_memory(site: Site) -> Iterator[Finding]:
    available = available_in(site.read("/proc/meminfo") or "")
    limit = site.number("/sys/fs/cgroup/memory.max")
    used = site.number("/sys/fs/cgroup/memory.current")
    cgroup = None if limit is None else limit - (used or 0)
    yield look_at_memory(available, cgroup, site.asked.tensor_bytes)


def available_in(meminfo: str) -> int | None:
    """Bytes that new programs can have."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo, re.MULTILINE)
    return int(found[1]) << 10 if found else None


def look_at_memory(available: int | None, cgroup: int | None, tensor_bytes: int) -> Finding:
    """``cgroup``: what its limit leaves, None where it has none."""
    if available is None:
        return untestable("/proc/meminfo does not say how much memory is available")
    free = available if cgroup is None else min(available, cgroup)
    told = f"{_mib(free)} free" + (" in this cgroup" if cgroup is not None and cgroup < available else "")
    if not tensor_bytes:
        return ok(f"{told}; --tensor-mib says what a rank's tensors take")
    need = TENSOR_COPIES * tensor_bytes
    if need > free:
        mend = "fewer ranks here, smaller tensors, or a larger limit (systemd: MemoryMax=; docker: --memory)"
        return failed(
            f"{told}, a rank needs {_mib(need)} ({TENSOR_COPIES} copies of {_mib(tensor_bytes)})", mend
        )
    return ok(f"{told}, a rank needs {_mib(need)}")


def _look_at_socket_buffers(site: Site) -> Iterator[Finding]:
    for name in ("rmem_max", "wmem_max"):
        path = f"net.core.{name}"
        need = LINK_BUFFER if packet_ports(site) else STREAM_BUFFER
        yield look_at_socket_buffer(path, site.number(f"/proc/sys/net/core/{name}"), need)


def look_at_socket_buffer(name: str, limit: int | None, need: int) -> Finding:
    if limit is None:
        return untestable(f"{name} cannot be read")
    if limit < need:
        mend = (
            f"sysctl -w {name}={need}; for good: "
            f"echo '{name}={need}' > /etc/sysctl.d/90-inaproto-{name.rpartition('.')[2]}.conf"
        )
        return warning(f"{name} is {limit} bytes, ports ask for {need}", mend)
    return ok(f"{name} is {limit} bytes, ports ask for {need}")


def _look_at_ptrace(site: Site) -> Iterator[Finding]:
    if not site.names("/proc/sys/kernel"):
        yield untestable("/proc/sys/kernel cannot be read")
    else:
        yield look_at_ptrace(site.number(YAMA))


def look_at_ptrace(scope: int | None) -> Finding:
    """``scope``: Yama's, None where the kernel has none. What a container forbids is not seen here."""
    if scope is None:
        return ok("this kernel has no Yama")
    name = "kernel.yama.ptrace_scope"
    if scope <= 0:
        return ok(f"{name} is 0")
    found = f"{name} is {scope}: all_reduce(in_place=True) copies large arrays through shared memory"
    keep = f"echo '{name}=0' > /etc/sysctl.d/90-inaproto-ptrace.conf"
    if scope >= YAMA_LOCKED:
        return warning(found, f"it stays so until the next boot, before which: {keep}")
    return warning(
        found,
        f"if processes of a user may look into each other: sysctl -w {name}=0 (of a container: on its host); "
        f"for good: {keep}",
    )


def _mib(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):.0f} MiB"


DESCRIPTORS: Final = Check(
    "descriptors", "without a free descriptor, hosts and processes are turned away", _look_at_descriptors
)
MEMORY: Final = Check(
    "memory",
    "tensors are shared with the daemon by memfds, which are memory of the process (/dev/shm is not used)",
    _look_at_memory,
)
SOCKET_BUFFERS: Final = Check(
    "socket-buffers", "frames that do not fit a port's socket buffer are lost", _look_at_socket_buffers
)
PTRACE: Final = Check(
    "ptrace",
    "ranks of one host that add in place read each other's large arrays, if the kernel lets them",
    _look_at_ptrace,
)
