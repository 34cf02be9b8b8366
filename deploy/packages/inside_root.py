"""What a machine does with the package, from nothing to nothing: runs as root in a bare root, by its Python.

Installs it, starts a switch and two hosts, adds up over two ranks, and purges it; under systemd it also
starts the other daemons, breaks a configuration, kills a daemon, stops another one's event loop, and
upgrades. Ends with status 0 if all went as it should and no trace is left; the last line of its output
says what it saw, as JSON.

    python3 inside_root.py DEB systemd|none
"""

from __future__ import annotations

import grp
import hashlib
import json
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

BOUND_S: Final = 120.0
HERE: Final = Path(__file__).resolve().parent
SETTINGS: Final = Path("/etc/inaproto")
SOCKETS: Final = Path("/run/inaproto")
HOSTS: Final = ("h0", "h1")
CLUSTER: Final = {
    "hosts": list(HOSTS),
    "switches": [{"name": "spine", "jobs": 1}],
    "links": [{"between": [name, "spine"]} for name in HOSTS],
}
_MODELS: Final = """\
[[hosts]]
name = "h0"
address = "tls://127.0.0.1:7501"

[[servers]]
name = "ps0"
address = "tls://127.0.0.1:7500"

[[models]]
name = "digits"
dtype = "float32"
elements = 7850
"""
OTHER_UNITS: Final = ("inaproto-controller.service", "inaproto-server@ps0.service")
UNITS: Final = ("inaproto-switch.service", *(f"inaproto-host@{name}.service" for name in HOSTS))
NOT_LOOKED_AT: Final = (
    "/proc",
    "/sys",
    "/dev",
    "/tmp",
    "/root",
    "/run",
    "/var/log",
    "/var/cache",
    "/var/tmp",
)
"""Nor what dpkg notes of each change, below."""
_BOOKS: Final = (
    "/var/lib/dpkg/",
    "/etc/passwd-",
    "/etc/group-",
    "/etc/shadow-",
    "/etc/gshadow-",
    "/var/lib/systemd/",
)


class Wrong(Exception):
    """Something is not as it should be."""


def expect(holds: bool, what: str) -> None:
    if not holds:
        raise Wrong(what)


def say(text: str) -> None:
    print(f"{time.monotonic():9.1f} {text}", flush=True)


def run(*command: str | Path, user: str | None = None) -> str:
    """Returns what it printed. ``user``: as one of the group inaproto who is nobody else."""
    before = [] if user is None else ["setpriv", f"--reuid={user}", "--regid=inaproto", "--clear-groups"]
    done = subprocess.run(
        [*before, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BOUND_S,
        check=False,
    )
    if done.returncode:
        raise Wrong(f"{' '.join(map(str, command))} ended with status {done.returncode}: {done.stdout}")
    return done.stdout


def wait_for(holds: Callable[[], bool], what: str) -> None:
    bound = time.monotonic() + BOUND_S
    while not holds():
        if time.monotonic() > bound:
            raise Wrong(f"waited {BOUND_S:.0f} s for {what}")
        time.sleep(0.1)


def traces() -> dict[str, str]:
    """Each path of the root, and what is there."""
    found = {}
    for folder, folders, files in os.walk("/"):
        folders[:] = [name for name in folders if os.path.join(folder, name) not in NOT_LOOKED_AT]
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            if path.startswith(_BOOKS):
                continue
            if os.path.islink(path):
                found[path] = os.readlink(path)
            elif not os.path.isfile(path):
                found[path] = "a folder"
            elif path.startswith("/etc/"):
                found[path] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
            else:
                found[path] = str(os.path.getsize(path))
    return found


def all_reduce() -> None:
    """Two ranks, one at each host, of a user who is only in the group."""
    command = ["/usr/lib/inaproto/bin/python3", str(HERE / "two_ranks.py")]
    entry = ["setpriv", "--reuid=nobody", "--regid=inaproto", "--clear-groups"]
    ranks = [
        subprocess.Popen(
            [*entry, *command, str(rank), str(SOCKETS / f"{host}.sock")], stdout=subprocess.PIPE, text=True
        )
        for rank, host in enumerate(HOSTS)
    ]
    said = [rank.communicate(timeout=BOUND_S)[0].strip() for rank in ranks]
    expect(
        [rank.returncode for rank in ranks] == [0, 0],
        f"the ranks ended with {[rank.returncode for rank in ranks]}",
    )
    expect(said[0] == said[1] != "", f"the ranks have different sums: {said}")
    say(f"all-reduce: {said[0]}")


def installed() -> None:
    user = pwd.getpwnam("inaproto")
    expect(user.pw_uid < 1000 and grp.getgrgid(user.pw_gid).gr_name == "inaproto", f"the user is {user}")
    run("inaproto", "version")
    for path in (
        "/usr/share/man/man1/inaproto-host.1.gz",
        "/usr/share/bash-completion/completions/inaproto",
        "/usr/share/zsh/vendor-completions/_inaproto",
        "/usr/share/fish/vendor_completions.d/inaproto.fish",
        "/etc/inaproto/switch.toml",
    ):
        expect(os.path.getsize(path) > 100, f"{path} is there")
    expect(
        (SOCKETS.owner(), SOCKETS.stat().st_mode & 0o777) == ("inaproto", 0o750),
        "/run/inaproto is the daemons'",
    )
    asked = {"_INAPROTO_COMPLETE": "bash_complete", "COMP_WORDS": "inaproto swi", "COMP_CWORD": "1"}
    said = subprocess.run(
        ["inaproto"], env=os.environ | asked, capture_output=True, text=True, timeout=BOUND_S, check=False
    ).stdout
    expect("switch" in said, f"completion says {said!r}")
    manual = subprocess.run(
        ["gzip", "-dc", "/usr/share/man/man1/inaproto.1.gz"], capture_output=True, check=True
    )
    expect(b"inaproto\\-switch" in manual.stdout, "the manual names the commands")
    expect("No broken requirements" in _requirements(), f"what is installed fits together: {_requirements()}")


def _requirements() -> str:
    """As pip check would: each requirement that holds here is met."""
    script = (HERE / "requirements_met.py").read_text()
    return run("/usr/lib/inaproto/bin/python3", "-c", script)


def configure() -> None:
    """As an operator does: a file for each host, from the one that is installed."""
    text = (SETTINGS / "host.toml").read_text()
    for number, name in enumerate(HOSTS, 1):
        own = text.replace('name = "h0"', f'name = "{name}"').replace('"10.0.0.1"', f'"10.0.0.{number}"')
        (SETTINGS / f"host-{name}.toml").write_text(own)


# --- without a service manager


def start_by_hand() -> list[subprocess.Popen[bytes]]:
    entry = ["setpriv", "--reuid=inaproto", "--regid=inaproto", "--init-groups"]
    commands = [["inaproto", "switch", "--config", str(SETTINGS / "switch.toml")]]
    commands += [["inaproto", "host", "--config", str(SETTINGS / f"host-{name}.toml")] for name in HOSTS]
    daemons = [subprocess.Popen([*entry, *command], umask=0o007) for command in commands]
    for name in ("control", *HOSTS):
        wait_for((SOCKETS / f"{name}.sock").exists, f"{name}.sock")
    return daemons


def without_systemd() -> None:
    daemons = start_by_hand()
    try:
        all_reduce()
    finally:
        for daemon in daemons:
            daemon.terminate()
        for daemon in daemons:
            daemon.wait(BOUND_S)


# --- under systemd


def shown(unit: str, name: str) -> str:
    return run("systemctl", "show", "--value", "--property", name, unit).strip()


def active(unit: str) -> Callable[[], bool]:
    return lambda: shown(unit, "ActiveState") == "active"


def under_systemd(deb: Path) -> None:
    run("systemctl", "enable", "--now", *UNITS)
    for unit in UNITS:
        expect(active(unit)(), f"{unit} is active once it is started")
        barred(int(shown(unit, "MainPID")))
    all_reduce()
    controller_and_server()
    wrong_configuration()
    switch = UNITS[0]
    before = shown(switch, "MainPID")
    run("systemctl", "kill", "--signal=SIGKILL", switch)
    wait_for(
        lambda: shown(switch, "MainPID") not in {before, "0"} and active(switch)(), f"{switch} after SIGKILL"
    )
    all_reduce()
    say("the switch was killed, and came back")
    still()
    all_reduce()
    before = shown(switch, "MainPID")
    run("dpkg", "--install", deb)
    for unit in (*UNITS, *OTHER_UNITS):
        wait_for(active(unit), f"{unit} after the upgrade")
    expect(shown(switch, "MainPID") != before, "the upgrade starts daemons anew")
    all_reduce()
    say("upgraded under running daemons")


def controller_and_server() -> None:
    """They have a state to keep, which goes with the package as well."""
    (SETTINGS / "cluster.json").write_text(json.dumps(CLUSTER))
    (SETTINGS / "models.toml").write_text(_MODELS)
    authority, certificate = "/root/try/ca", "/etc/inaproto/tls-ps0"
    run("inaproto", "ca", "init", "--dir", authority)
    issue = ["--role", "model", "--name", "ps0", "--address", "127.0.0.1", "--out", certificate]
    run("inaproto", "ca", "issue", "--dir", authority, *issue)
    run("chown", "-R", "inaproto:", certificate)
    run("systemctl", "enable", "--now", *OTHER_UNITS)
    for unit in OTHER_UNITS:
        expect(active(unit)(), f"{unit} is active once it is started")
        barred(int(shown(unit, "MainPID")))
    run("inaproto", "job", "submit", "train1", "--hosts", "1", "--dir", SOCKETS, user="nobody")
    said = run("inaproto", "job", "list", "--dir", SOCKETS, user="nobody")
    expect("train1" in said, f"the controller has the job: {said}")
    expect(len(list(Path("/var/lib/inaproto").iterdir())) >= 2, "both keep their state in /var/lib/inaproto")
    say("a controller takes jobs, a parameter server is ready")


def barred(pid: int) -> None:
    """That the kernel bars the process, not only that the unit says so."""
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    found = {name: status[name].strip() for name in ("NoNewPrivs", "Seccomp", "CapBnd", "CapEff")}
    expect(found["NoNewPrivs"] == "1" and found["Seccomp"] == "2", f"process {pid} has {found}")
    expect(int(found["CapBnd"], 16) == int(found["CapEff"], 16) == 0, f"process {pid} has {found}")
    expect(
        status["Uid"].split()[0] == str(pwd.getpwnam("inaproto").pw_uid), f"process {pid} is {status['Uid']}"
    )


def wrong_configuration() -> None:
    unit = "inaproto-host@wrong.service"
    (SETTINGS / "host-wrong.toml").write_text("[host]\nip = '10.0.0.9'\nno_such_field = 1\n")
    done = subprocess.run(["systemctl", "start", unit], capture_output=True, timeout=BOUND_S, check=False)
    expect(done.returncode != 0, "a daemon whose configuration is wrong does not count as started")
    found = [shown(unit, name) for name in ("ActiveState", "ExecMainStatus", "NRestarts")]
    expect(found == ["failed", "2", "0"], f"{unit} is {found}")
    say("a wrong configuration is not tried again")


def still() -> None:
    """One whose event loop stands still is killed by the watchdog, and started anew."""
    unit = UNITS[1]
    drop_in = Path(f"/etc/systemd/system/{unit}.d/watchdog.conf")
    drop_in.parent.mkdir()
    drop_in.write_text("[Service]\nWatchdogSec=10\n")
    run("systemctl", "daemon-reload")
    run("systemctl", "restart", unit)
    before = shown(unit, "MainPID")
    run("systemctl", "kill", "--signal=SIGSTOP", unit)
    wait_for(
        lambda: shown(unit, "MainPID") not in {before, "0"} and active(unit)(), f"{unit} after it stood still"
    )
    expect(int(shown(unit, "NRestarts")) > 0, f"{unit} was started anew")
    say("a daemon that stood still was killed by the watchdog, and came back")


# --- all of it


def purge() -> None:
    run("dpkg", "--purge", "inaproto")
    for name, database in (("passwd", "/etc/passwd"), ("group", "/etc/group")):
        expect("inaproto" not in Path(database).read_text(), f"no inaproto in {name}")
    for folder in (
        "/run/inaproto",
        "/etc/inaproto",
        "/var/lib/inaproto",
        "/usr/lib/inaproto",
        "/usr/share/inaproto",
    ):
        expect(not os.path.lexists(folder), f"{folder} is gone")
    left = [path.name for path in Path("/var/lib/dpkg/info").glob("inaproto.*")]
    expect(not left, f"dpkg has {left}")
    running = [path.parent.name for path in Path("/proc").glob("[0-9]*/cmdline") if _is_daemon(path)]
    expect(not running, f"processes {running} run")


def _is_daemon(cmdline: Path) -> bool:
    try:
        return b"/usr/lib/inaproto/" in cmdline.read_bytes()
    except OSError:
        return False  # it ends just now


def main(deb: Path, init: str) -> None:
    os.environ["PATH"] = "/usr/sbin:/usr/bin:/sbin:/bin"
    os.environ["DEBIAN_FRONTEND"] = "noninteractive"
    before = traces()
    began = time.monotonic()
    run("dpkg", "--install", deb)
    seconds = time.monotonic() - began
    size = int(run("du", "-sk", "/usr/lib/inaproto").split()[0])
    say(f"installed in {seconds:.0f} s, {size // 1024} MiB with compiled modules")
    installed()
    configure()
    if init == "systemd":
        under_systemd(deb)
    else:
        without_systemd()
    purge()
    after = traces()
    changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    expect(not changed, f"traces are left: {changed}")
    say("purged: no trace is left")
    print(
        json.dumps(
            {"init": init, "installed_mib": size // 1024, "install_s": round(seconds), "traces": changed}
        )
    )


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.argv[2])
    except Wrong as wrong:
        if sys.argv[2] == "systemd":
            subprocess.call(["journalctl", "--no-pager", "--lines=40", "--unit=inaproto-*"])
        sys.exit(f"NOT AS IT SHOULD BE: {wrong}")
