"""The guest's kernel and initial file system, made once for each version of the kernel package.

Invariant: a folder that has its name in the cache is whole; it is made under another and renamed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inaproto.errors import ConfigError
from inaproto_hil.softroce import init as init_script
from inaproto_hil.softroce.kernel import KernelFiles, download, offered, unpack
from inaproto_hil.softroce.modules import WANTED, load_order
from inaproto_hil.softroce.packages import program, require

_EMPTY_FOLDERS: Final = ("proc", "sys", "dev", "host", "rw", "new", "out")
KEPT: Final = 3
"""Images in the cache, those used last; each takes 70 MB."""


@dataclass(frozen=True, slots=True)
class Image:
    """Files that QEMU boots."""

    version: str
    """Version of the kernel package."""
    kernel: Path
    initrd: Path


def default_root() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "inaproto" / "softroce"


def open_image(say: Callable[[str], None], root: Path | None = None) -> Image:
    """From the cache, or made now, in some ten seconds. Raises ``Unsupported`` or ``ConfigError``."""
    require()
    root = root or default_root()
    package = offered()
    made_of = f"{package}{WANTED}{init_script.TEXT}{_busybox().stat().st_size}"
    key = hashlib.sha256(made_of.encode()).hexdigest()[:16]
    folder = root / key
    if not folder.is_dir():
        root.mkdir(parents=True, exist_ok=True)
        say(f"making the guest of {package.name} {package.version}, once; kept in {folder}")
        with tempfile.TemporaryDirectory(prefix="making-", dir=root) as making:
            whole = Path(making, "whole")
            whole.mkdir()
            _make(whole, unpack(download(package, Path(making))))
            try:
                whole.rename(folder)
            except OSError:
                if not folder.is_dir():  # else another process was sooner
                    raise
        _prune(root)
    os.utime(folder)
    return Image(package.version, folder / "vmlinux", folder / "initrd")


def _make(folder: Path, files: KernelFiles) -> None:
    (folder / "vmlinux").write_bytes(files.vmlinux)
    order = load_order(files.modules)
    if "rdma_rxe" not in order:
        raise ConfigError("the kernel package has no Soft-RoCE (rdma_rxe); the cloud flavour lacks it")
    tree = folder / "tree"
    for name in (*_EMPTY_FOLDERS, "bin", "mods"):
        (tree / name).mkdir(parents=True)
    shutil.copy(_busybox(), tree / "bin" / "busybox")
    for name in order:
        (tree / "mods" / f"{name}.ko").write_bytes(files.modules[name])
    (tree / "mods" / "order").write_text("".join(f"{name}\n" for name in order))
    (tree / "init").write_text(init_script.TEXT)
    (tree / "init").chmod(0o755)
    names = "\n".join(sorted(str(path.relative_to(tree)) for path in tree.rglob("*")))
    with (folder / "initrd").open("wb") as archive:
        subprocess.run(
            [program("cpio"), "--create", "--format=newc", "--owner=0:0", "--quiet"],
            cwd=tree,
            input=names.encode(),
            stdout=archive,
            check=True,
        )
    shutil.rmtree(tree)


def _busybox() -> Path:
    return Path(program("busybox"))


def _prune(root: Path) -> None:
    folders = [path for path in root.iterdir() if path.is_dir() and not path.name.startswith("making-")]
    for path in sorted(folders, key=lambda one: -one.stat().st_mtime)[KEPT:]:
        shutil.rmtree(path, ignore_errors=True)
