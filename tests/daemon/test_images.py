"""The image of deploy/images, built and run by podman, and the cluster of its Compose file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from deploy.packages.build import build_wheel, source_epoch
from inaproto.errors import Unsupported
from tests.conftest import end_without

TREE: Final = Path(__file__).parents[2]
BASE: Final = "docker.io/library/debian:bookworm-slim"
IMAGE: Final = "localhost/inaproto:test"
OURS_BYTES_MAX: Final = 240_000_000
"""What the image may have beyond its base: Python, and what the daemons import."""
BUILD_S: Final = 1800
RUN_S: Final = 600
_ENGINE: Final = """
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
runtime = "{runtime}"
cgroup_manager = "cgroupfs"
events_logger = "none"
"""
_STORAGE: Final = """
[storage]
driver = "{driver}"
graphroot = "{directory}/root"
runroot = "{directory}/run"
"""


@dataclass(frozen=True, slots=True)
class Engine:
    """podman with a store of its own: nothing of this machine's images and containers is seen or changed."""

    directory: Path
    environment: dict[str, str]

    def done(self, *words: str | Path, seconds: float = RUN_S) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            list(map(str, words)),
            cwd=TREE,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def ask(self, *words: str | Path, seconds: float = RUN_S) -> str:
        done = self.done(*words, seconds=seconds)
        assert done.returncode == 0, f"{words}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
        return done.stdout + done.stderr

    def size(self, image: str) -> int:
        return int(json.loads(self.done("podman", "image", "inspect", image).stdout)[0]["Size"])


@pytest.fixture(scope="module")
def built() -> Iterator[Callable[[], Engine]]:
    """An engine that has the image, which is built for the first test that can have it."""
    with ExitStack() as stack:
        engines: list[Engine] = []

        def build() -> Engine:
            if not engines:
                engines.append(_build(stack))
            return engines[0]

        yield build


@pytest.fixture
def engine(program: Callable[[str], Path], built: Callable[[], Engine]) -> Engine:
    for name in ("podman", "mmdebstrap"):
        program(name)
    if os.geteuid() != 0:
        end_without("podman", Unsupported("an image", "this needs root, to make the base of the image"))
    return built()


def _build(stack: ExitStack) -> Engine:
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ina-image-", dir="/tmp")))
    made = directory / "base.tar"
    subprocess.run(
        ["mmdebstrap", "--quiet", "--variant=minbase", "bookworm", made], check=True, timeout=BUILD_S
    )
    engine = _engine(directory, made)
    stack.callback(engine.done, "podman", "system", "reset", "--force")
    context = directory / "context"
    (context / "dist").mkdir(parents=True)
    build_wheel(context / "dist", source_epoch(), with_sdist=False)
    shutil.copy(TREE / "requirements-run.lock", context)
    engine.ask(
        *("podman", "build", "--network=host", "--isolation=chroot", "--pull=never", "--layers=false"),
        *_as_pip_here(directory),
        *("--file", TREE / "deploy" / "images" / "Containerfile", "--tag", IMAGE, context),
        seconds=BUILD_S,
    )
    return engine


def _engine(directory: Path, base: Path) -> Engine:
    """By the first runtime that can run a container here, with the base."""
    said = "neither crun nor runc is on PATH; for example: apt install podman runc"
    for runtime in filter(shutil.which, ("crun", "runc")):
        (directory / "containers.conf").write_text(_ENGINE.format(runtime=runtime))
        (directory / "storage.conf").write_text(_STORAGE.format(driver="overlay", directory=directory))
        environment = os.environ | {
            "CONTAINERS_CONF": str(directory / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(directory / "storage.conf"),
            "INAPROTO_IMAGE": IMAGE,
        }
        engine = Engine(directory, {name: text for name, text in environment.items() if "PYTEST" not in name})
        if engine.done("podman", "image", "exists", BASE).returncode != 0:
            engine.ask("podman", "import", base, BASE)
        tried = engine.done("podman", "run", "--rm", "--network=none", BASE, "true")
        if tried.returncode == 0:
            break
        said = f"{runtime}: {tried.stderr.strip()}"
    else:
        end_without("podman", Unsupported("containers", said))
    return engine


def _as_pip_here(directory: Path) -> list[str]:
    """Certificates that pip trusts on this machine, for the steps of the build alone."""
    bundle = os.environ.get("PIP_CERT", "")
    if not bundle:
        return []
    (directory / "pip.conf").write_text("[global]\ncert = /etc/site.crt\n")
    return [f"--volume={directory}/pip.conf:/etc/pip.conf:ro", f"--volume={bundle}:/etc/site.crt:ro"]


def test_the_image_is_small_and_runs_without_root(engine: Engine) -> None:
    ours = engine.size(IMAGE) - engine.size(BASE)
    print(f"image {engine.size(IMAGE) / 1e6:.0f} MB, of which {ours / 1e6:.0f} MB beyond the base")
    assert ours < OURS_BYTES_MAX
    plain = ("podman", "run", "--rm", "--network=none", "--read-only", "--cap-drop=all")
    assert engine.ask(*plain, IMAGE, "version").startswith("inaproto ")
    who = engine.ask(*plain, "--entrypoint=id", IMAGE)
    assert "uid=10001(inaproto) gid=10001(inaproto)" in who
    kernels = "from inaproto.core import kernels; kernels.choose('compiled'); print(kernels.active())"
    assert engine.ask(*plain, "--entrypoint=python", IMAGE, "-c", kernels).strip() not in ("", "None")


def test_a_cluster_on_one_machine_by_compose(engine: Engine) -> None:
    command = Path(sys.executable).with_name("podman-compose")
    compose = (command, "--file", TREE / "deploy" / "images" / "compose.yaml", "--profile", "train")
    try:
        engine.ask(*compose, "up", "--detach", "switch", "h0", "h1")
        said = engine.ask(*compose, "run", "--rm", "train")
    finally:
        logs = engine.done("podman", "logs", "images_h0_1").stderr
        engine.ask(*compose, "down", "--volumes")
    for rank in range(4):
        assert f"[{rank}] rank {rank} of 4: weights equal on all ranks" in said, said + logs
    assert "52 all-reduces: 52 in the switch" in said
    assert engine.done("podman", "ps", "--all", "--quiet").stdout == ""
    assert engine.done("podman", "volume", "ls", "--quiet").stdout == ""
