"""Which accelerator the tests of a switch drive: the software core, and the RTL under the marker ``rtl``.

The tests of a module with ``pytestmark = EACH_ACCELERATOR`` run with each (``make rtl`` runs those with the
RTL). A test of something that the RTL does not have says so: ``@software_only("why")``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Final, cast

import pytest

from inaproto.core.switch.accelerator import Accelerator, AcceleratorConfig
from inaproto.core.switch.events import SwitchAccelerator
from tests.rtl.builds import MANY_PORTS, library

SOFTWARE: Final = "software"
RTL: Final = "rtl"
EACH_ACCELERATOR: Final = pytest.mark.usefixtures("each_accelerator")

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


@pytest.fixture(scope="module", params=[SOFTWARE, pytest.param(RTL, marks=pytest.mark.rtl)])
def each_accelerator(request: pytest.FixtureRequest) -> Iterator[None]:
    """:func:`make_accelerator` makes this kind."""
    if request.param == SOFTWARE:
        yield
        return
    from inaproto_hil.rtl.in_switch import RtlAccelerator
    from inaproto_hil.rtl.verilated.model import Model

    models = []

    def make(config: AcceleratorConfig) -> RtlAccelerator:
        models.append(Model(library(MANY_PORTS), MANY_PORTS))
        return RtlAccelerator(models[-1], MANY_PORTS, config)

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
