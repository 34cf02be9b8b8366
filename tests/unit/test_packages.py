"""What `make dist` makes, in small; tests/daemon/test_package_in_root.py installs the whole."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click
import pytest

from deploy.packages import build
from deploy.packages.build import PYTHONS, forget_the_builder
from deploy.packages.debian import Package, make_deb
from deploy.packages.man_pages import man_pages
from deploy.packages.try_in_root import DISTRIBUTIONS
from inaproto.cli import cli

TREE: Final = Path(__file__).parents[2]
EPOCH: Final = 1_700_000_000
_PIN: Final = re.compile(r"^([\w.-]+)==([\w.]+)(.*?) \\$", re.MULTILINE)
_REQUESTS: Final = {".TH", ".SH", ".TP", ".PP", ".sp", ".nf", ".fi", ".nh", ".ad", ".B"}


def pins(name: str) -> set[tuple[str, ...]]:
    return set(_PIN.findall((TREE / name).read_text()))


def test_production_has_what_developers_test_with_and_none_of_their_tools() -> None:
    run, all_of_it = pins("requirements-run.lock"), pins("requirements.lock")
    assert {(name, version) for name, version, _ in run} <= {
        (name, version) for name, version, _ in all_of_it
    }
    names = {name for name, _, _ in run}
    assert {"trio", "numpy", "click", "cryptography", "psycopg-binary"} <= names
    assert not names & {
        "pytest",
        "mypy",
        "ruff",
        "mutmut",
        "atheris",
        "scapy",
        "hypothesis",
        "matplotlib",
        "numba",
    }


def test_each_distribution_that_is_tried_has_its_package() -> None:
    assert {found.python for found in DISTRIBUTIONS.values()} == set(PYTHONS)


@pytest.mark.parametrize(("words", "packages"), [(["--wheel"], 0), ([], len(PYTHONS))])
def test_the_wheel_alone_is_made_without_packages_of_debian(
    words: list[str], packages: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def wheel(out: Path, epoch: int) -> Path:
        (out / "inaproto.whl").touch()
        return out / "inaproto.whl"

    def deb(python: str, wheel: Path, out: Path, epoch: int) -> Path:
        made.append(python)
        return wheel

    monkeypatch.setattr(build, "build_wheel", wheel)
    monkeypatch.setattr(build, "build_deb", deb)
    monkeypatch.setattr(sys, "argv", ["make dist", "--out", str(tmp_path), *words])
    monkeypatch.setattr(shutil, "which", {"dpkg-deb": "/usr/bin/dpkg-deb"}.get if packages else {}.get)
    build.main()
    assert len(made) == packages


# --- manual pages


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return man_pages(cli, "inaproto", "1.2.3", EPOCH)


def test_every_command_has_a_page_with_its_options_and_examples(pages: dict[str, str]) -> None:
    assert {"inaproto.1", "inaproto-host.1", "inaproto-job.1", "inaproto-job-submit.1"} <= pages.keys()
    assert "inaproto-switch-shard.1" not in pages  # it is hidden
    host = pages["inaproto-host.1"]
    assert '.TH "INAPROTO-HOST" 1 "2023-11-14" "inaproto 1.2.3"' in host
    assert "\\fB\\-\\-window\\-messages N\\fR" in host
    assert "inaproto host \\-\\-dir /tmp/ina" in host
    assert "\\-h, \\-\\-help" in pages["inaproto.1"]
    for name, page in pages.items():
        assert ".SH NAME" in page, name
        for line in page.splitlines():
            assert not line.startswith("'"), (name, line)
            assert not line.startswith(".") or line.split()[0] in _REQUESTS, (name, line)


def test_text_is_not_taken_for_roff() -> None:
    @click.command(help=".so /etc/passwd\nand \\fB of 'quotes'\n\n\b\n  .B one\n'two --three", epilog="x-y")
    @click.option("--five", help="'tis \\n(.g")
    def odd(five: str) -> None: ...

    page = man_pages(odd, "odd", "1", EPOCH)["odd.1"]
    assert "\\&.so /etc/passwd\nand \\efB of 'quotes'\n" in page
    assert ".nf\n  .B one\n\\&'two \\-\\-three\n.fi\n" in page
    assert "\\&'tis \\en(.g" in page
    assert "x\\-y" in page


def test_man_has_no_complaint(pages: dict[str, str], program: Callable[[str], Path]) -> None:
    groff = program("groff")
    everything = "\n".join(pages.values())
    done = subprocess.run(
        [groff, "-man", "-Tutf8", "-Kutf8", "-ww", "-z"],
        input=everything,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""


# --- the .deb


def small_deb(folder: Path, mtime: int) -> Path:
    """A package whose environment is one module, made in a folder of its own at a time of its own."""
    root = folder / "root"
    site = root / "usr/lib/inaproto/lib/python3.11/site-packages"
    site.mkdir(parents=True)
    (site / "module.py").write_text("x = 1\n")
    (site / "library.so").write_bytes(b"\0GLIBC_2.9\0GLIBC_2.34\0GLIBC_2.4\0")
    os.utime(site / "module.py", (mtime, mtime))
    wheel = folder / "inaproto-1.2.3-py3-none-any.whl"
    wheel.write_bytes(b"a wheel")
    return make_deb(Package(root, TREE, "1.2.3", "3.11", EPOCH, wheel), folder, quick=True)


@pytest.fixture(scope="module")
def debs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    if shutil.which("dpkg-deb") is None:
        return []
    return [small_deb(tmp_path_factory.mktemp("deb"), mtime) for mtime in (EPOCH - 5000, EPOCH + 5000)]


@pytest.fixture
def deb(program: Callable[[str], Path], debs: list[Path]) -> Path:
    program("dpkg-deb")
    return debs[0]


def test_the_same_comes_out_whenever_and_wherever_it_is_made(deb: Path, debs: list[Path]) -> None:
    first, second = debs
    assert first == deb
    assert first.name == second.name == f"inaproto_1.2.3-1~py3.11_{_architecture()}.deb"
    assert first.read_bytes() == second.read_bytes()


def _architecture() -> str:
    return subprocess.check_output(["dpkg", "--print-architecture"], text=True).strip()


def test_what_it_says_of_itself(deb: Path) -> None:
    control = subprocess.check_output(["dpkg-deb", "--field", deb], text=True)
    assert "Depends: python3 (>= 3.11), python3 (<< 3.12~), libc6 (>= 2.34), " in control
    conffiles = subprocess.check_output(["dpkg-deb", "--info", deb, "conffiles"], text=True).split()
    assert "/etc/inaproto/switch.toml" in conffiles
    assert all(path.startswith("/etc/inaproto/") for path in conffiles)
    for script in ("postinst", "prerm", "postrm"):
        text = subprocess.check_output(["dpkg-deb", "--info", deb, script], text=True)
        subprocess.run(["sh", "-n"], input=text, text=True, check=True)


def test_what_is_in_it(deb: Path) -> None:
    listed = subprocess.check_output(["dpkg-deb", "--contents", deb], text=True).splitlines()
    assert all(line.split()[1] == "root/root" for line in listed)
    assert all(line.startswith("l") or line[5] == line[8] == "-" for line in listed)  # only root may write
    found = {line.split()[5].removeprefix("."): line for line in listed}
    for unit in (TREE / "deploy").glob("*.service"):
        assert f"/usr/lib/systemd/system/{unit.name}" in found
    for path in (
        "/usr/lib/sysusers.d/inaproto.conf",
        "/usr/lib/tmpfiles.d/inaproto.conf",
        "/usr/share/inaproto/drop-ins/verbs.conf",
        "/usr/share/inaproto/dashboards/inaproto.json",
        "/usr/share/man/man1/inaproto-job-submit.1.gz",
        "/usr/share/bash-completion/completions/inaproto",
        "/usr/share/zsh/vendor-completions/_inaproto",
        "/usr/share/fish/vendor_completions.d/inaproto.fish",
    ):
        assert path in found
    assert found["/usr/lib/inaproto/bin/inaproto"].startswith("-rwxr-xr-x")


def test_nothing_tells_where_and_when_it_was_installed(tmp_path: Path) -> None:
    about = tmp_path / "some-1.0.dist-info"
    about.mkdir()
    (tmp_path / "some.py").write_text("")
    for name in ("METADATA", "uv_cache.json", "direct_url.json"):
        (about / name).write_text("")
    listed = ["METADATA,,", "RECORD,,", "uv_cache.json,sha256=of-the-time,9"]
    record = [
        *(f"some-1.0.dist-info/{line}" for line in listed),
        "bin/some,sha256=of-the-path,9",
        '"some.py",,',
    ]
    (about / "RECORD").write_text("\n".join(record))
    forget_the_builder(tmp_path)
    assert sorted(path.name for path in about.iterdir()) == ["METADATA", "RECORD"]
    left = ["some-1.0.dist-info/METADATA,,", "some-1.0.dist-info/RECORD,,", '"some.py",,']
    assert (about / "RECORD").read_text().splitlines() == left


# --- what is not installed


def test_a_picture_without_matplotlib_names_the_extra(tmp_path: Path) -> None:
    script = "import sys; sys.modules['matplotlib'] = None; from inaproto.cli import main; main()"
    command = [sys.executable, "-c", script, "model", "netreduce", "--plot", str(tmp_path / "x.svg")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        "inaproto: matplotlib is not installed: pip install 'inaproto[pictures]'\n",
    )
