"""Which kernel modules the guest loads, and in which order: that of their own ``depends=``, never a list.

The order of two modules of one kernel series changed between updates; what a module needs is in it.
"""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Final

from inaproto.errors import ConfigError

WANTED: Final = (
    # rxe asks the crypto interface for "crc32" when it runs, so this is in nobody's depends.
    "crc32_generic",
    "virtio_pci",
    "9p",
    "9pnet_virtio",
    "virtio_net",
    "8021q",
    "overlay",
    "ib_uverbs",
    "rdma_rxe",
)
_DEPENDS: Final = b"\0depends="


def load_order(modules: Mapping[str, bytes], wanted: Iterable[str] = WANTED) -> list[str]:
    """Names of all that is needed, dependencies first. ``modules``: uncompressed files by module name.

    A wanted module that is not there may be built into the kernel, so it is left out; a dependency of one
    that is there may not be missing. Raises ``ConfigError``.
    """
    order: dict[str, None] = {}
    for name in wanted:
        if name in modules:
            _visit(name, modules, order, ())
    return list(order)


def _visit(name: str, modules: Mapping[str, bytes], order: dict[str, None], above: tuple[str, ...]) -> None:
    if name in order:
        return
    if name in above:
        raise ConfigError(f"kernel modules need each other: {' -> '.join((*above, name))}")
    if name not in modules:
        raise ConfigError(f"the kernel package has no module {name}, which {above[-1]} needs")
    for needed in depends(modules[name]):
        _visit(needed, modules, order, (*above, name))
    order[name] = None


def depends(module: bytes) -> list[str]:
    """What a module says that it needs."""
    # The first string of the section has no NUL before it; ``depends`` is not the first in any build.
    begin = module.find(_DEPENDS)
    if begin < 0:
        return []
    begin += len(_DEPENDS)
    text = module[begin : module.index(b"\0", begin)].decode("ascii")
    return [module_name(name) for name in text.split(",") if name]


def module_name(text: str) -> str:
    """``kernel/crypto/crc32-generic.ko.xz`` is ``crc32_generic``."""
    return PurePosixPath(text).name.partition(".ko")[0].replace("-", "_")


def uncompressed(path: str, data: bytes) -> bytes:
    match PurePosixPath(path).suffix:
        case ".xz":
            return lzma.decompress(data)
        case ".gz":
            return gzip.decompress(data)
        case ".ko":
            return data
        case suffix:
            raise ConfigError(
                f"kernel module {path} is compressed in a way that is not known here ({suffix})"
            )
