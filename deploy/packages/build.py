"""Makes what is installed from: a wheel, an sdist, and a .deb for each Python that a distribution has.

A .deb carries an environment of its own, /usr/lib/inaproto, with what requirements-run.lock pins and nothing
of the tools of developers. Compiled libraries are for one version of Python; so each version has its package,
made on any machine: nothing of the target runs here. What comes out is the same byte for byte whenever it is
made from the same commit (SOURCE_DATE_EPOCH, by default the time of the commit).

    python -m deploy.packages.build --python 3.12 --out dist
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from deploy.packages.debian import Package, make_deb

TREE: Final = Path(__file__).resolve().parents[2]
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
"""Of Debian 12, Ubuntu 24.04, Debian 13 and Ubuntu 26.04."""
GLIBC: Final = "manylinux_2_28"
"""Which wheels are taken; of the older of the distributions above it is 2.36."""
EPOCH: Final = 1580601600
"""Of a tree that is no checkout: hatchling's own."""
_LEFT_OUT: Final = ("tests", "_tests", "include", "*.a", "*.pxd", "*.pyx")
"""Of other projects' packages: what only who develops them, or builds upon them in C, has a use for."""


class BuildError(Exception):
    """Nothing can be built; the message says why."""


def run(command: Sequence[str | Path], epoch: int) -> None:
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, cwd=TREE, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")


def source_epoch() -> int:
    told = os.environ.get("SOURCE_DATE_EPOCH", "")
    if told.isdecimal():
        return int(told)
    git = ["git", "-C", str(TREE), "log", "-1", "--format=%ct"]
    try:
        done = subprocess.run(git, capture_output=True, text=True, check=False)
    except OSError:
        return EPOCH
    return int(done.stdout) if done.returncode == 0 else EPOCH


def build_wheel(out: Path, epoch: int, *, with_sdist: bool = True) -> Path:
    """Returns the wheel."""
    targets = ["-t", "sdist", "-t", "wheel"] if with_sdist else ["-t", "wheel"]
    with tempfile.TemporaryDirectory(prefix="inaproto-wheel-") as scratch:
        run([sys.executable, "-m", "hatchling", "build", *targets, "-d", scratch], epoch)
        made = [Path(shutil.copy(path, out)) for path in sorted(Path(scratch).iterdir())]
    return next(path for path in made if path.suffix == ".whl")


def fill_site_packages(site: Path, python: str, wheel: Path, epoch: int) -> None:
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        raise BuildError(f"there is no {uv}: make uv")
    install: list[str | Path] = [
        *(uv, "pip", "install", "--quiet", "--no-config", "--link-mode", "copy", "--no-deps"),
        *("--only-binary", ":all:", "--python-version", python),
        *("--python-platform", f"{os.uname().machine}-{GLIBC}", "--target", site),
    ]
    run([*install, "--require-hashes", "--requirement", TREE / "requirements-run.lock"], epoch)
    for pattern in _LEFT_OUT:
        for path in list(site.rglob(pattern)):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    run([*install, wheel], epoch)
    for name in ("bin", "share", ".lock"):
        path = site / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    forget_the_builder(site)


def forget_the_builder(site: Path) -> None:
    """Take out what tells where and when something was installed; lists then name what is there alone."""
    for name in ("direct_url.json", "uv_cache.json"):
        for path in list(site.rglob(f"*.dist-info/{name}")):
            path.unlink()
    for record in site.glob("*.dist-info/RECORD"):
        lines = record.read_text().splitlines()
        kept = [line for line in lines if (site / next(csv.reader([line]))[0]).exists()]
        record.write_text("".join(f"{line}\n" for line in kept))


def build_deb(python: str, wheel: Path, out: Path, epoch: int, *, quick: bool = False) -> Path:
    """Returns the package. ``quick``: larger by a sixth, and made in a tenth of the time."""
    with tempfile.TemporaryDirectory(prefix="inaproto-deb-") as scratch:
        root = Path(scratch) / "root"
        site = root / f"usr/lib/inaproto/lib/python{python}/site-packages"
        site.mkdir(parents=True)
        fill_site_packages(site, python, wheel, epoch)
        version = wheel.name.split("-")[1]
        return make_deb(Package(root, TREE, version, python, epoch, wheel), out, quick=quick)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make dist", description="Wheel, sdist and a .deb for each Python.")
    parser.add_argument("--python", action="append", metavar="3.N", help=f"default: {', '.join(PYTHONS)}")
    parser.add_argument("--wheel", action="store_true", help="wheel and sdist alone, for an image")
    parser.add_argument("--out", type=Path, default=TREE / "dist")
    asked = parser.parse_args()
    pythons = [] if asked.wheel else asked.python or PYTHONS
    epoch = source_epoch()
    asked.out.mkdir(parents=True, exist_ok=True)
    try:
        if pythons and shutil.which("dpkg-deb") is None:
            raise BuildError("there is no dpkg-deb here: apt install dpkg")
        wheel = build_wheel(asked.out, epoch)
        made = [build_deb(python, wheel, asked.out, epoch) for python in pythons]
    except BuildError as error:
        sys.exit(f"make dist: {error}")
    for path in (*asked.out.glob("*.tar.gz"), wheel, *made):
        print(f"{path.stat().st_size / 1e6:6.1f} MB  {path}")


if __name__ == "__main__":
    main()
