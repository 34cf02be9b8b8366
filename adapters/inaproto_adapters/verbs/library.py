"""pyverbs, wherever this machine has it: the one place that imports it.

It is no dependency: it has to fit the machine's rdma-core, as only the distribution's package does. A virtual
environment does not see that package, so it is also looked for where the distribution puts it.
"""

from __future__ import annotations

import importlib
import sys
import sysconfig
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Final

from inaproto.errors import Unsupported

DISTRIBUTION: Final = Path("/usr/lib/python3/dist-packages")
_REMEDY: Final = "install the distribution's package (Debian, Ubuntu: apt-get install python3-pyverbs)"


@cache
def verbs(module: str) -> ModuleType:
    """``pyverbs.<module>``. Raises ``Unsupported`` that says what to install."""
    name = f"pyverbs.{module}"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        pass
    except ImportError as error:
        raise _unusable(error) from None
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    if not (DISTRIBUTION / "pyverbs" / f"device{suffix}").exists():
        built = sorted(path.name.partition(".")[2] for path in DISTRIBUTION.glob("pyverbs/device.*.so"))
        why = f"it is built for {built[0]}, this Python wants {suffix}" if built else _REMEDY
        raise Unsupported("RoCE through verbs", f"pyverbs cannot be imported: {why}")
    # Last, and for this import only: nothing else of the distribution may come into the environment.
    sys.path.append(str(DISTRIBUTION))
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise _unusable(error) from None
    finally:
        sys.path.remove(str(DISTRIBUTION))


def _unusable(error: ImportError) -> Unsupported:
    return Unsupported("RoCE through verbs", f"pyverbs cannot be imported: {error}")
