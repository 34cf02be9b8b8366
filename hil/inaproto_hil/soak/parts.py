"""The parts of the simulated worlds here: the product's, or a variant of it that is installed meanwhile."""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Final

import inaproto
import inaproto_adapters
from inaproto.errors import ConfigError
from inaproto.sim.campaign.log import Program
from inaproto.sim.campaign.replay import Parts
from inaproto_hil.rigs.environment import describe

PRODUCT: Final = Parts()


@contextmanager
def installed(variant: str | None) -> Iterator[None]:
    """Hold the context manager at ``MODULE:FUNCTION``, which is looked up from the current folder.

    It may replace what it likes in the program, and takes that back when it is left. What a function
    there gives must be a context manager. Raises ``ConfigError`` for what is not there.
    """
    if variant is None:
        yield
        return
    with ExitStack() as held:
        try:
            held.enter_context(_context(variant))
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"--with {variant}: calling it raised {type(error).__name__}: {error}"
            ) from error
        yield


def _context(variant: str) -> AbstractContextManager[object]:
    module_name, colon, name = variant.partition(":")
    if not (module_name and colon and name):
        raise ConfigError(
            f"--with {variant}: write MODULE:FUNCTION, for example tests.planted.catalogue:NAME"
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--with {variant}: {error}; is the current folder the root of the source?"
        ) from None
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise ConfigError(f"--with {variant}: importing {module_name} raised {said}") from error
    found = getattr(module, name, None)
    if found is None:
        raise ConfigError(f"--with {variant}: module {module_name} has no {name!r}")
    if not hasattr(found, "__enter__") and callable(found):
        found = found()
    if not (hasattr(found, "__enter__") and hasattr(found, "__exit__")):
        raise ConfigError(f"--with {variant}: {found!r} is not a context manager")
    context: AbstractContextManager[object] = found
    return context


def fingerprint() -> str:
    """A hash of all source files that a world may run."""
    digest = hashlib.sha256()
    for package in (inaproto, inaproto_adapters):
        root = Path(package.__path__[0])
        for path in sorted(root.rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode() + b"\0")
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def program(variant: str | None) -> Program:
    """What runs here, for logs."""
    return Program(version("inaproto"), describe()["commit"], variant)
