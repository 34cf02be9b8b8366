"""Tries the .deb where nothing else is: a bare root of Debian and one of Ubuntu, each with its own Python.

For each, mmdebstrap makes a root of the smallest set of packages and what the package depends on; the package
is made for its Python; then systemd is booted in it (systemd-nspawn, without network), and inside_root.py
installs the package and does the rest. Where no systemd can be booted, that runs in a chroot, in namespaces
of its own.

    python -m deploy.packages.try_in_root            # bookworm and noble
    python -m deploy.packages.try_in_root trixie --init none

Needs root, mmdebstrap, systemd-container and the mirrors of the distributions, as apt here reaches them.
Nothing of this machine is changed. Exit status: 0 if all went as it should, 1 if not, 3 if a root or the
package could not be made here.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

from deploy.packages.build import BuildError, build_deb, build_wheel, source_epoch

HERE: Final = Path(__file__).resolve().parent
INSIDE: Final = ("inside_root.py", "two_ranks.py", "requirements_met.py")
EXIT_IMPOSSIBLE: Final = 3
ROOT_S: Final = 900
INSIDE_S: Final = 900
SCRATCH_BYTES: Final = 2 << 30
_KEYRING: Final = Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg")
_UNIT: Final = """\
[Unit]
Description=Tries the package
After=multi-user.target
SuccessAction=exit
FailureAction=exit

[Service]
Type=oneshot
ExecStart=/usr/bin/python3 /root/try/inside_root.py /root/try/{deb} systemd
StandardOutput=file:/root/try/said
StandardError=file:/root/try/said
TimeoutStartSec=infinity
"""


class Distribution(NamedTuple):
    """Where a package is tried."""

    suite: str
    name: str
    python: str
    is_ubuntu: bool = False


DISTRIBUTIONS: Final = {
    found.suite: found
    for found in (
        Distribution("bookworm", "Debian 12", "3.11"),
        Distribution("trixie", "Debian 13", "3.13"),
        Distribution("noble", "Ubuntu 24.04", "3.12", is_ubuntu=True),
        Distribution("resolute", "Ubuntu 26.04", "3.14", is_ubuntu=True),
    )
}
ASKED_FOR: Final = ("bookworm", "noble")


class Impossible(Exception):
    """It cannot be tried here; the message says why, and what would mend it."""


def say(text: str) -> None:
    print(text, flush=True)


def require_tools() -> None:
    if os.geteuid() != 0:
        raise Impossible("this needs root, to make a root folder and to install into it")
    for tool, package in (("mmdebstrap", "mmdebstrap"), ("dpkg-deb", "dpkg"), ("unshare", "util-linux")):
        if shutil.which(tool) is None:
            raise Impossible(f"there is no {tool} here: apt install {package}")


def scratch_folder(asked: Path | None) -> Path:
    """In memory if there is enough of it: dpkg waits for the disk after each file."""
    memory = Path("/dev/shm")
    if asked is None and memory.is_dir() and shutil.disk_usage(memory).free > SCRATCH_BYTES:
        asked = memory
    return Path(tempfile.mkdtemp(prefix="inaproto-root-", dir=asked))


def mmdebstrap(*arguments: str | Path, environment: dict[str, str] | None = None) -> None:
    command = ["mmdebstrap", "--quiet", *map(str, arguments)]
    try:
        done = subprocess.run(
            command,
            env=os.environ | (environment or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=ROOT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Impossible(f"{' '.join(command)} took more than {ROOT_S} s") from error
    if done.returncode:
        raise Impossible(f"{' '.join(command)} failed:\n{done.stdout}")


def ubuntu_keyring(scratch: Path) -> Path:
    """That of this machine, or of the package of Debian that has it: so it is signed by Debian."""
    if _KEYRING.exists():
        return _KEYRING
    folder = scratch / "keyring"
    mmdebstrap("--variant=extract", "--include=ubuntu-archive-keyring", "trixie", folder)
    return folder / _KEYRING.relative_to("/")


def make_root(distribution: Distribution, deb: Path, scratch: Path) -> Path:
    root = scratch / distribution.suite
    keyring = [f"--keyring={ubuntu_keyring(scratch)}"] if distribution.is_ubuntu else []
    wanted = subprocess.check_output(["dpkg-deb", "--field", deb, "Depends"], text=True).strip()
    satisfy = 'chroot "$1" apt-get satisfy --yes --no-install-recommends "$INAPROTO_DEPENDS"'
    mmdebstrap(
        "--variant=minbase",
        "--include=apt,systemd",
        *keyring,
        "--dpkgopt=force-unsafe-io",
        f"--customize-hook={satisfy}",
        distribution.suite,
        root,
        environment={"INAPROTO_DEPENDS": wanted, "DEBIAN_FRONTEND": "noninteractive"},
    )
    inside = root / "root/try"
    inside.mkdir(parents=True)
    inside.parent.chmod(0o755)  # ranks of a user who is not root read their script there
    for name in INSIDE:
        shutil.copy(HERE / name, inside)
    shutil.copy(deb, inside)
    return root


def boots(root: Path) -> bool:
    """Whether a systemd can be booted in it here."""
    return (
        shutil.which("systemd-nspawn") is not None and nspawn(root, "--boot", "systemd.unit=exit.target") == 0
    )


def nspawn(root: Path, *arguments: str) -> int:
    """Run the root as a container without network; its exit status."""
    command = [
        "systemd-nspawn",
        "--quiet",
        "--register=no",
        "--keep-unit",
        "--private-network",
        "--console=pipe",
    ]
    command += [f"--directory={root}", f"--machine=inaproto-{os.getpid()}", *arguments]
    # Groups of processes in the way that all these distributions know, whichever this machine has.
    environment = os.environ | {"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as container:
        try:
            said, _ = container.communicate(timeout=INSIDE_S)
        except subprocess.TimeoutExpired:
            container.kill()
            said, _ = container.communicate()
        except BaseException:
            container.kill()
            raise
    if container.returncode:
        say(said.decode(errors="replace")[-4000:])
    return container.returncode


def try_under_systemd(root: Path, deb: Path) -> int:
    (root / "etc/systemd/system/try-inaproto.service").write_text(_UNIT.format(deb=deb.name))
    status = nspawn(root, "--boot", "systemd.unit=multi-user.target", "systemd.wants=try-inaproto.service")
    said = root / "root/try/said"
    say(said.read_text() if said.exists() else "the container said nothing")
    return status


def try_in_chroot(root: Path, deb: Path) -> int:
    inside = ["/usr/bin/python3", "/root/try/inside_root.py", f"/root/try/{deb.name}", "none"]
    shut = ["unshare", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child"]
    mount = 'mount -t proc proc "$0/proc" && mount -t tmpfs tmpfs "$0/dev/shm" && exec chroot "$0" "$@"'
    return subprocess.call([*shut, "sh", "-c", mount, str(root), *inside], timeout=INSIDE_S)


def try_in(distribution: Distribution, init: str, wheel: Path, scratch: Path) -> bool:
    began = time.monotonic()
    deb = build_deb(distribution.python, wheel, scratch, source_epoch(), quick=True)
    say(f"{distribution.name}: {deb.name}, made in {time.monotonic() - began:.0f} s")
    began = time.monotonic()
    root = make_root(distribution, deb, scratch)
    say(f"{distribution.name}: a bare root, made in {time.monotonic() - began:.0f} s")
    try:
        if init == "auto":
            init = "systemd" if boots(root) else "none"
            if init == "none":
                say(f"{distribution.name}: no systemd can be booted here; its daemons are started by hand")
        status = try_under_systemd(root, deb) if init == "systemd" else try_in_chroot(root, deb)
    finally:
        shutil.rmtree(root)
    say(f"{distribution.name}: {'all as it should be' if status == 0 else f'FAILED, status {status}'}")
    return status == 0


def main() -> None:
    parser = argparse.ArgumentParser(prog="try_in_root", description="Try the .deb in bare roots.")
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(DISTRIBUTIONS)}")
    parser.add_argument("--init", choices=("auto", "systemd", "none"), default="auto")
    parser.add_argument("--scratch", type=Path, help="a folder with 2 GB; by default in memory, or /tmp")
    asked = parser.parse_args()
    if unknown := set(asked.suites) - DISTRIBUTIONS.keys():
        parser.error(f"{', '.join(sorted(unknown))}: not of {', '.join(DISTRIBUTIONS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # and what was made goes
    try:
        require_tools()
        scratch = scratch_folder(asked.scratch)
        try:
            wheel = build_wheel(scratch, source_epoch(), with_sdist=False)
            right = [
                try_in(DISTRIBUTIONS[suite], asked.init, wheel, scratch)
                for suite in asked.suites or ASKED_FOR
            ]
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except (Impossible, BuildError) as error:
        print(f"try_in_root: {error}", file=sys.stderr)
        sys.exit(EXIT_IMPOSSIBLE)
    sys.exit(0 if all(right) else 1)


if __name__ == "__main__":
    main()
