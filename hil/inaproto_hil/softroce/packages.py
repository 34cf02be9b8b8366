"""What the bench needs of the machine, and the one line that installs it.

Nothing here installs anything. The kernel of the guest is a package of the distribution too, but is only
downloaded (:mod:`~inaproto_hil.softroce.kernel`), as the machine does not boot it.
"""

from __future__ import annotations

import platform
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inaproto.errors import Unsupported

PYVERBS: Final = Path("/usr/lib/python3/dist-packages/pyverbs")
"""The distribution's pyverbs: it fits the machine's rdma-core, which one from PyPI does not."""


@dataclass(frozen=True, slots=True)
class Need:
    package: str
    program: str = ""
    """Program by which the package is known to be there."""
    path: Path | None = None

    @property
    def is_here(self) -> bool:
        if self.path is not None:
            return self.path.exists()
        return shutil.which(self.program, path=_SEARCHED) is not None


_SEARCHED: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

NEEDS: Final = (
    Need("qemu-system-x86", "qemu-system-x86_64"),
    Need("rdma-core", path=Path("/etc/rdma")),
    Need("ibverbs-providers", path=Path("/etc/libibverbs.d/rxe.driver")),
    Need("python3-pyverbs", path=PYVERBS),
    Need("busybox-static", "busybox"),
    Need("cpio", "cpio"),
    Need("iproute2", "rdma"),
    Need("apt", "apt-get"),
    Need("dpkg", "dpkg"),
)


def missing() -> tuple[str, ...]:
    """Names of packages."""
    return tuple(need.package for need in NEEDS if not need.is_here)


def apt_line(packages: tuple[str, ...]) -> str:
    return f"apt-get install -y --no-install-recommends {' '.join(packages)}"


def require() -> None:
    """Raises ``Unsupported`` that says what to install."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise Unsupported(
            "the Soft-RoCE bench", f"its guest is for Linux on x86_64, not {platform.platform()}"
        )
    lacking = missing()
    if lacking:
        raise Unsupported("the Soft-RoCE bench", f"missing packages: {apt_line(lacking)}")


def program(name: str) -> str:
    found = shutil.which(name, path=_SEARCHED)
    assert found is not None, "require() has been called"
    return found
