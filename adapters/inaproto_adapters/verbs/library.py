"""pyverbs, wherever this machine has it: the one place that imports it.

It has to fit the machine's rdma-core, as the distribution's package does by itself; a virtual environment
does not see that package, so it is looked for where the distribution puts it. Where there is none for this
Python, that of the environment is taken: the extra ``verbs`` builds it (``pip install inaproto[verbs]``),
for the rdma-core of its own version and no other: it uses what libibverbs keeps private, by a name with the
version in it. ``INAPROTO_PYVERBS=environment`` takes that one anyway.

pyverbs says no version of itself: one that is too old is known by what it lacks.
"""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Final

from inaproto.errors import Unsupported

DISTRIBUTION: Final = Path("/usr/lib/python3/dist-packages")
CHOICE: Final = "INAPROTO_PYVERBS"
"""Variable that says which: ``distribution`` or ``environment``."""
_REMEDY: Final = "install the distribution's package (Debian, Ubuntu: apt-get install python3-pyverbs)"
_SAME_VERSION: Final = "it has to be of the version that the machine's rdma-core has, no other"
_NEEDED: Final = {
    "device": ("Context.query_gid_table",),
    "wr": ("SGE.addr", "SendWR.next_wr", "SendWR.close", "RecvWR.next_wr"),
}
"""What older versions than those of rdma-core 34 lack."""


@cache
def verbs(module: str) -> ModuleType:
    """``pyverbs.<module>``. Raises ``Unsupported`` that says what to install."""
    _load_package()
    try:
        found = importlib.import_module(f"pyverbs.{module}")
    except ModuleNotFoundError:
        raise Unsupported("RoCE through verbs", f"pyverbs cannot be imported: {_why_missing()}") from None
    except ImportError as error:
        fits = f"; {_SAME_VERSION}" if "IBVERBS" in str(error) else ""
        raise Unsupported("RoCE through verbs", f"pyverbs cannot be imported: {error}{fits}") from None
    if found.__spec__ is not None:
        _require_new(found, module)
    return found


def _load_package() -> None:
    """The package alone, so that its modules come from its place and nothing else does."""
    if "pyverbs" in sys.modules:
        return
    wish = os.environ.get(CHOICE, "")
    if wish not in ("", "distribution", "environment"):
        raise Unsupported("RoCE through verbs", f"{CHOICE}={wish} is neither distribution nor environment")
    distribution: Path | None = DISTRIBUTION
    only = {"distribution": (distribution,), "environment": (None,)}
    places = only.get(wish, (distribution, None))
    for place in places:
        spec = PathFinder.find_spec("pyverbs", None if place is None else [str(place)])
        if spec is not None and spec.loader is not None and _fits(spec):
            package = module_from_spec(spec)
            sys.modules["pyverbs"] = package
            spec.loader.exec_module(package)
            return


def _fits(spec: ModuleSpec) -> bool:
    """It is built for this Python."""
    name = f"device{sysconfig.get_config_var('EXT_SUFFIX')}"
    return any((Path(folder) / name).exists() for folder in spec.submodule_search_locations or ())


def _why_missing() -> str:
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    built = sorted(path.name.partition(".")[2] for path in DISTRIBUTION.glob("pyverbs/device.*.so"))
    if built and suffix.removeprefix(".") not in built:
        return (
            f"it is built for {built[0]}, this Python wants {suffix}; pip install inaproto[verbs] builds it"
        )
    return _REMEDY


def _require_new(found: ModuleType, module: str) -> None:
    for name in _NEEDED.get(module, ()):
        owner, _, attribute = name.partition(".")
        if not hasattr(getattr(found, owner, None), attribute):
            raise Unsupported(
                "RoCE through verbs",
                f"pyverbs at {found.__file__} is too old: it has no {name}; that of rdma-core 34 has it",
            )
