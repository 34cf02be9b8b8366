"""Which accelerator the tests of a switch drive: the software core, and the RTL under the marker ``rtl``.

The tests of a module with ``pytestmark = EACH_ACCELERATOR`` run with each (``make rtl`` runs those with the
RTL); those with ``EACH_ACCELERATOR_OF_TREES`` with one that may be a switch of a tree. A test of something
that the RTL does not have says so: ``@software_only("why")``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, cast

import pytest

from inaproto.core.switch.accelerator import Accelerator, AcceleratorConfig
from inaproto.core.switch.events import SwitchAccelerator
from inaproto_hil.rtl.parameters import Parameters
from tests.rtl.builds import IN_TREES, MANY_PORTS, library

SOFTWARE: Final = "software"
RTL: Final = "rtl"
EACH_ACCELERATOR: Final = pytest.mark.usefixtures("each_accelerator")
EACH_ACCELERATOR_OF_TREES: Final = pytest.mark.usefixtures("each_accelerator_of_trees")

ONE_BY_ONE: Final = "it works off one frame after the other, not what comes in a step"
FIXED: Final = "its sizes are fixed when it is made"
ADDRESSES: Final = "what its bridge has learnt cannot be read"

_MAKE: Final = ContextVar[Callable[[AcceleratorConfig], SwitchAccelerator]]("make", default=Accelerator)


def software_only(why: str) -> pytest.MarkDecorator:
    """Mark a test, or parameters of one, that the RTL has no answer to."""
    return pytest.mark.software_only(why)


def make_accelerator(config: AcceleratorConfig | None = None) -> Accelerator:
    """One of the kind that the running test drives.

    It has the type of the software core for tests that look into that. Tests that run with each use what
    ``SwitchAccelerator`` has.
    """
    return cast("Accelerator", _MAKE.get()(config or AcceleratorConfig()))


EACH: Final = (SOFTWARE, pytest.param(RTL, marks=pytest.mark.rtl))


@pytest.fixture(scope="module", params=EACH)
def each_accelerator(request: pytest.FixtureRequest) -> Iterator[None]:
    """:func:`make_accelerator` makes this kind."""
    with _made(request.param, MANY_PORTS):
        yield


@pytest.fixture(scope="module", params=EACH)
def each_accelerator_of_trees(request: pytest.FixtureRequest) -> Iterator[None]:
    """The same, of a size that may be leaf, inner switch or root."""
    with _made(request.param, IN_TREES):
        yield


@contextmanager
def _made(kind: str, sizes: Parameters) -> Iterator[None]:
    if kind == SOFTWARE:
        yield
        return
    from inaproto_hil.rtl.in_switch import RtlAccelerator
    from inaproto_hil.rtl.verilated.model import Model

    models = []

    def make(config: AcceleratorConfig) -> RtlAccelerator:
        models.append(Model(library(sizes), sizes))
        return RtlAccelerator(models[-1], sizes, config)

    before = _MAKE.set(make)
    yield
    _MAKE.reset(before)
    for model in models:
        model.close()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What is for the software alone does not run with the RTL."""
    for item in list(items):
        if item.get_closest_marker("rtl") and item.get_closest_marker("software_only"):
            items.remove(item)
