"""Makes ``.venv-torch``: torch above what is in ``.venv``, for the tests of ``inaproto.torch``; ``make
torch``.

torch is in no lock: a build for CPUs takes 0.75 GB, the one that most registries have for Linux on x86-64
more than 5 GB, with what it needs for CUDA. The latter is not installed unasked. Words of the command line
are passed on to pip, which may need to be told where there are builds for CPUs (``--index-url``).

Invariant: the stamp is written last, so that it exists only beside a complete environment.
"""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent
BELOW = TREE / ".venv"
VENV = TREE / ".venv-torch"
STAMP = VENV / ".inaproto"
TORCH = "torch==2.13.0"
FOR_ITS_SUITE = "expecttest>=0.3"
ANY = "--any-build"


def packages_of(environment: Path) -> Path:
    return next(environment.glob("lib/python*/site-packages"))


def needs(python: Path, options: list[str]) -> list[str]:
    """Names of the packages that pip would install."""
    words = [str(python), "-m", "pip", "install", "--dry-run", "--quiet", "--report", "-", *options, TORCH]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(
            f"torch: pip does not find {TORCH} for this machine; tell it where: "
            "make torch ARGS='--index-url URL'"
        )
    return [str(each["metadata"]["name"]) for each in json.loads(done.stdout)["install"]]


def main(options: list[str]) -> None:
    told = " ".join([TORCH, f"{sys.version_info.major}.{sys.version_info.minor}", str(VENV)])
    if STAMP.exists() and STAMP.read_text() == told:
        return
    takes_any = ANY in options
    options = [option for option in options if option != ANY]
    venv.create(VENV, clear=True, with_pip=True)
    below = packages_of(BELOW)
    (packages_of(VENV) / "inaproto-below.pth").write_text(f"import site; site.addsitedir({str(below)!r})\n")
    python = VENV / "bin" / "python"
    cuda = [name for name in needs(python, options) if name.startswith(("nvidia", "cuda"))]
    if cuda and not takes_any:
        sys.exit(
            f"torch: the build that pip finds needs {len(cuda)} packages of CUDA, 5 GB; tell it where there "
            f"is one for CPUs (make torch ARGS='--index-url URL'), or take this one (make torch ARGS={ANY})"
        )
    subprocess.run(
        [str(python), "-m", "pip", "install", "--quiet", *options, TORCH, FOR_ITS_SUITE], check=True
    )
    STAMP.write_text(told)


if __name__ == "__main__":
    main(sys.argv[1:])
