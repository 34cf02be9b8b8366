"""What every test may need. Trio tests are plain ``async def`` functions (``trio_mode`` is on)."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, settings

from inaproto.core import kernels
from inaproto.errors import Unsupported
from tests.rotating import is_tier, left_out, rotates
from tests.seeds import how_to_repeat, rotation
from tests.slow import is_slow

pytest_plugins = ["tests.cpu_report", "tests.accelerators", "tests.sharp_double"]

REQUIRED = frozenset(os.environ.get("INAPROTO_REQUIRE", "").split())
"""Programs without which this run shall fail instead of skipping what they judge."""

# A shell that runs the tests in the background has them ignore SIGINT, and all that they start would too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A slow or busy machine must not turn a property into a failure: examples count, seconds do not.
settings.register_profile("inaproto", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("inaproto")


def pytest_configure() -> None:
    rotation()  # here, before other processes are started, which are to take the same
    kernels.choose(os.environ.get("INAPROTO_KERNELS", ""))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if is_slow(item.nodeid):
            item.add_marker(pytest.mark.slow)
        if _is_seeded(item) or rotates(item.nodeid):
            item.add_marker(pytest.mark.seeded)
    if is_tier(config.option.markexpr, config.getini("addopts")):  # who names a file or a test gets all of it
        # Those of the RTL build it anew for each fault, a minute or so each.
        slow = [
            item.nodeid for item in items if any(item.iter_markers("slow")) or any(item.iter_markers("rtl"))
        ]
        dear = [
            item.nodeid for item in items if item.get_closest_marker("slow") is None and rotates(item.nodeid)
        ]
        out = left_out(dear, rotation()) | left_out(slow, rotation())
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in out])
        items[:] = [item for item in items if item.nodeid not in out]


def _is_seeded(item: pytest.Item) -> bool:
    """Whether :func:`tests.seeds.seeds` chooses its cases."""
    return isinstance(item, pytest.Function) and "seed" in item.fixturenames and hasattr(item.module, "seeds")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report: Any = yield
    if report.failed and item.get_closest_marker("seeded") is not None:
        case = getattr(item, "callspec", None)
        seed = None if case is None else case.params.get("seed")
        report.sections.append(("seeds", f"again: {how_to_repeat(item.nodeid, seed)}"))
    return report


def pytest_collection_finish() -> None:
    """What all tests share stays to the end: a collector that looked at it anew each time would take a third
    of the time of tests that collect before they begin, as runs in virtual time do."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)  # where there is no xdist: in the guest of tests/hil
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: many tests wait, for processes that they started."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.fixture
def runtime_dir() -> Iterator[Path]:
    """An empty private directory whose path is short enough for UNIX sockets in it (``tmp_path`` is not)."""
    with tempfile.TemporaryDirectory(prefix="ina-", dir="/tmp") as path:
        yield Path(path)


def end_without(name: str, why: Unsupported) -> NoReturn:
    """The test cannot run here, for a typed reason; it fails where ``name`` is required (``.ci/run``)."""
    if name in REQUIRED:
        raise why
    pytest.skip(str(why))  # noqa: TID251  the one place


def choose_kernels(name: str) -> None:
    """What is made from then on has these; the test ends for a typed reason where there are none."""
    try:
        kernels.choose(name)
    except ValueError as error:
        end_without("cc", Unsupported("compiled kernels", str(error)))


@pytest.fixture
def use_kernels() -> Iterator[Callable[[str], None]]:
    """``use_kernels("numpy")`` or ``("compiled")``: what is made from then on has these."""
    had = kernels.active()
    yield choose_kernels
    kernels.choose("numpy" if had is None else "compiled")


@pytest.fixture
def numpy_kernels(use_kernels: Callable[[str], None]) -> None:
    use_kernels("numpy")


@pytest.fixture
def compiled_kernels(use_kernels: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Here and in processes that the test starts."""
    use_kernels("compiled")
    monkeypatch.delenv("INAPROTO_KERNELS", raising=False)


@pytest.fixture
def two_cpus() -> None:
    if len(os.sched_getaffinity(0)) < 2:
        end_without("cpus", Unsupported("two CPUs", "this process may use one"))


@pytest.fixture
def program() -> Callable[[str], Path]:
    """``program("tshark")`` is the path of an outside program, or ends the test with a typed reason."""

    def find(name: str) -> Path:
        path = shutil.which(name)
        if path is not None:
            return Path(path)
        end_without(name, Unsupported(name, f"not on PATH; for example: apt install {name}"))

    return find


@pytest.fixture
def promtool(program: Callable[[str], Path]) -> Path:
    """Judges rules of Prometheus."""
    return program("promtool")
