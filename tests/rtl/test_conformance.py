"""The suite for accelerators at the RTL: it keeps every rule, and with a fault it is told which it breaks."""

from __future__ import annotations

import pytest

pytest.importorskip("amaranth")

from pathlib import Path

import trio

from inaproto.core.switch.events import AcceleratorConfig
from inaproto_hil.conformance.opening import opened
from inaproto_hil.conformance.suite import judge, rules_of
from inaproto_hil.conformance.target import InProcess, Target
from inaproto_hil.rtl.in_switch import RtlAccelerator
from inaproto_hil.rtl.verilated.model import Model
from tests.rtl.builds import LARGER, SMALL, library, needs_tools
from tests.rtl.faults import FAULTS, Planted, planted
from tests.rtl.test_serve import served

pytestmark = pytest.mark.rtl

FRAMES = 1000


def simulated(built: Path) -> InProcess:
    return InProcess("the RTL", RtlAccelerator(Model(built, SMALL), SMALL, AcceleratorConfig()), SMALL)


async def broken(target: Target) -> list[str]:
    found = [one async for one in judge(target, rules_of(0, FRAMES))]
    return [f"{one.rule.name}: {one.broken.difference}" for one in found if one.broken is not None]


async def test_the_rtl_keeps_every_rule() -> None:
    assert await broken(simulated(library(SMALL))) == []


SHOWN = [fault for fault in FAULTS if fault.name != "a rank stays at its port when that goes down"]
"""No port goes down in the suite."""


@pytest.mark.parametrize("fault", SHOWN, ids=lambda fault: fault.name.replace(" ", "-"))
async def test_rtl_with_a_fault_breaks_a_rule(fault: Planted) -> None:
    needs_tools()
    from inaproto_hil.rtl.verilated.build import build_accelerator

    with planted(fault):
        faulty = build_accelerator(SMALL)
    assert await broken(simulated(faulty)) != [], fault.name


async def test_a_machine_of_its_own_keeps_every_rule_at_its_ports(runtime_dir: Path) -> None:
    with served(runtime_dir), trio.fail_after(900):
        async with opened(f"fpga:socket:{runtime_dir / 'csr'}", ()) as target:
            assert target.limits.ports == LARGER.ports
            assert await broken(target) == []
