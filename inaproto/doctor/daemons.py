"""The daemons of this machine: do they answer, are they of one version, do they sum where they should."""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from inaproto.client.run_directory import run_directory
from inaproto.daemon.observe.status import lacking_control, lacking_switch, switch_name
from inaproto.daemon.observe.status_tables import fallback_note, narrow_port_note, path_note
from inaproto.doctor.findings import Check, Finding, Outcome, failed, ok, untestable, warning
from inaproto.doctor.site import Site
from inaproto.pasted import as_root, pasted

_NO_TREES: Final = "no job gets a tree there"
_LOGS: Final = "systemctl status 'inaproto-*'; journalctl -u 'inaproto-*' -n 50"
_UNITS: Final = ("inaproto-switch*", "inaproto-host@*", "inaproto-server@*", "inaproto-controller*")


def _look_at_answers(site: Site) -> Iterator[Finding]:
    if not site.daemons_asked:
        yield _nobody(site)
        return
    for problem in site.problems:
        yield look_at_problem(site, problem)
    for host in site.hosts:
        yield look_at_host(host)
    for switch in site.switches:
        yield look_at_switch(switch)


def _nobody(site: Site) -> Finding:
    if site.daemons_asked:
        return untestable(f"no host or switch answers at {site.daemons_asked}")
    usual = run_directory(os.environ)
    return untestable(
        f"no daemon was asked, as none has its socket in {usual}",
        f"{site.again} --dir DIRECTORY   (/run/inaproto, where systemd starts them)",
    )


def look_at_problem(site: Site, problem: str) -> Finding:
    """``problem``: of asking a daemon; what follows a semicolon says what to do."""
    found, _, mend = problem.partition("; ")
    if os.strerror(errno.EACCES) in found and not site.is_root:
        return failed(found, as_root(site.again))
    return failed(found, "; ".join(filter(None, (mend, _LOGS if site.has_systemd else ""))))


def look_at_host(status: Mapping[str, Any]) -> Finding:
    switch = status.get("switch", {})
    name = status.get("name", "?")
    if lacking := lacking_switch(status):
        path = str(switch.get("path"))
        mend = f"{_start_of('switch', path)}; or give host {name} another dir or control (now {path})"
        return failed(lacking, mend)
    if not switch.get("connected"):
        return ok(f"host {name} has no switch, and its models need none")
    return ok(f"host {name} is connected to its switch")


def look_at_switch(status: Mapping[str, Any]) -> Finding:
    if lacking := lacking_control(status):
        return failed(lacking, f"start the root ({status['control'].get('path')})")
    return ok(f"{switch_name(status)} answers, {len(status.get('ports', ()))} ports up")


# --- the controller


def _look_at_controllers(site: Site) -> Iterator[Finding]:
    every = (*site.hosts, *site.switches)
    if not every:
        yield _nobody(site)
        return
    for status in every:
        yield from look_at_controller(status)
    known = [path for status in every for path in status.get("controller", {}).get("paths") or ()]
    known += [str(site.controller_socket)] if site.controller_socket else []
    if not known:
        yield untestable("no daemon here has a controller; jobs that nobody submits to one need none")
        return
    for status in every:
        if not status.get("controller", {}).get("paths"):
            yield _without_controller(status, known[0])


def look_at_controller(status: Mapping[str, Any]) -> Iterator[Finding]:
    """Look at the controller of a host or switch, if it has been given one."""
    told = status.get("controller", {})
    if not told.get("paths"):
        return
    name = _who(status)
    if told.get("error"):
        start = _start_of("controller", told["paths"][0], "--cluster", "FILE")
        mend = f"{start}; or give {name} another one (now {' '.join(told['paths'])})"
        yield warning(f"{name} has no controller, its jobs go on without: {told['error']}", mend)
    else:
        yield ok(f"{name} reports to the controller")


def _start_of(daemon: str, at: str, *options: str) -> str:
    """How one is started that others look for ``at`` a socket or an address."""
    if "://" in at:
        return f"start it on its machine: systemctl start inaproto-{daemon}"
    return f"start it: {pasted(daemon, *options, dir=Path(at).parent)}"


def _without_controller(status: Mapping[str, Any], controller: str) -> Finding:
    name, is_host = _who(status), status.get("role") == "host"
    lacks = "it gets no jobs from the controller, and those that name it wait" if is_host else _NO_TREES
    found = f"{name} was started without --controller: {lacks}"
    return warning(found, f"start {name} anew with --controller {shlex.quote(controller)}")


def _who(status: Mapping[str, Any]) -> str:
    return f"{status.get('role')} {status.get('name') or ''}".strip()


def _look_at_versions(site: Site) -> Iterator[Finding]:
    told = [(_who(status), str(status.get("version", ""))) for status in (*site.switches, *site.hosts)]
    yield look_at_versions(told) if told else _nobody(site)


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
            yield warning(note, f'{site.status}; docs/operating.md, "When the switch does not sum"')
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
        yield _nobody(site)
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


DAEMONS: Final = Check(
    "daemons", "ranks wait for their host daemon, and that waits for its switch", _look_at_answers
)
CONTROLLER: Final = Check(
    "controller",
    "jobs that run go on without one; it gives new ones no host or switch that does not report to it",
    _look_at_controllers,
)
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
