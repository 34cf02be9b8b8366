"""Lays out the .deb around an environment that is there already, and packs it.

Files of /etc are conffiles. Nothing is started by installing it: which daemon a machine has is for the
operator to say. An upgrade starts daemons that run anew, as packages of the distribution do.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from deploy.packages.man_pages import man_pages

HERE: Final = Path(__file__).resolve().parent
HOME: Final = "usr/lib/inaproto"
SCRIPTS: Final = ("postinst", "prerm", "postrm")
_COMPLETIONS: Final = {
    "bash": "usr/share/bash-completion/completions/inaproto",
    "zsh": "usr/share/zsh/vendor-completions/_inaproto",
    "fish": "usr/share/fish/vendor_completions.d/inaproto.fish",
}
_MAINTAINER: Final = "The inaproto project <inaproto@localhost>"
_CHANGES: Final = """\
inaproto ({version}) stable; urgency=medium

  * What changed: changelog.gz beside this file.

 -- {maintainer}  {day}
"""
_CONTROL: Final = """\
Package: inaproto
Version: {version}
Architecture: {architecture}
Maintainer: {maintainer}
Installed-Size: {kib}
Depends: python3 (>= {python}), python3 (<< {python_next}~), libc6 (>= {glibc}), libgcc-s1, libstdc++6, \
systemd | systemd-standalone-sysusers | systemd-sysusers
Suggests: bash-completion, rdma-core, prometheus
Section: net
Priority: optional
Description: in-network aggregation of gradients, as ordinary daemons
 All-reduces of training processes that are summed in the switch, over RoCEv2:
 daemons for hosts, switches, parameter servers and a controller, with their
 systemd units. It brings an environment of its own for the Python {python} of the
 distribution, so that nothing else of the machine depends on its versions.
"""
_LAUNCHER: Final = """\
#!/usr/lib/inaproto/bin/python3 -Es
import sys

from inaproto.cli import main

sys.exit(main())
"""
_COPYRIGHT: Final = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: inaproto

Files: *
Copyright: The inaproto authors
License: Apache-2.0
 On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.
Comment:
 /usr/lib/inaproto/lib holds other projects, too, each with its licence in its
 *.dist-info.
"""


@dataclass(frozen=True)
class Package:
    """What a package is made of."""

    root: Path
    """Becomes /; what is in site-packages is there already."""
    tree: Path
    """The source tree."""
    version: str
    python: str
    epoch: int
    wheel: Path

    @property
    def full_version(self) -> str:
        """Packages of one version for several Pythons are told apart, and a later Python's is newer."""
        return f"{self.version}-1~py{self.python}"


def make_deb(package: Package, out: Path, *, quick: bool) -> Path:
    """Returns the file, which is in the folder ``out``."""
    _environment(package)
    _system_files(package)
    _documents(package)
    _completions(package)
    architecture = subprocess.check_output(["dpkg", "--print-architecture"], text=True).strip()
    _control_files(package, architecture)
    _settle(package)
    deb = out / f"inaproto_{package.full_version}_{architecture}.deb"
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-Zxz", f"-z{1 if quick else 6}", "--build", package.root, deb],
        env=os.environ | {"SOURCE_DATE_EPOCH": str(package.epoch)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return deb


def write(path: Path, text: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)


def compressed(text: str) -> bytes:
    """By gzip, without time and name."""
    return gzip.compress(text.encode(), mtime=0)


def _environment(package: Package) -> None:
    """What makes a virtual environment of a folder that has a lib already: of the distribution's Python."""
    home = package.root / HOME
    (home / "bin").mkdir()
    (home / "bin/python3").symlink_to(f"../../../bin/python{package.python}")
    (home / "bin/python").symlink_to("python3")
    write(home / "bin/inaproto", _LAUNCHER)
    write(
        home / "pyvenv.cfg",
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {package.python}\n",
    )
    (package.root / "usr/bin").mkdir(parents=True)
    (package.root / "usr/bin/inaproto").symlink_to("../lib/inaproto/bin/inaproto")


def _system_files(package: Package) -> None:
    deploy, root = package.tree / "deploy", package.root
    for unit in sorted(deploy.glob("*.service")):
        write(root / "usr/lib/systemd/system" / unit.name, unit.read_bytes())
    write(root / "usr/lib/sysusers.d/inaproto.conf", (HERE / "inaproto.sysusers").read_bytes())
    write(root / "usr/lib/tmpfiles.d/inaproto.conf", (HERE / "inaproto.tmpfiles").read_bytes())
    for settings in sorted(deploy.glob("*.toml")):
        write(root / "etc/inaproto" / settings.name, settings.read_bytes())
    share = root / "usr/share/inaproto"
    for drop_in in sorted(deploy.glob("*.conf")):
        write(share / "drop-ins" / drop_in.name, drop_in.read_bytes())
    for rules in sorted(deploy.glob("*.yml")):
        write(share / rules.name, rules.read_bytes())
    for dashboard in sorted((deploy / "dashboards").iterdir()):
        write(share / "dashboards" / dashboard.name, dashboard.read_bytes())
    # For the environments in which training runs: clients of the version of the daemons.
    write(share / "wheel" / package.wheel.name, package.wheel.read_bytes())


def _documents(package: Package) -> None:
    from inaproto.cli import cli

    share = package.root / "usr/share"
    for name, page in man_pages(cli, "inaproto", package.version, package.epoch).items():
        write(share / "man/man1" / f"{name}.gz", compressed(page))
    documents = share / "doc/inaproto"
    write(documents / "copyright", _COPYRIGHT)
    day = datetime.fromtimestamp(package.epoch, UTC).strftime("%a, %d %b %Y %H:%M:%S +0000")
    write(
        documents / "changelog.Debian.gz",
        compressed(_CHANGES.format(version=package.full_version, maintainer=_MAINTAINER, day=day)),
    )
    write(documents / "changelog.gz", compressed((package.tree / "CHANGELOG.md").read_text()))
    write(documents / "examples/hello.py", (package.tree / "examples/hello.py").read_bytes())


def _completions(package: Package) -> None:
    """As click makes them: they ask the command for what may follow."""
    from click.shell_completion import get_completion_class

    from inaproto.cli import cli

    for shell, path in _COMPLETIONS.items():
        completion = get_completion_class(shell)
        assert completion is not None
        write(package.root / path, completion(cli, {}, "inaproto", "_INAPROTO_COMPLETE").source())


def _control_files(package: Package, architecture: str) -> None:
    control = package.root / "DEBIAN"
    files = sorted(path for path in package.root.rglob("*") if path.is_file() and not path.is_symlink())
    sums = "".join(f"{_md5(path)}  {path.relative_to(package.root)}\n" for path in files)
    major, minor = package.python.split(".")
    text = _CONTROL.format(
        version=package.full_version,
        maintainer=_MAINTAINER,
        architecture=architecture,
        kib=sum(-(-path.stat().st_size // 1024) for path in files),
        python=package.python,
        python_next=f"{major}.{int(minor) + 1}",
        glibc=glibc_wanted(package.root),
    )
    write(control / "control", text)
    write(control / "md5sums", sums)
    settings = [path for path in files if path.is_relative_to(package.root / "etc")]
    write(control / "conffiles", "".join(f"/{path.relative_to(package.root)}\n" for path in settings))
    for script in SCRIPTS:
        write(control / script, (HERE / f"{script}.sh").read_bytes())


def _md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def glibc_wanted(root: Path) -> str:
    """The newest version of the C library of which a symbol is bound in the libraries below ``root``."""
    found = {
        tuple(map(int, match.groups()))
        for library in root.rglob("*.so*")
        for match in re.finditer(rb"GLIBC_(\d+)\.(\d+)", library.read_bytes())
    }
    return ".".join(map(str, max(found)))


def _settle(package: Package) -> None:
    """Modes and times that do not depend on who builds."""
    executable = {package.root / HOME / "bin/inaproto", *(package.root / "DEBIAN" / name for name in SCRIPTS)}
    for path in (package.root, *package.root.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path in executable else 0o644)
        os.utime(path, (package.epoch, package.epoch), follow_symlinks=False)
