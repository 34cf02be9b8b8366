"""The daemons of this machine: do they answer, are they of one version, do they sum where they should."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from inaproto.daemon.observe.status import lacking_control, lacking_switch, switch_name
from inaproto.daemon.observe.status_tables import fallback_note, narrow_port_note, path_note
from inaproto.doctor.findings import Check, Finding, Outcome, failed, ok, untestable, warning
from inaproto.doctor.site import Site

_NONE: Final = "no daemon was asked: give --dir DIRECTORY or --socket SOCKET"
_UNITS: Final = ("inaproto-switch*", "inaproto-host@*")


def _look_at_answers(site: Site) -> Iterator[Finding]:
    if not site.daemons_asked:
        yield untestable(_NONE)
        return
    for problem in site.problems:
        yield failed(problem, "systemctl status 'inaproto-*'; journalctl -u 'inaproto-*' -n 50")
    for host in site.hosts:
        yield look_at_host(host)
    for switch in site.switches:
        yield look_at_switch(switch)
    for status in (*site.hosts, *site.switches):
        yield from look_at_controller(status)


def look_at_host(status: Mapping[str, Any]) -> Finding:
    switch = status.get("switch", {})
    name = status.get("name", "?")
    if lacking := lacking_switch(status):
        return failed(lacking, f"start the switch, or give the host its dir (now {switch.get('path')})")
    if not switch.get("connected"):
        return ok(f"host {name} has no switch, and its models need none")
    return ok(f"host {name} is connected to its switch")


def look_at_switch(status: Mapping[str, Any]) -> Finding:
    if lacking := lacking_control(status):
        return failed(lacking, f"start the root ({status['control'].get('path')})")
    return ok(f"{switch_name(status)} answers, {len(status.get('ports', ()))} ports up")


def look_at_controller(status: Mapping[str, Any]) -> Iterator[Finding]:
    """Look at the controller of a host or switch; one that has been given none needs none."""
    told = status.get("controller", {})
    if not told.get("paths"):
        return
    name = f"{status.get('role')} {status.get('name') or ''}".strip()
    if told.get("error"):
        mend = f"start the controller, or give the daemon where it is (now {' '.join(told['paths'])})"
        yield warning(f"{name} has no controller, its jobs go on without: {told['error']}", mend)
    else:
        yield ok(f"{name} reports to the controller")


def _look_at_versions(site: Site) -> Iterator[Finding]:
    told = [
        (f"{status.get('role')} {status.get('name') or ''}".strip(), str(status.get("version", "")))
        for status in (*site.switches, *site.hosts)
    ]
    yield look_at_versions(told) if told else untestable(_NONE)


def look_at_versions(told: Sequence[tuple[str, str]]) -> Finding:
    """``told``: daemons and their versions."""
    versions = {version for _, version in told}
    if len(versions) == 1 and "" not in versions:
        return ok(f"all {len(told)} daemons are of version {versions.pop()}")
    listed = ", ".join(f"{name} {version or 'of a version that does not say'}" for name, version in told)
    return warning(
        f"versions differ: {listed}", "systemctl restart 'inaproto-*'   (after the same install everywhere)"
    )


def _look_at_paths(site: Site) -> Iterator[Finding]:
    roots = [switch for switch in site.switches if "control" not in switch]
    jobs = [job for switch in roots for job in switch.get("jobs", ())]
    if not jobs:
        yield untestable("no job runs on a switch that was asked")
    for job in jobs:
        note = fallback_note(job)
        if note:
            yield warning(note, 'inaproto status; docs/operating.md, "When the switch does not sum"')
        else:
            yield ok(f"job {job['name']} is summed by: {job.get('path') or 'nobody yet'}")


# --- systemd


def _look_at_units(site: Site) -> Iterator[Finding]:
    ran = site.run(["systemctl", "list-units", "--all", "--plain", "--no-legend", "--no-pager", *_UNITS])
    if ran is None:
        yield untestable("there is no systemd here")
        return
    if ran.status:
        yield untestable(f"systemd does not answer: {ran.output.strip().partition(chr(10))[0]}")
        return
    units = [line.split()[0] for line in ran.output.splitlines() if line.strip()]
    if not units:
        yield untestable("no unit of inaproto is loaded (deploy/README.md installs them)")
    for unit in units:
        shown = site.run(
            [
                "systemctl",
                "show",
                unit,
                "-p",
                "ActiveState,UnitFileState,PrivateDevices,LimitMEMLOCK,RestrictAddressFamilies",
            ]
        )
        yield from look_at_unit(unit, shown.output if shown else "", wants_verbs=site.wants_verbs)


def look_at_unit(unit: str, text: str, *, wants_verbs: bool) -> Iterator[Finding]:
    """``text``: what ``systemctl show`` prints of it."""
    shown = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    state, enabled = shown.get("ActiveState", ""), shown.get("UnitFileState", "")
    troubles = []
    if state != "active":
        troubles.append(
            failed(f"{unit} is {state or 'unknown'}", f"systemctl start {unit}; journalctl -u {unit}")
        )
    if enabled not in {"enabled", "enabled-runtime", "static", "generated"}:
        troubles.append(
            warning(f"{unit} does not start at boot ({enabled or 'unknown'})", f"systemctl enable {unit}")
        )
    if wants_verbs and unit.startswith("inaproto-host"):
        troubles += _sandbox(unit, shown)
    yield from troubles
    if not any(one.outcome is Outcome.FAILED for one in troubles):
        yield ok(f"{unit} is active")


def _sandbox(unit: str, shown: Mapping[str, str]) -> Iterator[Finding]:
    """The unit as it is shipped lets a host have its UNIX sockets, and nothing else."""
    mend = f"systemctl edit {unit}   (the lines of deploy/verbs.conf); systemctl restart {unit}"
    families = shown.get("RestrictAddressFamilies", "")
    if shown.get("PrivateDevices") == "yes":
        yield failed(f"{unit} does not see /dev/infiniband (PrivateDevices=yes)", mend)
    if families and not families.startswith("~") and "AF_NETLINK" not in families.split():
        yield failed(f"{unit} may not use the sockets that verbs take ({families})", mend)
    if shown.get("LimitMEMLOCK", "infinity") != "infinity":
        yield warning(f"{unit} may lock {shown['LimitMEMLOCK']} bytes of memory", mend)


# --- MTU of paths


def _look_at_path_mtus(site: Site) -> Iterator[Finding]:
    if not site.hosts and not site.switches:
        yield untestable(_NONE)
    for host in site.hosts:
        if host.get("path") is not None:
            yield look_at_path_mtu(str(host.get("name", "?")), host["path"])
    for switch in site.switches:
        for narrow in switch.get("narrow_ports", ()):
            size = f"mtu {4200 if narrow['mtu'] == 4096 else narrow['mtu'] + 96}"
            interfaces = str(narrow["port"]).partition(":")[2]
            mends = [f"ip link set {one} {size}" for one in interfaces.split("+") if one]
            mend = "; ".join(mends) or f"{size} at its far end"
            yield failed(f"port {narrow_port_note(narrow)}", f"{mend}, or --mtu auto at all hosts of the job")


def look_at_path_mtu(name: str, path: Mapping[str, Any]) -> Finding:
    """``path``: as a host's status has it."""
    note = path_note(path)
    if path["problem"]:
        found, _, mend = note.partition("; ")
        return failed(f"host {name}: {found}", mend)
    if path["unknown"]:
        return untestable(f"host {name}: {note}")
    if note:
        mend = "a larger MTU of every port on the way, where packets are to be as large as NICs can"
        return warning(f"host {name}: {note}", mend)
    return ok(f"host {name}: RoCE packets of {path['carries']} bytes come through to its switch, and back")


DAEMONS: Final = Check("daemons", "a host without its switch waits, and its ranks with it", _look_at_answers)
VERSIONS: Final = Check("versions", "daemons of different versions may refuse each other", _look_at_versions)
PATHS: Final = Check(
    "paths",
    "a job that the switch does not sum is right, but slower: somebody should know why",
    _look_at_paths,
)
PATH_MTUS: Final = Check(
    "path-mtu",
    "a port on the way that is too small drops packets in silence: the job stands still",
    _look_at_path_mtus,
)
UNITS: Final = Check("units", "what does not start at boot is missing after the next one", _look_at_units)
