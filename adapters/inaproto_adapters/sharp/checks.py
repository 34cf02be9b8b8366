"""What ``inaproto doctor`` looks at where a host is to use SHARP: what the library needs of this machine.

None of it says that SHARP works: no job is begun, and no switch or manager is asked. Only ``inaproto sharp
probe`` does that (docs/sharp.md).
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from inaproto.doctor.findings import Check, Finding, failed, ok, untestable, warning
from inaproto.doctor.limits import UNLIMITED, limits_of_daemons
from inaproto.doctor.site import Site
from inaproto.errors import ConfigError, Unsupported
from inaproto_adapters.sharp.abi import has_passed, hash_of
from inaproto_adapters.sharp.collective import STATS, STATS_REFUSED, config_of
from inaproto_adapters.sharp.config import SharpConfig
from inaproto_adapters.sharp.library import SharpLibrary, file_of, load

SYSFS: Final = "/sys/class/infiniband"
PREFIX: Final = "SHARP_COLL_"
MEMLOCK_MIN: Final = 64 << 20
"""Bytes: the library's own buffers, and a source and a result of some MiB for each job."""
KIB_MIN_DEFAULT: Final = 64
NOT_WANTED: Final = "no host daemon that answers has collective = sharp; --sharp looks all the same"
PROBE: Final = "inaproto sharp probe"


class Host(NamedTuple):
    """One that is to use SHARP."""

    who: str
    """For people."""
    status: Mapping[str, Any]
    config: SharpConfig


class Port(NamedTuple):
    """What the kernel says of a port of a device, as it writes it; empty: nothing."""

    name: str
    state: str
    link_layer: str


def _hosts(site: Site) -> Iterator[Host | Finding]:
    """A finding stands for a host whose setting cannot be read."""
    for status in site.of_hosts_with("sharp"):
        who = f"host {status['name']}" if status.get("name") else "--sharp"
        try:
            yield Host(who, status, config_of(str(status["collective"]).partition(":")[2]))
        except ConfigError as error:
            yield failed(f"{who}: {error}", f"collective of host.toml: {error}")


def _where_wanted(
    look: Callable[[Site, Sequence[Host]], Iterator[Finding]],
) -> Callable[[Site], Iterator[Finding]]:
    def look_if(site: Site) -> Iterator[Finding]:
        found = list(_hosts(site))
        hosts = [one for one in found if isinstance(one, Host)]
        if hosts:
            yield from look(site, hosts)
        else:
            yield untestable("the setting cannot be read (sharp-settings)" if found else NOT_WANTED)

    return look_if


# --- library


def _look_at_settings(site: Site) -> Iterator[Finding]:
    found = list(_hosts(site))
    for one in found:
        yield one if isinstance(one, Finding) else ok(f"{one.who}: {_show(one.config)}")
    if not found:
        yield untestable(NOT_WANTED)


def _show(config: SharpConfig) -> str:
    devices = config.devices or "the library's choice of devices"
    return f"{config.library or 'the library that the system finds'}, {devices}"


def _libraries(hosts: Sequence[Host]) -> list[str]:
    return list(dict.fromkeys(its.config.library for its in hosts))


def _look_at_libraries(site: Site, hosts: Sequence[Host]) -> Iterator[Finding]:
    for path in _libraries(hosts):
        yield look_at_library(path)


def look_at_library(path: str) -> Finding:
    """It is loaded as the adapter loads it; none of its functions is called."""
    mend = "library=FILE in collective of host.toml; it comes with HPC-X or DOCA-Host"
    try:
        library = load(path)
        library.default_config()
    except Unsupported as error:
        return failed(error.why, mend)
    missing = library.missing()
    if missing:
        return failed(f"{library.path} has no {', '.join(missing)}", f"a newer release; {mend}")
    return ok(f"{_named(library)} can be loaded; whether SHARP works, only {PROBE} says")


def _named(library: SharpLibrary) -> str:
    file = file_of(library)
    try:
        return library.path if file is None else f"{file} (SHA-256 {hash_of(file)})"
    except OSError:
        return library.path


def _look_at_abi(site: Site, hosts: Sequence[Host]) -> Iterator[Finding]:
    for path in _libraries(hosts):
        yield look_at_abi(path)


def look_at_abi(path: str) -> Finding:
    """Whether the headers of these very bytes were checked, by this user on this machine."""
    try:
        library = load(path)
    except Unsupported:
        return untestable("there is no library whose headers could have been checked")
    file = file_of(library)
    if file is not None and has_passed(file):
        return ok(f"a passing abi-check is recorded for {file}")
    return warning(
        f"no passing abi-check is recorded by this user for {file or library.path}",
        f"inaproto sharp abi-check --include DIR --library {file or library.path}",
    )


# --- variables


def _look_at_variables(site: Site, hosts: Sequence[Host]) -> Iterator[Finding]:
    for its in hosts:
        pid = int(its.status.get("pid", 0))
        found = site.environment(pid) if pid else os.environ
        if found is None:
            yield untestable(f"the variables of {its.who} cannot be read", f"as its user, or root: {PREFIX}*")
        else:
            yield look_at_variables(its.who if pid else "this shell", found)


def look_at_variables(who: str, environment: Mapping[str, str]) -> Finding:
    """The library reads them when it is loaded, and they count for all that nothing else sets."""
    ours = {name: value for name, value in sorted(environment.items()) if name.startswith(PREFIX)}
    told = ", ".join(f"{name}={value}" for name, value in ours.items()) or f"no {PREFIX} variable"
    if ours.get(STATS) == STATS_REFUSED:
        return failed(f"{who} has {told}: the adapter refuses {STATS}={STATS_REFUSED}", f"unset {STATS}")
    return ok(f"{who} has {told}")


# --- devices


def _look_at_devices(site: Site, hosts: Sequence[Host]) -> Iterator[Finding]:
    for devices in dict.fromkeys(its.config.devices for its in hosts):
        yield from look_at_devices(devices, ports_in(site))


def ports_in(site: Site) -> list[Port]:
    """All ports of RDMA devices of this machine, by name: ``mlx5_0:1``."""
    return [
        Port(
            f"{device}:{port}",
            site.read(f"{SYSFS}/{device}/ports/{port}/state") or "",
            site.read(f"{SYSFS}/{device}/ports/{port}/link_layer") or "",
        )
        for device in site.names(SYSFS)
        for port in site.names(f"{SYSFS}/{device}/ports")
    ]


def look_at_devices(devices: str, ports: Sequence[Port]) -> Iterator[Finding]:
    """``devices`` as in the setting; of the library's own choice one port that would do is enough."""
    named = [name if ":" in name else f"{name}:1" for name in devices.split(",") if name]
    by_name = {port.name: port for port in ports}
    if not named:
        fit = [port.name for port in ports if not _why_not(port)]
        seen = ", ".join(f"{port.name} ({_why_not(port)})" for port in ports) or "none at all"
        if fit:
            yield ok(f"the library chooses; ports that are up on InfiniBand: {', '.join(fit)}")
        else:
            yield failed(f"no port of this machine is up on InfiniBand; there are: {seen}", "ibstat; sminfo")
    for name in named:
        port = by_name.get(name)
        if port is None:
            seen = ", ".join(by_name) or "none at all"
            yield failed(f"there is no port {name}; there are: {seen}", "devices= in collective of host.toml")
        elif why := _why_not(port):
            yield failed(f"{name} {why}", _mend(port))
        else:
            yield ok(f"{name} is up on InfiniBand")


def _why_not(port: Port) -> str:
    if port.link_layer != "InfiniBand":
        return f"is of link layer {port.link_layer or 'unknown'}: SHARP is of InfiniBand"
    if port.state.partition(":")[0] != "4":
        return f"is {port.state or 'in no state that can be read'}, not ACTIVE"
    return ""


def _mend(port: Port) -> str:
    if port.link_layer != "InfiniBand":
        device, _, number = port.name.partition(":")
        return f"mlxconfig -d {device} set LINK_TYPE_P{number or 1}=1, where the card can be both"
    return "ibstat: is the cable in, and does a subnet manager run (sminfo)?"


# --- limits


def _look_at_memlock(site: Site, hosts: Sequence[Host]) -> Iterator[Finding]:
    for who, limit in limits_of_daemons(site, "Max locked memory", resource.RLIMIT_MEMLOCK, "host"):
        yield look_at_memlock(who, limit)


def look_at_memlock(who: str, limit: int) -> Finding:
    """``limit`` in bytes, -1 for none."""
    mend = "systemd: LimitMEMLOCK=infinity (deploy/verbs.conf); a shell: ulimit -l unlimited"
    if limit == UNLIMITED:
        return ok(f"{who} may lock any amount of memory")
    if limit < MEMLOCK_MIN:
        return failed(f"{who} may lock {limit >> 10} KiB of memory, the library registers more", mend)
    return warning(f"{who} may lock {limit >> 20} MiB; what is beyond that cannot be registered", mend)


# --- terms


def _look_at_terms(site: Site, hosts: Sequence[Host]) -> Iterator[Finding]:
    for its in hosts:
        yield look_at_terms(its.who, its.config, int(its.status.get("collective_kib_min", KIB_MIN_DEFAULT)))
    told = {(its.config.capabilities, its.status.get("collective_kib_min", KIB_MIN_DEFAULT)) for its in hosts}
    if len(told) > 1:
        yield warning(
            "hosts of this machine offer different all-reduces: a job of both goes without SHARP",
            "the same collective and collective_kib_min in host.toml of all hosts",
        )


def look_at_terms(who: str, config: SharpConfig, kib_min: int) -> Finding:
    """Which all-reduces are tried; what the switches do of that, nobody asks here."""
    offered = config.capabilities
    most = offered.operation_bytes_max
    if kib_min << 10 > most:
        mend = "a smaller collective_kib_min in host.toml of all hosts"
        return failed(f"{who} takes no all-reduce: from {kib_min} KiB, up to {most >> 10} KiB", mend)
    dtypes = ", ".join(its.name.lower() for its in sorted(offered.dtypes))
    ops = ", ".join(its.name.lower() for its in sorted(offered.ops))
    return ok(
        f"{who} tries all-reduces of {kib_min} KiB to {most >> 20} MiB ({ops} of {dtypes}) of jobs with "
        f"exact_plan=False; smaller ones go by the job's own path. What the switches do of it, {PROBE} says"
    )


CHECKS: Final = (
    Check("sharp-settings", "a host whose collective cannot be read does not start", _look_at_settings),
    Check("sharp-library", "a host without the library does not start", _where_wanted(_look_at_libraries)),
    Check(
        "sharp-abi",
        "a library of another layout than the adapter's would write where it must not",
        _where_wanted(_look_at_abi),
    ),
    Check(
        "sharp-variables",
        "the library takes them for settings, and hosts of a job need the same",
        _where_wanted(_look_at_variables),
    ),
    Check(
        "sharp-devices",
        "SHARP is done by InfiniBand switches, which only a port that is up there reaches",
        _where_wanted(_look_at_devices),
    ),
    Check(
        "sharp-memlock",
        "memory that the library registers is locked",
        _where_wanted(_look_at_memlock),
    ),
    Check(
        "sharp-terms",
        "what is not offered alike by all hosts of a job goes by its own path",
        _where_wanted(_look_at_terms),
    ),
)
