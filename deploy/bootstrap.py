"""Makes ``.venv``: the locked tools and libraries, and this tree installed editable.

Needs nothing but a Python 3.11 with its standard library. Debian and Ubuntu ship Python without
``ensurepip`` and without pip; then pip comes from the first of: the system's own ``python3 -m pip``, the
pip wheel of the package ``python3-pip-whl`` if it is installed, and that same package fetched by
``apt-get download`` into a private directory, which needs no root.

Invariants: ``.venv/.inaproto`` (the stamp) is written last, so that it exists only beside a complete
environment; ``.venv/.installing`` exists while one is being made, and whoever finds it starts over; an
exclusive lock on ``requirements.lock`` orders concurrent runs.

This file must parse with any Python 3.7, which then says what is wrong or finds a newer one.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent
VENV = TREE / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / ".inaproto"
INSTALLING = VENV / ".installing"
LOCK = TREE / "requirements.lock"

KERNELS = (
    TREE / "deploy" / "kernels_build.py",
    *sorted((TREE / "inaproto" / "core" / "kernels").glob("*.c")),
    *sorted((TREE / "adapters" / "inaproto_adapters" / "frames").glob("*.c")),
)
"""They are compiled when the tree is installed, if there is a C compiler."""

PYTHON_MIN = (3, 11)
PYTHON_MINOR_MAX = 14
"""Newest minor version that is looked for by name when ``python3`` is too old."""
APT_SECONDS_MAX = 180


class BootstrapError(Exception):
    """The environment cannot be made; the message says what to do about it."""


def say(message: str) -> None:
    print(f"bootstrap: {message}", flush=True)


def require_python() -> None:
    """Go on with this Python, or with a newer one on PATH, or not at all."""
    if sys.version_info[:2] >= PYTHON_MIN:
        return
    for minor in range(PYTHON_MINOR_MAX, PYTHON_MIN[1] - 1, -1):
        newer = shutil.which(f"python3.{minor}")
        if newer and subprocess.call([newer, "-c", ""], stderr=subprocess.DEVNULL) == 0:
            os.execv(newer, [newer, *sys.argv])
    here = ".".join(str(part) for part in sys.version_info[:3])
    raise BootstrapError(
        f"inaproto needs Python {PYTHON_MIN[0]}.{PYTHON_MIN[1]} or later, but {sys.executable} is {here} and "
        f"PATH has no newer one. Install one, or name it: make PYTHON=/path/to/python3 ..."
    )


def wanted_stamp() -> dict[str, str]:
    project = hashlib.sha256()
    for path in (TREE / "pyproject.toml", Path(__file__), *filter(Path.exists, KERNELS)):
        project.update(path.read_bytes())
    return {
        "tree": str(TREE),
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "lock": hashlib.sha256(LOCK.read_bytes()).hexdigest(),
        "project": project.hexdigest(),
    }


def read_stamp() -> dict[str, str]:
    try:
        lines = STAMP.read_text().splitlines()
    except OSError:
        return {}
    return dict(line.split(" ", 1) for line in lines if " " in line)


def venv_python_works() -> bool:
    check = f"import sys; sys.exit(sys.prefix == sys.base_prefix or sys.version_info[:2] < {PYTHON_MIN})"
    try:
        return subprocess.call([str(PYTHON), "-I", "-c", check], stderr=subprocess.DEVNULL) == 0
    except OSError:
        return False


def must_start_over(have: dict[str, str], want: dict[str, str]) -> bool:
    """Whether what is in ``.venv`` cannot be built upon: torn, moved, of another Python or another lock file.

    An environment without stamp that works is somebody's own: the locked packages are installed into it.
    """
    if INSTALLING.exists() or not venv_python_works():
        return True
    return bool(have) and any(have.get(key) != want[key] for key in ("tree", "python", "lock"))


def make_environment() -> None:
    if VENV.exists():
        say("removing the old .venv")
        shutil.rmtree(VENV)
    VENV.mkdir()
    INSTALLING.touch()
    say(f"making .venv with Python {sys.version.split()[0]} ({sys.executable})")
    if importlib.util.find_spec("ensurepip") is not None:
        command = [sys.executable, "-m", "venv", str(VENV)]
        if subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0:
            return
    command = [sys.executable, "-m", "venv", "--without-pip", str(VENV)]
    if subprocess.call(command) != 0:
        raise BootstrapError(f"{' '.join(command)!r} failed; on Debian and Ubuntu: apt install python3-venv")


def find_pip() -> list[str]:
    """The command that runs pip for ``.venv``; it gives pip to ``.venv`` if it has to come from a wheel."""
    inside = [str(PYTHON), "-I", "-m", "pip"]
    if runs(inside):
        return inside
    outside = [sys.executable, "-m", "pip", "--python", str(PYTHON)]
    if runs(outside):
        say("using the system's pip, because .venv has none")
        return outside
    installed = sorted(Path("/usr/share/python-wheels").glob("pip-*.whl"))
    if installed:
        return pip_from_wheel(installed[-1])
    with tempfile.TemporaryDirectory(prefix="inaproto-pip-") as scratch:
        return pip_from_wheel(download_pip_wheel(Path(scratch)))


def runs(pip: list[str]) -> bool:
    try:
        return subprocess.call([*pip, "--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0
    except OSError:
        return False


def pip_from_wheel(wheel: Path) -> list[str]:
    say(f"taking pip from {wheel.name}")
    run_checked([str(PYTHON), "-I", f"{wheel}/pip", "install", "-q", "--no-index", "--no-deps", str(wheel)])
    return [str(PYTHON), "-I", "-m", "pip"]


def download_pip_wheel(scratch: Path) -> Path:
    """Unpacks the package ``python3-pip-whl`` under ``scratch``, with apt state and cache of our own."""
    remedy = "There is neither ensurepip nor pip; on Debian and Ubuntu: apt install python3-venv"
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise BootstrapError(remedy)
    say("no ensurepip and no pip: fetching the package python3-pip-whl (apt-get download, no root needed)")
    state, cache = scratch / "state", scratch / "cache"
    (state / "lists" / "partial").mkdir(parents=True)
    (cache / "archives" / "partial").mkdir(parents=True)
    options = {
        "Dir::State": state,
        "Dir::State::status": "/var/lib/dpkg/status",
        "Dir::Cache": cache,
        "APT::Sandbox::User": "root",
        "APT::Get::List-Cleanup": "false",
        "Acquire::Languages": "none",
        "Acquire::http::Timeout": 20,
        "Acquire::https::Timeout": 20,
        "Acquire::Retries": 2,
    }
    apt = ["apt-get", "-qq", *(part for key, value in options.items() for part in ("-o", f"{key}={value}"))]
    try:
        for step in ([*apt, "update"], [*apt, "download", "python3-pip-whl"]):
            subprocess.run(step, cwd=scratch, check=True, timeout=APT_SECONDS_MAX)
        package = next(scratch.glob("python3-pip-whl_*.deb"))
        subprocess.run(["dpkg-deb", "-x", str(package), str(scratch / "root")], check=True)
        return next((scratch / "root").rglob("pip-*.whl"))
    except (subprocess.SubprocessError, StopIteration) as fault:
        raise BootstrapError(f"the package python3-pip-whl could not be fetched. {remedy}") from fault


def run_checked(command: list[str]) -> None:
    # The child inherits the lock: should this process be killed, the next one waits for the child's end.
    if subprocess.call(command, cwd=TREE, close_fds=False) != 0:
        raise BootstrapError(f"this command failed, its message is above: {' '.join(command)}")


def install(pip: list[str], *, with_lock: bool) -> None:
    if with_lock:
        say("installing what requirements.lock pins, wheels only, hashes checked")
        options = ["--no-compile", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
        run_checked([*pip, "install", "-q", *options, "-r", str(LOCK)])
    say("installing inaproto from this tree, editable")
    run_checked([*pip, "install", "-q", "--no-deps", "--no-build-isolation", "-e", str(TREE)])


def bootstrap() -> None:
    require_python()
    # pip's own questions and notices have no place in a build; the user's mirror settings do.
    os.environ.update(PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INPUT="1")
    # Opened for writing because NFS grants an exclusive lock to writers only.
    with LOCK.open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.set_inheritable(lock.fileno(), True)
        want, have = wanted_stamp(), read_stamp()
        start_over = must_start_over(have, want)
        if have == want and not start_over:
            os.utime(STAMP)
            return
        started = time.monotonic()
        if start_over:
            make_environment()
        INSTALLING.touch()
        STAMP.unlink(missing_ok=True)
        install(find_pip(), with_lock=start_over or not have)
        INSTALLING.unlink()
        scratch = STAMP.with_suffix(".new")
        scratch.write_text("".join(f"{key} {value}\n" for key, value in want.items()))
        scratch.replace(STAMP)
        say(f".venv is ready ({time.monotonic() - started:.0f} s)")


if __name__ == "__main__":
    try:
        bootstrap()
    except BootstrapError as fault:
        sys.exit(f"bootstrap: {fault}")
    except KeyboardInterrupt:
        sys.exit("bootstrap: interrupted; the next run starts over")
